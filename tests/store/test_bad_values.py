"""Values that no caller should give: refused with a typed error before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from taskhive import ConfigurationError, Hive, NotEncodable, PayloadTooLarge, Queue
from tests.servers import Server
from tests.store.hands import drain, nothing_written, take
from tests.store.one_server import one_server_fixture  # noqa: F401

NAN, INF = float("nan"), float("inf")

NAMES: dict[str, Any] = {
    "nothing": "",
    "a space": "a b",
    "a line": "a\n",
    "two lines": "a\r\nb",
    "a tab": "\t",
    "NUL": "a\x00b",
    "an accent": "é",
    "a slash": "a/b",
    "a comma": "a,b",
    "a star": "a*",
    "braces": "{a}",
    "an open brace": "a{b",
    "a closed brace": "a}b",
    "empty braces": "{}",
    "right to left": "\u202eabc",
    "no width": "a\u200bb",
    "a surrogate": "\ud800",
    "an emoji": "😀",
    "10 KB": "x" * 10_240,
    "a number": 7,
    "a float": 1.5,
    "None": None,
    "bytes": b"a",
    "a list": ["a"],
    "True": True,
}
USES_OF_ID: dict[str, Callable[[Hive, Any], object]] = {
    "options": lambda hive, id: hive.queue("q").options(id=id).dispatch(1),
    "job": lambda hive, id: hive.job("q", id).state(),
    "cancel": lambda hive, id: hive.queue("q").cancel(id),
    "retry": lambda hive, id: hive.queue("q").dead.retry(id),
}
USES_OF_QUEUE: dict[str, Callable[[Hive, Any], object]] = {
    "queue": lambda hive, name: hive.queue(name).dispatch(1),
    "job": lambda hive, name: hive.job(name, "a").state(),
}


@pytest.mark.parametrize("use", USES_OF_ID)
@pytest.mark.parametrize("name", NAMES)
def test_an_id_that_is_none_is_refused_wherever_it_is_given(
    hive: Hive, server: Server, name: str, use: str
) -> None:
    with nothing_written(server), pytest.raises(ConfigurationError) as wrong:
        USES_OF_ID[use](hive, NAMES[name])
    assert wrong.value.field == "id"
    assert len(str(wrong.value)) < 200, "a long value is not told at length"


@pytest.mark.parametrize("use", USES_OF_QUEUE)
@pytest.mark.parametrize("name", [*NAMES, ":fail", "a:fail:fail", "x" * 101])
def test_a_queue_name_that_is_none_is_refused_wherever_it_is_given(
    hive: Hive, server: Server, name: str, use: str
) -> None:
    with nothing_written(server), pytest.raises(ConfigurationError) as wrong:
        USES_OF_QUEUE[use](hive, NAMES.get(name, name))
    assert wrong.value.field == "queue"


@pytest.mark.parametrize("name", ["a", "x" * 200, "A-z.0_9:", "-", ".", ":", "--help", "fail", "__x__"])
def test_an_id_at_the_edge_of_what_is_allowed_is_one(hive: Hive, name: str) -> None:
    q = hive.queue("q")
    job = q.options(id=name).dispatch(1)
    assert drain(q) == [name]
    assert job.state() == "succeeded"


@pytest.mark.parametrize("name", ["x" * 100, "queues", "-", "a:b", "fail", "q:failed", "meta:bell"])
def test_a_queue_name_at_the_edge_of_what_is_allowed_is_one(hive: Hive, name: str) -> None:
    q = hive.queue(name)
    q.dispatch(1)
    take(q).fail("why", permanent=True)
    assert hive.queue(f"{name}:fail").stats().ready == 1
    assert hive.queues() == [name]


NAIVE = datetime(2030, 1, 1)
LATER = NAIVE.replace(tzinfo=UTC)
NO_TIMES = [-1, NAN, INF, 2**63, 10**400, "1", "", None, True, [], {}, 1j, Decimal(1)]
BAD_OPTIONS: dict[str, list[Any]] = {
    "run_at": [
        *NO_TIMES,
        -INF,
        NAIVE,
        datetime.max.replace(tzinfo=UTC),
        datetime(1969, 1, 1, tzinfo=UTC),
    ],
    "delay": [*NO_TIMES, -0.001, timedelta(seconds=-1), timedelta.max, LATER],
    "expires": [*NO_TIMES, timedelta(-1), NAIVE],
    "priority": [-1, 256, 1.5, "1", True, None, NAN],
    "timeout": [0, -1, NAN, INF, "5", True],
    "memory": [0, -1, "", "2 apples", "1e9", "-5MB", "GiB", "1.2.3kB", 1.5, True],
    "max_retries": [-1, 1.5, True, None, 10**10, "3"],
    "min_backoff": [-1, NAN, None, "2"],
    "jitter": ["half", "", None, True, 0],
    "result_ttl": [-1, NAN, INF, "1h"],
    "failure_ttl": [-1, True, ""],
    "update_run_at": ["yes", "true", 1, 0, None, "later"],
    "on_conflict": ["replace", "", None, True],
    "codec": ["marshal", "JSON", "", None],
    "nope": [1],
    "ID": ["a"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_OPTIONS.items() for value in values],
    ids=lambda one: repr(one)[:30].encode("ascii", "replace").decode(),
)
def test_an_option_that_is_none_is_refused_at_the_line_that_wrote_it(
    hive: Hive, server: Server, name: str, value: Any
) -> None:
    q = hive.queue("q")
    with nothing_written(server), pytest.raises(ConfigurationError) as wrong:
        q.options(**{name: value})
    assert wrong.value.field == name
    assert wrong.value.remedy


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 1, "run_at": LATER},
        {"min_backoff": 9, "max_backoff": 3},
        {"unique": True, "id": "a"},
    ],
    ids=lambda options: " and ".join(options),
)
def test_options_that_contradict_each_other_are_refused(
    hive: Hive, server: Server, options: dict[str, Any]
) -> None:
    with nothing_written(server), pytest.raises(ConfigurationError):
        hive.queue("q").options(**options).dispatch(1)


CALLS: dict[str, Callable[[Queue], object]] = {
    "visibility 0": lambda q: q.lease(visibility=0),
    "visibility -1": lambda q: q.lease(visibility=-1),
    "visibility NaN": lambda q: q.lease(visibility=NAN),
    "visibility inf": lambda q: q.lease(visibility=INF),
    "visibility text": lambda q: q.lease(visibility="5"),  # type: ignore[arg-type]
    "wait -1": lambda q: q.lease(wait=-1),
    "wait NaN": lambda q: q.lease(wait=NAN),
    "wait text": lambda q: q.lease(wait="5"),  # type: ignore[arg-type]
    "depth 0": lambda q: q.configure(max_depth=0),
    "depth -1": lambda q: q.configure(max_depth=-1),
    "depth 1.5": lambda q: q.configure(max_depth=1.5),  # type: ignore[arg-type]
    "depth True": lambda q: q.configure(max_depth=True),
    "limit 0": lambda q: q.jobs(limit=0),
    "limit -1": lambda q: q.jobs(limit=-1),
    "limit 1001": lambda q: q.jobs(limit=1001),
    "limit text": lambda q: q.jobs(limit="9"),  # type: ignore[arg-type]
    "no state": lambda q: q.jobs(state="nope"),
    "an empty state": lambda q: q.jobs(state=""),
    "state unknown": lambda q: q.jobs(state="unknown"),
    "state None": lambda q: q.jobs(state=None),  # type: ignore[arg-type]
    "purge active": lambda q: q.purge("active"),
    "purge nothing": lambda q: q.purge(""),
    "purge -1": lambda q: q.purge("ready", older_than=-1),
    "purge NaN": lambda q: q.purge("ready", older_than=NAN),
    "destroy a lane": lambda q: q._hive.queue("q:fail").destroy(),
    "one id for many": lambda q: q.options(id="a").dispatch_many([1, 2]),
    "no bound calls": lambda q: q._hive.dispatch_many([1]),  # type: ignore[list-item]
    "raw of text": lambda q: q.options(codec="raw").dispatch("a"),
    "raw of two": lambda q: q.options(codec="raw").dispatch(b"a", b"b"),
    "raw of nothing": lambda q: q.options(codec="raw").dispatch(),
    "raw with keywords": lambda q: q.options(codec="raw").dispatch(b"a", n=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_asks_for_nonsense_is_refused(hive: Hive, server: Server, call: str) -> None:
    q = hive.queue("q")
    with nothing_written(server), pytest.raises(ConfigurationError):
        CALLS[call](q)


CURSORS = [
    "",
    "/",
    "x",
    "1",
    "x/a",
    "/a",
    "nan/a",
    "1_0/a",
    " 1/a",
    "0x1/a",
    "1/\ud800",
    "٣/a",
    5,
    b"1/a",
]


@pytest.mark.parametrize("cursor", CURSORS, ids=ascii)
def test_a_cursor_that_no_page_gave_is_refused(hive: Hive, server: Server, cursor: Any) -> None:
    q = hive.queue("q")
    with nothing_written(server), pytest.raises(ConfigurationError) as wrong:
        q.jobs(cursor=cursor)
    assert wrong.value.field == "cursor"


@pytest.mark.parametrize(
    "cursor", ["0/", "-1/zzz", "inf/a", "-inf/a", "1e+300/a", "1.5/\n", f"1/{'x' * 9999}"]
)
def test_a_cursor_that_leads_nowhere_is_the_end_or_the_beginning(hive: Hive, cursor: str) -> None:
    q = hive.queue("q")
    jobs = q.dispatch_many([1, 2])
    page = q.jobs(cursor=cursor)
    assert [job.id for job in page] in ([], [job.id for job in jobs])


HIVES: dict[str, dict[str, Any]] = {
    "prefix": {"prefix": ""},
    "prefix with braces": {"prefix": "a{b}"},
    "prefix of 101": {"prefix": "x" * 101},
    "prefix of bytes": {"prefix": b"th"},
    "max_payload": {"max_payload": 0},
    "max_payload in words": {"max_payload": "plenty"},
    "max_result": {"max_result": -1},
    "connect_timeout": {"connect_timeout": -1},
    "connect_timeout NaN": {"connect_timeout": NAN},
    "id_factory": {"id_factory": 5},
    "client": {"client": object()},
    "url": {"url": "http://localhost"},
    "url of bytes": {"url": b"redis://localhost"},
    "url of nothing": {"url": ""},
}


@pytest.mark.parametrize("name", HIVES)
def test_a_hive_that_cannot_be_is_refused_where_it_is_made(name: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        Hive(**HIVES[name])
    assert wrong.value.field == name.split()[0]


@pytest.mark.parametrize("made", ["", "a b", None, 7, "x" * 201, b"a"])
def test_an_id_factory_that_makes_no_id_is_found_out(server: Server, prefix: str, made: Any) -> None:
    with (
        Hive(server.url, prefix=prefix, id_factory=lambda: made) as hive,
        nothing_written(server),
        pytest.raises(ConfigurationError),
    ):
        hive.queue("q").dispatch(1)


# Arguments and results


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "NaN": lambda: NAN,
    "infinity": lambda: -INF,
    "NaN inside": lambda: {"a": [1, NAN]},
    "101 deep": lambda: nested(101),
    "102 deep in objects": lambda: nested(102, "dict"),
    "5,000 deep": lambda: nested(5_000),
    "100,000 deep": lambda: nested(100_000),
    "itself": circular,
    "1,001 digits": lambda: 10**1000,
    "5,000 digits": lambda: -(10**4999),
    "a key of int": lambda: {1: 2},
    "a key of None": lambda: {None: 2},
    "a key of tuple": lambda: {(1, 2): 3},
    "bytes": lambda: b"a",
    "bytes inside": lambda: [{"a": b"b"}],
    "a set": lambda: {1},
    "a moment": lambda: LATER,
    "Decimal": lambda: Decimal(1),
    "complex": lambda: 1j,
    "an object": object,
    "a class": lambda: int,
    "a function": lambda: nested,
    "a generator": lambda: (n for n in range(0)),
    "a surrogate": lambda: "\ud800",
    "a surrogate inside": lambda: ["a", {"b": "\udfff"}],
    "a surrogate in a key": lambda: {"\ud800": 1},
    "Ellipsis": lambda: ...,
}


@pytest.mark.parametrize("name", VALUES)
def test_an_argument_that_json_would_change_is_refused_with_its_place(
    hive: Hive, server: Server, name: str
) -> None:
    q, value = hive.queue("q"), VALUES[name]()
    with nothing_written(server):
        with pytest.raises(NotEncodable) as wrong:
            q.dispatch("fine", value)
        assert wrong.value.path.startswith("args[1]")
        with pytest.raises(NotEncodable) as wrong:
            q.dispatch(key=value)
        assert wrong.value.path.startswith("kwargs['key']")
        with pytest.raises(NotEncodable) as wrong:
            q.dispatch_many(["fine", value])
        assert wrong.value.path.startswith("items[1]")


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("bytes", "101 deep")])
def test_a_result_that_cannot_be_kept_is_refused_and_the_lease_is_still_ours(
    hive: Hive, name: str
) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    lease = take(q)
    with pytest.raises(NotEncodable) as wrong:
        lease.ack(VALUES[name]())
    assert wrong.value.path.startswith("result")
    lease.ack("fine")
    assert job.info().result == "fine"


LARGE: dict[str, Callable[[Queue, int], object]] = {
    "text": lambda q, size: q.dispatch("x" * size),
    "raw": lambda q, size: q.options(codec="raw").dispatch(b"x" * size),
    "list": lambda q, size: q.dispatch(["x" * (size // 64)] * 64),
    "keywords": lambda q, size: q.dispatch(key="x" * size),
    "many": lambda q, size: q.dispatch_many([1, "x" * size]),
}


@pytest.mark.parametrize("kind", LARGE)
def test_64_megabytes_are_refused_before_anything_is_sent(hive: Hive, server: Server, kind: str) -> None:
    with nothing_written(server), pytest.raises(PayloadTooLarge) as wrong:
        LARGE[kind](hive.queue("q"), 64 * 1024 * 1024)
    assert wrong.value.size > wrong.value.limit == 1024 * 1024


@pytest.mark.parametrize("extra", [0, 1])
def test_the_limit_of_a_payload_is_exact(server: Server, prefix: str, extra: int) -> None:
    with Hive(server.url, prefix=prefix, max_payload=1000) as hive:
        text = "x" * (1000 - len('j[""]') + extra)
        if extra:
            with nothing_written(server), pytest.raises(PayloadTooLarge):
                hive.queue("q").dispatch(text)
        else:
            hive.queue("q").dispatch(text)
            assert take(hive.queue("q")).data == text


@pytest.mark.parametrize(
    "value",
    [
        nested(99),
        nested(99, "dict"),
        10**1000 - 1,
        "\x00\x1f\x7f\u2028\u202e😀",
        {"": None, "\x00": True},
        -0.0,
        5e-324,
        1.7976931348623157e308,
        2**63,
        [],
        {},
        "",
    ],
    ids=lambda one: repr(one)[:20].encode("ascii", "replace").decode(),
)
def test_an_argument_at_the_edge_of_what_is_allowed_arrives_the_same(hive: Hive, value: Any) -> None:
    q = hive.queue("q")
    job = q.dispatch(value, key=value)
    lease = take(q)
    assert (lease.args, lease.kwargs) == ((value,), {"key": value})
    lease.ack(value)
    assert job.info().result == value
