"""Records that somebody else's hand has spoilt: set aside and counted, and no neighbour suffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from taskhive import Hive, JobActive, LeaseLost, Queue, QueueFull, ServerRefused
from taskhive.jobs import LISTED
from taskhive.parcels import Item, Renewal, Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import dump, exchange, key, take
from tests.store.one_server import one_server_fixture  # noqa: F401
from tests.store.packed import packed

NAN, INF = float("nan"), float("inf")
NOW = 1_800_000_000_000
NUMBERS = ["g", "a", "r", "t", "s", "c", "d", "u", "p", "x", "m", "y", "f", "l", "h"]
TEXTS = ["q", "o", "e", "k", "i", "j", "z", "b", "n"]
STRANGE_NUMBERS = {"text": "x", "NaN": NAN, "inf": INF, "1e300": 1e300}

GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "a zero": b"\x00",
    "no code": b"\xc1",
    "noise": bytes(range(256)),
    "half a string": b"\xdb\x00\x00\xff\xffj[]",
    "a deep array": b"\xdc\x00\x01" * 5000 + b"\xc0",
    "one number": packed(1),
    "a payload alone": packed(b"j[]"),
    "a payload of int": packed(1, NOW),
    "created as text": packed(b"j[]", "now"),
    "created in four bytes": packed(b"j[]", b"\x15-0\xff"),
    "created in six bytes": packed(b"j[]", b"\x15-0\xff\x00\x00"),
    "created NaN": packed(b"j[]", NAN),
    "created inf": packed(b"j[]", INF),
    "created -inf": packed(b"j[]", -INF),
    "created 1e300": packed(b"j[]", 1e300),
    "fields as number": packed(b"j[]", NOW, 5),
    "fields as text": packed(b"j[]", NOW, "x"),
    "errors as text": packed(b"j[]", NOW, {"A": "x"}),
    "errors of numbers": packed(b"j[]", NOW, {"A": [1, 2]}),
}
FIELDS: dict[str, bytes] = {
    **{
        f"{name} {kind}": packed(b"j[1]", NOW, {name: value})
        for name in NUMBERS
        for kind, value in STRANGE_NUMBERS.items()
    },
    **{f"{name} a number": packed(b"j[1]", NOW, {name: 7}) for name in TEXTS},
    "fields by number": packed(b"j[1]", NOW, {1: 2}),
    "unknown fields": packed(b"j[1]", NOW, {"zz": [1, {"a": None}], "": True}),
    "requests without a comma": packed(b"j[1]", NOW, {"q": "x,,,,,,,,,,,,"}),
    "options that are no JSON": packed(b"j[1]", NOW, {"o": "{"}),
    "half a priority": packed(b"j[1]", NOW, {"p": 0.5}),
    "priority 1000": packed(b"j[1]", NOW, {"p": 1000}),
    "negative counters": packed(b"j[1]", NOW, {"a": -5, "r": -5, "s": -5, "d": -5}),
    "a generation of 2^53": packed(b"j[1]", NOW, {"g": 2**53}),
    "a time before time": packed(b"j[1]", -5, {"u": -7}),
    "a time in five letters": packed(b"j[1]", "never"),
}
LEASES: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "a number": packed(1),
    "a token alone": packed("1.x"),
    "a length of text": packed("1.x", "long", NOW, 1, 1),
    **{
        f"{part} {kind}": packed(*[*row[:at], value, *row[at + 1 :]])
        for row in [["1.x", 30_000, NOW, 1, 1]]
        for at, part in enumerate(["token", "length", "taken", "marks", "place"])
        for kind, value in STRANGE_NUMBERS.items()
    },
    "progress of numbers": packed("1.x", 30_000, NOW, 1, 1, 5),
}
ENDED: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "a state alone": packed("s"),
    "no such state": packed("z", 1, NOW, b"", NOW, {}),
    **{
        f"{part} {kind}": packed(*[*row[:at], value, *row[at + 1 :]])
        for row in [["f", 1, NOW, b"{}", NOW, {"P": b"j[1]", "q": ",n1"}]]
        for at, part in enumerate(["state", "generation", "ended", "body", "created", "fields"])
        for kind, value in {**STRANGE_NUMBERS, "nil": None, "True": True}.items()
    },
    **{
        f"{name} {kind}": packed("f", 1, NOW, b"{}", NOW, {"P": b"j[1]", name: value})
        for name in [*"gupmyfqoikjzbnwvFNA"]
        for kind, value in {"text": "x", "NaN": NAN, "table": [1]}.items()
    },
    "no payload": packed("f", 1, NOW, b"{}", NOW, {}),
    "a result that is none": packed("s", 1, NOW, b"x", NOW, {}),
}


def stand(q: Queue, state: str) -> str:
    """A victim V in this state with a neighbour before and behind it; V's token if it has one."""
    q.options(id="V").dispatch(0)
    token = ""
    if state != "waiting":
        lease = take(q)
        token = lease.token
        if state == "blocked":
            q.options(id="V").dispatch(1)
        elif state == "failed":
            lease.fail("why", permanent=True)
    else:
        q.cancel("V")
        q.options(id="A").dispatch("A")
        q.options(id="V").dispatch(0)
    for name in ("A", "B"):
        if hive_state(q, name) == "unknown":
            q.options(id=name).dispatch(name)
    return token


def hive_state(q: Queue, name: str) -> str:
    return q._hive.job("q", name).state().value


def operations(hive: Hive, clock: Clock, token: str) -> list[Callable[[], object]]:
    """Everything that can be asked of a queue, about V above all."""
    q, commands = hive.queue("q"), hive._core.commands
    named = hive._core.item(q.options(id="V", delay=1)._options, (1,), {})
    mine = hive.job("q", "V")

    def leave_alone() -> None:
        got = exchange(hive, "q", want=10).leases
        back = [Settle(job.id, job.token, "release", delay_ms=-1) for job in got]
        exchange(hive, "q", settles=back)

    def settle(outcome: str) -> Callable[[], object]:
        kind = "error" if outcome in ("again", "fail") else ""
        return lambda: exchange(hive, "q", settles=[Settle("V", token or "1.x", outcome, kind)])

    def lapse() -> None:
        clock.run(q, seconds=42, step=14)
        q.sweep()
        clock.jump(400)

    return [
        mine.state,
        mine.info,
        q.stats,
        lambda: [q.jobs(state) for state in LISTED],
        lambda: q.matching(1),
        lambda: hive._run(commands.fetch("q", [("V", None), ("A", None), ("V", 1)])),
        lambda: exchange(hive, "q", renewals=[Renewal("V", token or "1.x")]),
        *(settle(outcome) for outcome in ("done", "again", "fail", "release", "cancelled")),
        leave_alone,
        lambda: q.options(id="V", update_run_at="if_later", run_at=5).dispatch(2),
        lambda: q.options(id="V", on_conflict="join").dispatch(3),
        lambda: hive._run(commands.dispatch("q", [named])),
        lambda: hive._run(commands.dispatch("q", [named, Item("V", b"j[]", b"")])),
        lapse,
        mine.cancel,
        lambda: [q.purge(state, older_than=10**9) for state in LISTED if state != "active"],
        lambda: q.dead.retry("V"),
        mine.delete,
        lapse,
        leave_alone,
    ]


def neighbours_fare_well(hive: Hive) -> None:
    q = hive.queue("q")
    while (lease := q.lease()) is not None:
        lease.ack(lease.id)
    for name in ("A", "B"):
        info = hive.job("q", name).info()
        assert (info.state, info.result) == ("succeeded", name)
    stats = q.stats()
    assert (stats.ready, stats.active) == (0, 0)


def spoil_again_and_again(
    hive: Hive, clock: Clock, server: Server, state: str, part: str, raw: bytes
) -> None:
    token = stand(hive.queue("q"), state)
    with server.client() as client:
        for operation in operations(hive, clock, token):
            client.hset(key(hive, "q", part), "V", raw)
            with contextlib.suppress(LeaseLost, JobActive):
                operation()
        client.hdel(key(hive, "q", part), "V")
    neighbours_fare_well(hive)


@pytest.mark.parametrize("state", ["waiting", "active", "blocked"])
@pytest.mark.parametrize("name", GARBAGE)
def test_a_record_that_cannot_be_read_is_set_aside_and_counted(
    hive: Hive, clock: Clock, server: Server, name: str, state: str
) -> None:
    part = "next" if state == "blocked" else "jobs"
    spoil_again_and_again(hive, clock, server, state, part, GARBAGE[name])
    assert hive.queue("q").stats().anomalies > 0
    with server.client() as client:
        assert client.hget(key(hive, "q", "quarantine"), "V") == GARBAGE[name]


@pytest.mark.parametrize("name", FIELDS)
def test_a_record_with_one_strange_field_stops_nobody(
    hive: Hive, clock: Clock, server: Server, name: str
) -> None:
    for state, part in (("active", "jobs"), ("blocked", "next")):
        spoil_again_and_again(hive, clock, server, state, part, FIELDS[name])
        hive.queue("q").destroy()


@pytest.mark.parametrize("name", LEASES)
def test_a_lease_that_cannot_be_read_stops_nobody(
    hive: Hive, clock: Clock, server: Server, name: str
) -> None:
    for state in ("waiting", "blocked"):
        spoil_again_and_again(hive, clock, server, state, "leases", LEASES[name])
        hive.queue("q").destroy()


@pytest.mark.parametrize("name", ENDED)
def test_an_ended_record_that_cannot_be_read_stops_nobody(
    hive: Hive, clock: Clock, server: Server, name: str
) -> None:
    for state in ("failed", "waiting"):
        spoil_again_and_again(hive, clock, server, state, "ended", ENDED[name])
        hive.queue("q").destroy()


SETS = ("ready", "delayed", "blocked", "expiring", "active", "succeeded", "failed", "cancelled")


@pytest.mark.parametrize("score", ["-inf", "inf", "1e300", "0.5", "-1"])
@pytest.mark.parametrize("part", SETS)
def test_a_strange_place_in_a_set_stops_nobody(
    hive: Hive, clock: Clock, server: Server, part: str, score: str
) -> None:
    for state in ("waiting", "active", "blocked"):
        token = stand(hive.queue("q"), state)
        with server.client() as client:
            for operation in operations(hive, clock, token):
                client.execute_command("ZADD", key(hive, "q", part), score, "V", score, "nobody")
                with contextlib.suppress(LeaseLost, JobActive):
                    operation()
            client.zrem(key(hive, "q", part), "V", "nobody")
        neighbours_fare_well(hive)
        hive.queue("q").destroy()


META = """now lease gap_end epoch paused depth seq token created succeeded failed cancelled merged
anomalies stale dups swept revived max_stalls min_backoff max_backoff result_ttl failure_ttl config
nobody"""
STRANGE_WORDS = ["", "nan", "inf", "-1e300", "0.5", "-1", "\x00\xff"]


@pytest.mark.parametrize("field", META.split())
def test_a_strange_word_among_the_queues_own_numbers_stops_nobody(
    hive: Hive, clock: Clock, server: Server, field: str
) -> None:
    for word in STRANGE_WORDS:
        q = hive.queue("q")
        token = stand(q, "active")
        with server.client() as client:
            for operation in operations(hive, clock, token):
                client.hset(key(hive, "q", "meta"), field, word)
                with contextlib.suppress(LeaseLost, JobActive, QueueFull):
                    operation()
            client.hdel(key(hive, "q", "meta"), field)
        neighbours_fare_well(hive)
        q.destroy()


@pytest.mark.parametrize("word", ["", "0", "1", "3", "x", "2 ", "\x00"])
def test_a_queue_of_another_layout_is_refused_before_any_write(
    hive: Hive, clock: Clock, server: Server, word: str
) -> None:
    token = stand(hive.queue("q"), "active")
    with server.client() as client:
        client.hset(key(hive, "q", "meta"), "v", word)
        before = dump(client, hive.prefix)
        before.pop(f"{hive.prefix}:clock".encode())
        for operation in operations(hive, clock, token):
            with pytest.raises(ServerRefused, match="key layout"):
                operation()
        after = dump(client, hive.prefix)
        after.pop(f"{hive.prefix}:clock".encode())
        assert after == before


@pytest.mark.parametrize("word", ["", "x", "x,,,,,,,,,,,,,,", ",", "\x00\xff", "," * 5000])
@pytest.mark.parametrize("field", ["V", "@1.x", "nobody"])
def test_strange_words_in_the_memory_of_what_was_settled_stop_nobody(
    hive: Hive, clock: Clock, server: Server, field: str, word: str
) -> None:
    token = stand(hive.queue("q"), "failed")
    with server.client() as client:
        for operation in operations(hive, clock, token):
            for number in range(3):
                client.hset(key(hive, "q", f"memory{number}"), field, word)
            with contextlib.suppress(LeaseLost, JobActive):
                operation()
    neighbours_fare_well(hive)


REQUESTS = [
    b"",
    b"x",
    packed("r"),
    packed("r", NAN, ["V"]),
    packed("r", "x", ["V"]),
    packed("r", 1, "V"),
    packed("r", 1, [1, None, ["V"]]),
    packed("r", 1e300, ["V"] * 200),
    packed(1, 1, ["V"]),
]


@pytest.mark.parametrize("raw", REQUESTS, ids=range(len(REQUESTS)))
def test_a_strange_memory_of_the_last_request_stops_nobody(
    hive: Hive, clock: Clock, server: Server, raw: bytes
) -> None:
    q = hive.queue("q")
    stand(q, "waiting")
    with server.client() as client:
        client.set(key(hive, "q", "request:w"), raw)
    exchange(hive, "q", want=3, request="r")
    clock.run(q, seconds=42, step=14)
    q.sweep()
    neighbours_fare_well(hive)


@pytest.mark.parametrize("part", ["meta", "jobs", "next", "leases", "ended", "memory0", *SETS])
def test_a_key_of_another_kind_is_a_typed_error_and_other_queues_go_on(
    hive: Hive, clock: Clock, server: Server, part: str
) -> None:
    token = stand(hive.queue("q"), "active")
    with server.client() as client:
        client.delete(key(hive, "q", part))
        client.lpush(key(hive, "q", part), "a list")
        for operation in operations(hive, clock, token):
            with contextlib.suppress(ServerRefused, LeaseLost, JobActive):
                operation()
    other = hive.queue("other")
    other.dispatch(1)
    take(other).ack()


def test_a_name_in_the_set_of_queues_that_is_none_is_shown_and_does_no_harm(
    hive: Hive, server: Server
) -> None:
    hive.queue("q").dispatch(1)
    with server.client() as client:
        client.sadd(f"{hive.prefix}:queues", b"\xff{}\n")
    assert len(hive.queues()) == 2
