"""What attempts cost, summed up in the server: exact sums, percentiles within ten per cent."""

from __future__ import annotations

import random

import pytest

from taskhive import Hive
from taskhive.costs import MEMORY_BUCKETS, WALL_BUCKETS, HandlerCosts, Spent, read_costs
from taskhive.errors import ServerRefused
from tests.servers import Server
from tests.store.hands import dump, key


def account(hive: Hive, spent: Spent) -> bool:
    return hive._run(hive._core.commands.account("q", spent.take()))


def costs(hive: Hive) -> HandlerCosts:
    return hive._run(hive._core.commands.costs("q"))


def test_nothing_was_spent_before_the_first_attempt(hive: Hive) -> None:
    assert costs(hive) == HandlerCosts("q")
    assert not Spent()


def test_what_two_workers_spent_is_added_up(hive: Hive) -> None:
    for worker in range(2):
        spent = Spent()
        spent.add("done", 1.5 + worker, 1.25, 64 << 20)
        spent.add("timeout", 0.5, 0.25, 128 << 20)
        assert account(hive, spent)
        assert not spent
    found = costs(hive)
    assert (found.count, found.ended) == (4, {"done": 2, "timeout": 2})
    assert (found.wall, found.cpu) == (5.0, 3.0)
    assert (found.wall_max, found.cpu_max, found.memory_max) == (2.5, 1.25, 128 << 20)


@pytest.mark.parametrize("spread", ["narrow", "wide", "short", "one"])
def test_percentiles_are_within_ten_per_cent(hive: Hive, spread: str) -> None:
    rng = random.Random(spread)
    walls = {
        "narrow": [rng.uniform(0.9, 1.1) for _ in range(500)],
        "wide": [10 ** rng.uniform(-2.9, 3.4) for _ in range(500)],
        "short": [10 ** rng.uniform(-2.9, -2) for _ in range(500)],
        "one": [0.777],
    }[spread]
    spent = Spent()
    for wall in walls:
        spent.add("done", wall, wall, int(wall * 1e9) + (20 << 20))
    account(hive, spent)
    found = costs(hive)
    for share, told, memory in (
        (0.5, found.wall_p50, found.memory_p50),
        (0.95, found.wall_p95, found.memory_p95),
    ):
        exact = sorted(walls)[max(0, -(-len(walls) * int(share * 100) // 100) - 1)]
        assert told == pytest.approx(exact, rel=0.1)
        if exact < 30:
            assert memory == pytest.approx(exact * 1e9 + (20 << 20), rel=0.1)


def test_no_percentile_is_above_the_maximum(hive: Hive) -> None:
    spent = Spent()
    spent.add("done", 0.0, 0.0, 0)
    spent.add("timeout", 2.0, 0.0, 0)
    account(hive, spent)
    found = costs(hive)
    assert (found.memory_p50, found.memory_p95, found.memory_max) == (0, 0, 0)
    assert found.wall_p95 is not None
    assert 1.8 < found.wall_p95 <= found.wall_max == 2.0


def test_a_resend_counts_once(hive: Hive) -> None:
    keys = hive._core.commands.keys("q")
    args = [b"call", b"n", b"5", b"wall_max", b"7"]
    for first in (1, 0, 0):
        replies = hive._run(hive._core.commands.session.call(keys, "account", args, b"call"))
        assert replies[0] == [b"call", first]
    assert costs(hive).count == 5


@pytest.mark.parametrize(
    "words",
    [
        ("other", "1"),
        ("k_other", "1"),
        ("k_", "1"),
        (f"w{WALL_BUCKETS}", "1"),
        (f"m{MEMORY_BUCKETS}", "1"),
        ("w01", "1"),
        ("w-1", "1"),
        ("n", "-1"),
        ("n", "1.5"),
        ("n", "nan"),
        ("n", "inf"),
        ("n", "x"),
        ("n", "1e300"),
        ("n",),
        (),
    ],
)
def test_what_is_no_cost_is_refused_before_anything_is_written(
    hive: Hive, server: Server, words: tuple[str, ...]
) -> None:
    with server.client() as client:
        before = dump(client, hive.prefix)
        good = ("wall", "1") if words else ()
        said = [word.encode() for word in (*good, *words)]
        with pytest.raises(ServerRefused, match="BADARG"):
            hive._run(hive._core.commands._call("q", "account", *said))
        assert dump(client, hive.prefix) == before


def test_the_names_of_all_costs_are_few(hive: Hive, server: Server) -> None:
    names = [f"w{n}" for n in range(WALL_BUCKETS)] + [f"m{n}" for n in range(MEMORY_BUCKETS)]
    hive._run(hive._core.commands.account("q", dict.fromkeys(names, 1)))
    spent = Spent()
    for wall in (0.0, 1e-9, 1e9):
        spent.add("done", wall, wall, int(wall))
    account(hive, spent)
    with server.client() as client:
        assert client.hlen(key(hive, "q", "costs")) < 140
        assert 0 < client.pttl(key(hive, "q", "costs")) <= 7 * 86_400_000


def test_a_hash_that_somebody_damaged_is_mended_by_what_follows(hive: Hive, server: Server) -> None:
    with server.client() as client:
        client.hset(key(hive, "q", "costs"), mapping={"n": "x", "wall": "-5", "cpu": "1e300", "zz": "9"})
    assert costs(hive).count == 0
    spent = Spent()
    spent.add("done", 2.0, 1.0, 1)
    account(hive, spent)
    found = costs(hive)
    assert (found.count, found.wall, found.cpu) == (1, 2.0, 1.0)
    assert read_costs("q", [b"n", None, b"w1", b"\xff", b"k_done", b"3"]).ended == {"done": 3}


def test_the_end_of_the_queue_takes_them_along(hive: Hive, server: Server) -> None:
    spent = Spent()
    spent.add("done", 1.0, 1.0, 1)
    account(hive, spent)
    hive.queue("q").destroy()
    assert costs(hive) == HandlerCosts("q")
