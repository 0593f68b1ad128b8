"""What is kept of attempts that are over: the last five, with the record, and with no lease."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskhive import Hive
from taskhive.errors import ServerRefused
from taskhive.jobs import AttemptInfo
from taskhive.parcels import Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import dump, exchange, key, take


def attempts(hive: Hive, id: str, generation: int | None = None) -> list[AttemptInfo]:
    return hive._run(hive._core.commands.attempts("q", id, generation))


def messages(hive: Hive, id: str, generation: int | None = None) -> list[str]:
    return [one.error.message if one.error else "" for one in attempts(hive, id, generation)]


def settle(hive: Hive, outcome: str, kind: str = "", body: bytes = b"", note: bytes = b"") -> str:
    """The end of one attempt of the next job."""
    lease = take(hive.queue("q"))
    (answer,) = exchange(
        hive, "q", settles=[Settle(lease.id, lease.token, outcome, kind, 0, -2, body, note)]
    ).settled
    return answer


def again(hive: Hive, message: str, kind: str = "error", **more: Any) -> None:
    body = json.dumps({"type": "E", "message": message, **more}).encode()
    assert settle(hive, "again", kind, body) == "OK"


def test_the_errors_of_earlier_attempts_are_kept_oldest_first(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    assert attempts(hive, job.id) == []
    again(hive, "one", traceback="here")
    again(hive, "two", "timeout", black_box={"verdict": "timeout"}, costs={"wall": 1.5})
    first, second = attempts(hive, job.id)
    assert first.error is not None
    assert second.error is not None
    assert (first.error.kind, first.error.type, first.error.message) == ("error", "E", "one")
    assert (first.error.traceback, first.black_box, first.costs) == ("here", None, None)
    assert (second.error.kind, second.black_box) == ("timeout", {"verdict": "timeout"})
    assert second.costs == {"wall": 1.5}
    take(hive.queue("q"))
    assert messages(hive, job.id) == ["one", "two"]


def test_no_more_than_five_are_kept(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    for number in range(8):
        again(hive, str(number))
    assert messages(hive, job.id) == ["3", "4", "5", "6", "7"]
    settle(hive, "fail", "error", b'{"type": "E", "message": "8"}')
    assert messages(hive, job.id) == ["4", "5", "6", "7", "8"]
    assert job.info().attempts == 9


def test_a_lease_is_given_no_more_than_the_last_error(hive: Hive, server: Server) -> None:
    job = hive.queue("q").dispatch(1)
    for number in range(5):
        again(hive, f"secret {number}")
    (leased,) = exchange(hive, "q", want=1).leases
    said = b" ".join(word for word in leased.fields.values() if isinstance(word, bytes))
    assert said.count(b"secret") == 1
    assert b"A" not in leased.fields
    assert b"A" not in hive._run(hive._core.commands.look("q", job.id)).running


def test_a_success_keeps_its_costs_and_the_failures_before_it(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    again(hive, "one")
    settle(hive, "done", note=b'{"wall": 2, "cpu": 1}')
    failed, succeeded = attempts(hive, job.id)
    assert failed.error is not None
    assert (succeeded.error, succeeded.costs) == (None, {"wall": 2, "cpu": 1})
    assert job.info().error is None


def test_a_cancelled_attempt_is_kept_like_any_other(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    again(hive, "one")
    settle(hive, "cancelled", note=b'{"wall": 3}')
    assert [one.costs for one in attempts(hive, job.id)] == [None, {"wall": 3}]
    waiting = hive.queue("q").dispatch(1)
    again(hive, "two")
    waiting.cancel()
    assert messages(hive, waiting.id) == ["two"]


def test_a_stall_is_an_attempt(hive: Hive, clock: Clock) -> None:
    q = hive.queue("q")
    job = q.options(max_stalls=1, min_backoff=0).dispatch(1)
    again(hive, "one")
    for _ in range(2):
        take(q)
        clock.run(q, seconds=31)
        assert q.sweep() == [job.id]
        clock.run(q, seconds=10)
        q.sweep()
    kinds = [one.error.kind for one in attempts(hive, job.id) if one.error]
    assert (kinds, job.state()) == (["error", "stall", "stall"], "failed")


def test_a_reset_of_the_counters_does_not_drop_them(hive: Hive) -> None:
    q = hive.queue("q").options(id="x", update_data=True, reset_counts=True)
    q.dispatch(1)
    again(hive, "one")
    q.dispatch(2)
    lease = take(q)
    assert lease.counts.retries == 0
    q.dispatch(3)
    exchange(hive, "q", settles=[Settle("x", lease.token, "again", "error", body=b'{"message": "2"}')])
    assert messages(hive, "x") == ["one", "2"]


def test_a_blocked_run_and_a_revived_one_have_none(hive: Hive) -> None:
    q = hive.queue("q")
    first = q.options(id="x").dispatch(1)
    again(hive, "one")
    lease = take(q)
    second = q.options(id="x").dispatch(2)
    assert messages(hive, "x", first._generation) == ["one"]
    assert attempts(hive, "x", second._generation) == []
    lease.fail("for good", permanent=True)
    assert messages(hive, "x", first._generation) == ["one", "for good"]
    assert attempts(hive, "x", second._generation) == []
    q.cancel("x")
    job = q.dispatch(1)
    settle(hive, "fail", "permanent", b"{}")
    assert q.dead.retry(job.id)
    assert attempts(hive, job.id) == []


def test_a_plain_success_stores_nothing_more_than_before(hive: Hive, server: Server) -> None:
    job = hive.queue("q").dispatch(1)
    settle(hive, "done")
    (ended,) = attempts(hive, job.id)
    assert ended == AttemptInfo(None)
    with server.client() as client:
        raw = client.hget(key(hive, "q", "ended"), job.id)
    assert isinstance(raw, bytes)
    assert len(raw) < 40


def test_a_note_that_is_too_large_is_refused_before_anything_is_written(
    hive: Hive, server: Server
) -> None:
    hive.queue("q").dispatch(1)
    lease = take(hive.queue("q"))
    with server.client() as client:
        before = dump(client, hive.prefix)
        with pytest.raises(ServerRefused, match="32768 bytes"):
            exchange(hive, "q", settles=[Settle(lease.id, lease.token, "done", note=b"x" * 32769)])
        assert dump(client, hive.prefix) == before


@pytest.mark.parametrize("body", [b"", b"\xff", b"[", b"[" * 100_000, b"[1]", b'{"black_box": 1}', b"1"])
def test_whatever_was_written_as_an_error_is_read(hive: Hive, body: bytes) -> None:
    job = hive.queue("q").dispatch(1)
    settle(hive, "again", "error", body)
    settle(hive, "done", note=body[:4000])
    failed, succeeded = attempts(hive, job.id)
    assert failed.error is not None
    assert failed.black_box is None
    assert succeeded.error is None


def test_a_damaged_list_of_attempts_takes_nobody_down(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    again(hive, "one")
    again(hive, "two")
    with server.client() as client:
        name = key(hive, "q", "jobs")
        raw = client.hget(name, job.id)
        assert isinstance(raw, bytes)
        assert b"\xa1A\x92" in raw
        client.hset(name, job.id, raw.replace(b"\xa1A\x92\xa5error", b"\xa1A\x92\x01\xa4rror"))
    assert attempts(hive, job.id) == []
    assert q.lease() is None
    assert q.stats().anomalies == 1
