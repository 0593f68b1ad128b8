"""The limit on how many jobs of a queue run at once, whoever runs them."""

from __future__ import annotations

import pytest

from taskhive import Hive
from taskhive.parcels import Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import exchange, hearing, take


def limit(hive: Hive, most: int | None) -> None:
    hive._run(hive._core.commands.configure("q", limit="" if most is None else str(most)))


def test_no_two_workers_together_pass_the_limit(hive: Hive) -> None:
    limit(hive, 3)
    hive.queue("q").dispatch_many(range(10))
    first = exchange(hive, "q", want=2, worker="a").leases
    second = exchange(hive, "q", want=8, worker="b").leases
    assert (len(first), len(second)) == (2, 1)
    assert exchange(hive, "q", want=8, worker="c").leases == []
    assert hive.queue("q").lease() is None
    settles = [Settle(one.id, one.token, "done") for one in first]
    assert len(exchange(hive, "q", want=8, worker="a", settles=settles).leases) == 2
    assert hive.queue("q").stats().active == 3


def test_a_resend_is_given_what_it_was_given_and_no_more(hive: Hive) -> None:
    limit(hive, 2)
    hive.queue("q").dispatch_many(range(5))
    first = exchange(hive, "q", want=5, worker="a", request="r1").leases
    again = exchange(hive, "q", want=5, worker="a", request="r1").leases
    assert [one.token for one in again] == [one.token for one in first]
    settles = [Settle(first[0].id, first[0].token, "done")]
    for _ in range(2):
        got = exchange(hive, "q", want=5, worker="a", request="r2", settles=settles).leases
        assert len(got) == 1
    assert hive.queue("q").stats().active == 2


@pytest.mark.parametrize("freed", ["done", "fail", "sweep", "raised limit"])
def test_who_frees_room_calls_the_others(hive: Hive, server: Server, clock: Clock, freed: str) -> None:
    q = hive.queue("q")
    limit(hive, 1)
    q.dispatch_many([1, 2])
    lease = take(q, 10.0)
    bell = hive._core.commands.keys("q").bell
    with hearing(server, bell) as heard:
        assert exchange(hive, "q", want=1).leases == []
        assert heard() == []
        match freed:
            case "done" | "fail":
                exchange(hive, "q", settles=[Settle(lease.id, lease.token, freed)])
            case "sweep":
                clock.run(q, seconds=11)
                assert q.sweep() == [lease.id]
            case "raised limit":
                limit(hive, 2)
        assert set(heard()) == {"1"}
        assert len(exchange(hive, "q", want=1).leases) == 1


def test_the_bell_is_silent_for_who_takes_the_room_himself(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    limit(hive, 1)
    q.dispatch_many([1, 2, 3])
    lease = take(q)
    with hearing(server, hive._core.commands.keys("q").bell) as heard:
        got = exchange(hive, "q", want=1, settles=[Settle(lease.id, lease.token, "done")])
        assert len(got.leases) == 1
        assert heard() == []


def test_a_limit_below_what_runs_lets_it_end_and_gives_out_nothing(hive: Hive) -> None:
    q = hive.queue("q")
    q.dispatch_many(range(4))
    running = exchange(hive, "q", want=2).leases
    limit(hive, 1)
    settles = [Settle(running[0].id, running[0].token, "done")]
    assert exchange(hive, "q", want=4, settles=settles).leases == []
    limit(hive, None)
    assert len(exchange(hive, "q", want=4).leases) == 2
