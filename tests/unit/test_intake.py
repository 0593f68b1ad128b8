"""Which queue gets the free slots."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from taskhive.intake import Bid, share

NOW = 1000.0


def bid(queue: str, **facts: object) -> Bid:
    return Bid(queue=queue, **{"last_served": NOW, "p95": 5.0, "known": 100, **facts})  # type: ignore[arg-type]


def test_the_higher_priority_goes_first() -> None:
    bids = [bid("low", priority=1), bid("high", priority=200)]
    assert share(bids, target=4, busy=0, now=NOW) == {"high": 4}


def test_what_the_higher_priority_leaves_goes_to_the_lower() -> None:
    bids = [bid("low", priority=1), bid("high", priority=200, max_concurrency=1)]
    assert share(bids, target=4, busy=0, now=NOW) == {"high": 1, "low": 3}


def test_queues_of_one_priority_share_by_demand() -> None:
    bids = [bid("a"), bid("b"), bid("c", most=1)]
    assert share(bids, target=7, busy=0, now=NOW) == {"a": 3, "b": 3, "c": 1}


def test_who_holds_more_already_gets_less() -> None:
    bids = [bid("a", held=3), bid("b", held=1)]
    assert share(bids, target=8, busy=4, now=NOW) == {"a": 1, "b": 3}


def test_of_equals_the_one_served_longest_ago_comes_first() -> None:
    bids = [bid("a"), bid("b", last_served=NOW - 1), bid("c")]
    assert share(bids, target=1, busy=0, now=NOW) == {"b": 1}


def test_a_queue_without_jobs_gets_nothing() -> None:
    bids = [bid("a", hungry=False), bid("b")]
    assert share(bids, target=2, busy=0, now=NOW) == {"b": 2}


def test_a_full_pool_forgets_nobody() -> None:
    bids = [bid("a"), bid("b")]
    assert share(bids, target=2, busy=2, now=NOW, above_used=True) == {}
    assert share(bids, target=2, busy=0, now=NOW, above_used=True) == {"a": 1, "b": 1}


def test_a_low_priority_that_starves_gets_one_first() -> None:
    bids = [bid("high", priority=200), bid("low", priority=1, last_served=NOW - 3, mean=0.1)]
    assert share(bids, target=4, busy=3, now=NOW) == {"low": 1}
    assert share(bids, target=4, busy=0, now=NOW) == {"low": 1, "high": 3}


def test_a_low_priority_of_long_jobs_starves_later() -> None:
    bids = [bid("high", priority=200), bid("low", priority=1, last_served=NOW - 3, mean=5.0)]
    assert share(bids, target=4, busy=3, now=NOW) == {"high": 1}


def test_a_heavy_job_is_not_starved_by_light_ones() -> None:
    bids = [bid("heavy", weight=3.0), bid("light", held=3)]
    assert share(bids, target=4, busy=3, now=NOW) == {}
    assert share(bids, target=4, busy=1, now=NOW) == {"heavy": 1}


def test_a_job_heavier_than_the_machine_runs_alone() -> None:
    bids = [bid("huge", weight=9.0)]
    assert share(bids, target=4, busy=1, now=NOW) == {}
    assert share(bids, target=4, busy=0, now=NOW) == {"huge": 1}


def test_fractions_of_a_slot_add_up() -> None:
    assert share([bid("tiny", weight=0.1)], target=1, busy=0, now=NOW) == {"tiny": 10}


def test_very_short_jobs_come_in_batches() -> None:
    assert share([bid("noop", batch=64, most=128)], target=4, busy=0, now=NOW) == {"noop": 128}
    assert share([bid("noop", batch=16)], target=2, busy=1, now=NOW) == {"noop": 16}


def test_very_short_jobs_fill_up_the_slots_they_have() -> None:
    bids = [bid("noop", batch=64, beside=30, held=34, most=128), bid("slow")]
    assert share(bids, target=2, busy=2, now=NOW) == {"noop": 30}
    assert share(bids, target=3, busy=2, now=NOW) == {"noop": 30, "slow": 1}


def test_quick_jobs_use_one_slot_above_the_target() -> None:
    bids = [bid("slow", p95=5.0, held=4), bid("quick", p95=0.01)]
    assert share(bids, target=4, busy=4, now=NOW) == {"quick": 1}
    assert share(bids, target=4, busy=5, now=NOW, above_used=True) == {}


def test_a_handler_of_which_little_is_known_may_go_on_trying() -> None:
    assert share([bid("new", p95=0.3, known=3)], target=2, busy=2, now=NOW) == {"new": 1}
    assert share([bid("new", p95=0.3, known=30)], target=2, busy=2, now=NOW) == {}
    assert share([bid("new", p95=3.0, known=1)], target=2, busy=2, now=NOW) == {}


def test_a_handler_that_was_never_measured_may_try_one_job() -> None:
    assert share([bid("new", p95=None)], target=2, busy=2, now=NOW) == {"new": 1}
    assert share([bid("new", p95=None, held=1)], target=2, busy=2, now=NOW) == {}
    assert share([bid("new", p95=None)], target=1, busy=1, now=NOW) == {}


bids_drawn = st.lists(
    st.builds(
        Bid,
        queue=st.uuids().map(str),
        priority=st.integers(0, 3),
        hungry=st.booleans(),
        most=st.integers(0, 128),
        batch=st.sampled_from([1, 1, 4, 64]),
        weight=st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 5.0]),
        held=st.integers(0, 5),
        max_concurrency=st.none() | st.integers(1, 6),
        mean=st.floats(0, 10),
        p95=st.none() | st.floats(0, 10),
        last_served=st.floats(NOW - 200, NOW),
    ),
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(bids_drawn, st.integers(1, 12), st.floats(0, 14), st.booleans())
def test_the_target_and_the_caps_hold_whatever_is_asked(
    bids: list[Bid], target: int, busy: float, above: bool
) -> None:
    got = share(bids, target=target, busy=busy, now=NOW, above_used=above)
    by_queue = {one.queue: one for one in bids}
    slots = 0.0
    for queue, jobs in got.items():
        one = by_queue[queue]
        assert one.hungry
        assert 0 < jobs <= one.most
        if one.max_concurrency is not None:
            assert one.held + jobs <= one.max_concurrency
        slots += -(-jobs // one.batch) * one.weight
    over = busy + slots - max(target, busy)
    alone = busy == 0 and len(got) <= 2 and any(by_queue[queue].weight > target for queue in got)
    assert over <= (0 if above else 1) + 1e-6 or alone


@settings(max_examples=120, deadline=None)
@given(bids_drawn, st.integers(1, 12), st.floats(0, 14))
def test_no_slot_stays_idle_unless_a_heavier_job_waits_for_it(
    bids: list[Bid], target: int, busy: float
) -> None:
    got = share(bids, target=target, busy=busy, now=NOW, above_used=True)
    by_queue = {one.queue: one for one in bids}
    free = (
        target
        - busy
        - sum(-(-jobs // by_queue[q].batch) * by_queue[q].weight for q, jobs in got.items())
    )
    rest = []
    for one in bids:
        left = one.most - got.get(one.queue, 0)
        if one.max_concurrency is not None:
            left = min(left, one.max_concurrency - one.held - got.get(one.queue, 0))
        if one.hungry and left > 0:
            rest.append(one)
    assert not rest or max(one.weight for one in rest) > free - 1e-6


@dataclass
class Queue:
    """A queue that has jobs at all times, and how long its head has been passed by."""

    name: str
    priority: int
    weight: float
    runs: float
    served: float = NOW
    ready: deque[int] = field(default_factory=deque)
    held: int = 0
    passed: int = 0
    """Later jobs of its priority that began while its head waited."""


queues_drawn = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 2]), st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]), st.integers(2, 20)
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=20, deadline=None)
@given(queues_drawn, st.integers(1, 4))
def test_no_head_of_a_queue_is_passed_by_more_than_one_batch_of_later_jobs(
    drawn: list[tuple[int, float, int]], target: int
) -> None:
    queues = [Queue(f"q{i}", p, w, r / 10) for i, (p, w, r) in enumerate(drawn)]
    numbers = itertools.count()
    running: list[tuple[float, Queue]] = []
    now = NOW
    starts: dict[str, int] = {queue.name: 0 for queue in queues}
    while now < NOW + 30:  # the longest of these jobs starves after 20 s
        for queue in queues:
            while len(queue.ready) < 4:
                queue.ready.append(next(numbers))
        bids = [
            Bid(
                queue=one.name,
                priority=one.priority,
                weight=one.weight,
                held=one.held,
                mean=one.runs,
                p95=one.runs,
                last_served=one.served,
                most=4,
            )
            for one in queues
        ]
        busy = sum(queue.weight for _, queue in running)
        for name, jobs in share(bids, target=target, busy=busy, now=now).items():
            queue = next(one for one in queues if one.name == name)
            for _ in range(jobs):
                job = queue.ready.popleft()
                starts[name] += 1
                running.append((now + queue.runs, queue))
                queue.held += 1
                queue.passed = 0
                for other in queues:
                    if other.priority == queue.priority and other.ready and job > other.ready[0]:
                        other.passed += 1
                        assert other.passed <= 128
            queue.served = now
        running.sort(key=lambda run: run[0])
        now, queue = running.pop(0)
        queue.held -= 1
    assert all(starts.values())
