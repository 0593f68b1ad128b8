"""Cancelling what runs: marked and killed, or asked to stop."""

from __future__ import annotations

import pytest

from taskhive import Hive
from taskhive.errors import ServerRefused
from taskhive.parcels import Renewal, Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import exchange, hearing, take


def ask(hive: Hive, id: str) -> bool:
    return hive._run(hive._core.commands.cancel("q", id, cooperative=True))


def renewed(hive: Hive, id: str, token: str) -> int:
    (answer,) = exchange(hive, "q", renewals=[Renewal(id, token)]).renewed
    return answer


def test_a_waiting_job_is_dropped_in_either_way(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    assert ask(hive, job.id)
    assert job.state() == "cancelled"
    assert not ask(hive, job.id)


def test_who_is_asked_to_stop_learns_of_it_and_its_answer_stands(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    lease = take(hive.queue("q"))
    assert ask(hive, job.id)
    assert [renewed(hive, job.id, lease.token) for _ in range(2)] == [3, 3]
    lease.ack("what there was")
    assert (job.state(), job.info().result) == ("succeeded", "what there was")


def test_who_is_asked_and_then_cancelled_ends_as_cancelled(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    lease = take(hive.queue("q"))
    ask(hive, job.id)
    job.cancel()
    ask(hive, job.id)
    assert renewed(hive, job.id, lease.token) == 2
    lease.ack()
    assert job.state() == "cancelled"


def test_one_that_was_asked_and_put_back_runs_again_unasked(hive: Hive, clock: Clock) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    lease = take(q, 10.0)
    ask(hive, job.id)
    clock.run(q, seconds=11)
    assert q.sweep() == [job.id]
    clock.run(q, seconds=10)
    again = take(q)
    assert (again.id, renewed(hive, job.id, again.token)) == (job.id, 1)
    assert renewed(hive, job.id, lease.token) == 0


def test_the_run_that_is_blocked_is_dropped_when_the_other_is_asked(hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="x").dispatch(1)
    lease = take(q)
    q.options(id="x").dispatch(2)
    assert ask(hive, "x")
    assert q.stats().blocked == 0
    exchange(hive, "q", settles=[Settle("x", lease.token, "done")])
    assert q.stats().ready == 0


def test_the_hint_says_what_is_wanted(hive: Hive, server: Server) -> None:
    job = hive.queue("q").dispatch(1)
    token = take(hive.queue("q")).token
    commands = hive._core.commands
    with hearing(server, commands.keys("q").hint) as heard:
        ask(hive, job.id)
        hive._run(commands.cancel("q", job.id))
        hive._run(commands.cancel("q", job.id, grace=2.5))
        assert heard() == [
            f"ask {job.id} {token}",
            f"cancel {job.id} {token} 0",
            f"cancel {job.id} {token} 2500",
        ]


@pytest.mark.parametrize("words", [(b"stop", b"0"), (b"kill", b"-1"), (b"kill", b"nan"), (b"ask", b"")])
def test_a_cancel_that_makes_no_sense_is_refused(hive: Hive, words: tuple[bytes, bytes]) -> None:
    with pytest.raises(ServerRefused, match="kill or ask"):
        hive._run(hive._core.commands._call("q", "cancel", b"x", *words))
