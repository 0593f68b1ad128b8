"""A cluster: no script leaves its slot or touches a key it did not declare, and slots may move."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from taskhive import AsyncHive, Hive, LeaseLost, Queue, ServerRefused, scripts
from tests.clusters import ask, cluster, move_slot
from tests.servers import Server, programs, until


@pytest.fixture(scope="module", params=sorted(programs()))
def nodes(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        cluster(programs()[request.param], Path(directory), 2) as made,
    ):
        yield made


def url(*nodes: Server) -> str:
    return "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def use_every_script(hive: Hive) -> None:
    """Through the public methods, each way a job can go, in the queue and in its fail lane."""
    q = hive.queue("q")
    lane = hive.queue("q:fail")
    q.configure(max_depth=100)
    done = q.dispatch("done")
    first = q.lease()
    assert first is not None
    first.ack("well")
    assert done.result(timeout=5) == "well"
    q.dispatch_many(["a", "b", "c", "d"])
    q.options(id="x", delay=0.001, expires=60, priority=200, unique=False).dispatch(1)
    q.options(id="x", update_run_at="if_later", delay=0.002).dispatch(2)
    q.options(unique=True).dispatch("same")
    q.options(id="late", expires=0.001).dispatch(1)
    first = q.lease(visibility=60, wait=1)
    assert first is not None
    q.options(id=first.id).dispatch("blocked")
    first.extend(30)
    first.ack({"n": 1})
    for settle in ("again", "permanent", "release", "late"):
        lease = q.lease(visibility=0.001 if settle == "late" else 60, wait=1)
        assert lease is not None
        match settle:
            case "again":
                lease.fail("once more")
            case "permanent":
                lease.fail("for good", permanent=True)
                assert q.dead.retry(lease.id)
            case "release":
                lease.release(delay=0.001)
            case "late":
                until(partial(swept, q, lease.id), "the lease lapses")
                with pytest.raises(LeaseLost):
                    lease.ack()
    doomed = q.options(max_retries=0).dispatch("doomed")
    while lease := q.lease():
        lease.fail("no", permanent=True)
    assert doomed.state() == "failed"
    failure = lane.lease(visibility=60)
    assert failure is not None
    failure.extend(30)
    failure.fail("the failure handler fails too")
    while lease := lane.lease():
        lease.fail("for good", permanent=True)
    lane.sweep()
    assert lane.stats().dead >= 1
    lane.pause()
    lane.resume()
    assert doomed.delete()
    for state in ("ready", "delayed", "blocked", "active", "succeeded", "failed", "cancelled"):
        q.jobs(state)
        lane.jobs(state)
    assert q.options(id="gone").dispatch(1).cancel()
    assert not q.cancel("gone")
    for state in ("ready", "delayed", "failed", "succeeded", "cancelled"):
        q.purge(state)
        lane.purge(state)
    hive._run(hive._core.commands.account("q", {"n": 1, "wall": 5}))  # what a worker's attempts cost
    with hive.lock("report", ttl=30):
        pass
    commands = hive._core.commands
    assert hive._run(commands.costs("q")).count == 1
    hive._run(commands.announce("w1", {"host": "here"}, 60))
    assert [one["id"] for one in hive._run(commands.workers())] == ["w1"]
    hive._run(commands.leave("w1"))
    assert hive._run(commands.events("q", "", 10))
    assert "q" in hive.queues()
    hive.queue("q").destroy()


def swept(q: Queue, job_id: str) -> bool:
    return job_id in q.sweep()


class Monitor:
    """Every command a server runs, with those that scripts run inside it."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._server = server
        self.lines: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read)
        self._begun = threading.Event()
        self._thread.start()
        self._begun.wait(20)

    def _read(self) -> None:
        client: Any = self._client
        with client.monitor() as monitor:
            self._begun.set()
            for line in monitor.listen():
                if "the end" in str(line["command"]):
                    return
                self.lines.append(line)

    def stop(self) -> list[dict[str, Any]]:
        ask(self._server, "ECHO", "the end")
        self._thread.join(20)
        self._client.close()
        return self.lines


def test_no_script_touches_a_key_it_did_not_declare(nodes: list[Server]) -> None:
    """And none leaves its slot: such a call would be an error, as would one on the wrong server."""
    by_digest = {scripts.script(name).sha: name for name in scripts.names()}
    ran: set[str] = set()
    strangers: set[tuple[str, str]] = set()
    touched = 0
    with Hive(url(*nodes), prefix="all") as hive:
        use_every_script(hive)  # from here on the servers know the scripts by their digests
        monitors = [Monitor(node) for node in nodes]
        use_every_script(hive)
    for monitor in monitors:
        declared: set[str] = set()
        name = ""
        for line in monitor.stop():
            words = line["command"].split(" ")
            if line["client_type"] != "lua":
                if words[0] == "EVALSHA":
                    declared = set(words[3 : 3 + int(words[2])])
                    assert len({key_slot(key.encode()) for key in declared}) == 1
                    name = by_digest[words[1]]
                    ran.add(name)
                continue
            for key in keys_of(words):
                touched += 1
                if key not in declared:
                    strangers.add((name, key))
    assert strangers == set()
    assert touched > 300
    assert ran == set(scripts.names()), "a new script wants a call in use_every_script"


def keys_of(words: list[str]) -> list[str]:
    """The keys of a command that a script runs: the first word, but for the few with others."""
    match words[0].upper():
        case "TIME" | "PUBLISH":
            return []
        case "DEL" | "UNLINK":
            return words[1:]
        case _:
            return words[1:2]


def test_every_call_works_where_slots_are_shared(nodes: list[Server]) -> None:
    with Hive(url(*nodes), prefix="shared") as hive:
        for number in range(20):  # of many names some lie on each server
            q = hive.queue(f"q{number}")
            q.dispatch(number)
            lease = q.lease(wait=1)
            assert lease is not None
            lease.ack()
        assert len(hive.queues()) == 20
        calls = [hive.queue(f"q{n}").bind(n) for n in range(20)]
        assert [job.queue for job in hive.dispatch_many(calls)] == [f"q{n}" for n in range(20)]
    for node in nodes:
        assert ask(node, "DBSIZE") > 10


def test_an_asyncio_hive_finds_its_way_too(nodes: list[Server]) -> None:
    async def main() -> None:
        async with AsyncHive(url(nodes[0]), prefix="aio") as hive:
            jobs = [await hive.queue(f"q{n}").dispatch(n) for n in range(10)]
            assert [await job.state() for job in jobs] == ["ready"] * 10
            waiting = asyncio.create_task(hive.queue("w").lease(wait=20))
            job = await hive.queue("w").dispatch(1)
            lease = await waiting
            assert lease is not None
            assert lease.id == job.id

    asyncio.run(main())


def test_one_server_of_a_cluster_given_as_a_plain_one_is_an_error_that_says_so(
    nodes: list[Server],
) -> None:
    _, _, there = owner(nodes, "plain:{q}:meta")
    with Hive(f"redis://127.0.0.1:{there.port}", prefix="plain") as hive:
        q = hive.queue("q")
        with pytest.raises(ServerRefused, match="Give it as cluster://"):
            q.stats()


def owner(nodes: list[Server], key: str) -> tuple[int, Server, Server]:
    """The slot of a key, the server that has it, and one that has not."""
    slot = key_slot(key.encode())
    for start, end, primary, *_ in ask(nodes[0], "CLUSTER", "SLOTS"):
        if start <= slot <= end:
            here = next(node for node in nodes if node.port == primary[1])
            return slot, here, next(node for node in nodes if node is not here)
    raise AssertionError(f"nobody has slot {slot}")


def test_a_slot_that_moves_under_load_takes_its_jobs_along(nodes: list[Server]) -> None:
    """MOVED is followed, TRYAGAIN waited out: nothing is lost, nothing twice."""
    with Hive(url(*nodes), prefix="move", connect_timeout=30) as hive:
        q = hive.queue("moving")
        slot, here, there = owner(nodes, hive._core.commands.keys("moving").name("meta"))
        sent: list[str] = []
        taken: list[str] = []
        stop = threading.Event()

        def produce() -> None:
            while not stop.is_set() or len(sent) < 50:
                sent.append(q.dispatch(len(sent)).id)

        def consume() -> None:
            while not (stop.is_set() and len(taken) >= len(sent) and not producer.is_alive()):
                if lease := q.lease(visibility=60, wait=0.05):
                    taken.append(lease.id)
                    lease.ack()

        producer = threading.Thread(target=produce)
        consumer = threading.Thread(target=consume)
        producer.start()
        consumer.start()
        until(lambda: len(taken) > 10, "work goes on")
        move_slot(nodes, slot, here, there)
        size = len(taken)
        until(lambda: len(taken) > size + 10, "work goes on behind the move")
        stop.set()
        producer.join(60)
        consumer.join(60)
        assert sorted(taken) == sorted(sent)
        assert q.stats().succeeded == len(sent)
        assert ask(there, "CLUSTER", "COUNTKEYSINSLOT", slot) > 0


def test_a_key_on_its_way_to_another_server_is_asked_for_there(nodes: list[Server]) -> None:
    """Between the move of a key and that of its slot, ASK says where it is."""
    with Hive(url(*nodes), prefix="asked") as hive:
        hive.queue("a").dispatch(1)
        key = "asked:queues"
        slot, here, there = owner(nodes, key)
        names = [ask(node, "CLUSTER", "MYID").decode() for node in (here, there)]
        ask(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        ask(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        ask(here, "MIGRATE", "127.0.0.1", there.port, "", 0, 5000, "KEYS", key)
        assert hive.queues() == ["a"]
        hive.queue("b").dispatch(1)
        assert hive.queues() == ["a", "b"]
        for node in (there, here):
            ask(node, "CLUSTER", "SETSLOT", slot, "NODE", names[1])
        assert hive.queues() == ["a", "b"]
