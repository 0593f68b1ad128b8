"""Workers as they say of themselves, whatever stands there."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from taskhive.costs import HandlerCosts
from taskhive.crew import SlotInfo, WorkerInfo, read_worker
from taskhive.status import Status, portable, text

SLOT = SlotInfo(3, 77, "busy", "resize", "a.png", 2.5, 4)
WORKER = WorkerInfo(
    id="w",
    name="box",
    pid=9,
    capacity=2,
    load=1.0,
    reason="2: asked for",
    machine="2 cores",
    slots=(SLOT,),
)


def test_what_a_worker_says_is_read() -> None:
    facts = json.loads(json.dumps(portable(Status([WORKER], [], []))["workers"][0]))
    assert read_worker(facts) == WORKER


def test_what_has_the_wrong_type_is_left_out() -> None:
    odd = {"id": "w", "pid": "9", "capacity": 1.5, "load": True, "queues": 7, "slots": [1, {"slot": []}]}
    assert read_worker(odd) == WorkerInfo(id="w", slots=(SlotInfo(0, 0, ""),))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["name", "pid", "slots", "queues", "load", "x"]), json_values))
def test_reading_never_fails(facts: dict[str, object]) -> None:
    assert read_worker({**facts, "id": "w"}).id == "w"


def test_the_status_is_readable() -> None:
    costs = HandlerCosts(
        "resize", 7, {"done": 7}, 9.0, 8.5, 0.25, 2.0, 3.0, 2.5, 1 << 20, 64 << 20, 99 << 20
    )
    assert text(Status([WORKER], [], [costs])).splitlines() == [
        "worker box pid 9: 1 of 2 slots busy, 2 cores",
        "  2: asked for",
        "  slot 3 pid 77: resize/a.png for 2.5 s, 4 behind it",
        "",
        "handler  attempts  wall p50    p95    max  CPU s  memory p95     max",
        "resize          7    250 ms  2.0 s  3.0 s    8.5      64 MiB  99 MiB",
    ]


def test_without_a_worker_that_is_said() -> None:
    assert text(Status([], [], [])) == "no worker is there\n"


def test_a_name_cannot_pretend_to_be_another_line() -> None:
    assert "\x1b" not in text(Status([WorkerInfo(id="w", name="a\x1b[31mb")], [], []))
