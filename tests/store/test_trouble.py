"""Servers in trouble: each answer of theirs is met as it must be, on real ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from taskhive import (
    AsyncHive,
    Hive,
    NotDurable,
    QueueFull,
    RedisUnavailable,
    ServerRefused,
)
from taskhive.aio_broker import AsyncBroker
from taskhive.broker import Broker
from taskhive.effects import Pause
from taskhive.session import EvictingServer
from tests.servers import Server, free_port, programs, running, until


@pytest.fixture(params=sorted(programs()))
def program(request: pytest.FixtureRequest) -> Path:
    return programs()[request.param]


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="th-") as directory:
        yield Path(directory)


@pytest.fixture
def own(program: Path, place: Path) -> Iterator[Server]:
    """A server that this test may hurt."""
    with running(program, place) as server:
        yield server


def healing(hive: Hive, heal: Callable[[], object]) -> Hive:
    """A hive whose first wait for the server is the moment in which the server recovers."""

    class Nurse(Broker):
        healed = False

        def _other(self, effect: Any, subscription: Any) -> Any:
            if isinstance(effect, Pause) and not Nurse.healed:
                Nurse.healed = True
                heal()
            return super()._other(effect, subscription)

    hive._broker = Nurse(hive._core.target, hive._core.directory, 2.0)
    hive.nurse = Nurse  # type: ignore[attr-defined]
    return hive


def was_healed(hive: Hive) -> bool:
    return bool(hive.nurse.healed)  # type: ignore[attr-defined]


def errors(server: Server, code: str) -> int:
    with server.client() as client:
        return int(client.info("errorstats").get(f"errorstat_{code}", {"count": 0})["count"])


# Scripts that are not known


def test_scripts_are_sent_again_after_a_flush_and_after_a_restart(own: Server) -> None:
    with Hive(own.url) as hive, own.client() as admin:
        q = hive.queue("q")
        q.dispatch(1)
        admin.script_flush()
        q.dispatch(2)
        admin.script_flush()
        lease = q.lease()
        admin.script_flush()
        assert lease is not None
        lease.ack()
        assert q.stats().succeeded == 1
        own.kill()
        own.start()
        q.dispatch(3)
        assert q.stats().ready == 1  # nothing was kept, as this server was told
        assert errors(own, "NOSCRIPT") >= 2  # one for each script, and none after that


def test_a_script_is_sent_whole_once_and_by_its_digest_from_then_on(own: Server) -> None:
    with Hive(own.url) as hive, own.client() as admin:
        for number in range(5):
            hive.queue("q").dispatch(number)
        calls = {name: facts["calls"] for name, facts in admin.info("commandstats").items()}
        assert (calls["cmdstat_eval"], calls["cmdstat_evalsha"]) == (1, 5)


# Servers that cannot just now


def test_a_replica_that_becomes_the_primary_is_waited_for(own: Server) -> None:
    with own.client() as admin, healing(Hive(own.url), lambda: admin.replicaof("NO", "ONE")) as hive:
        admin.replicaof("127.0.0.1", str(free_port()))  # nobody is there: it stays what it is
        job = hive.queue("q").options(id="a").dispatch(1)
        assert was_healed(hive)
        assert (job.state(), hive.queue("q").stats().created) == ("ready", 1)
        assert errors(own, "READONLY") >= 1


def test_a_server_that_is_still_loading_is_waited_for(program: Path, place: Path) -> None:
    slowly = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
    with running(program, place, 0, *slowly) as server, server.client() as admin:
        with Hive(server.url) as hive:
            hive.queue("q").dispatch(1)
        for number in range(150):
            admin.set(f"ballast-{number}", os.urandom(100))
        admin.save()
        server.kill()
        server.launch()
        until((place / "s").exists, "its socket is there")
        with Hive(server.url) as hive:
            hive.ping(wait=20)
            assert hive.queue("q").stats().ready == 1
        assert errors(server, "LOADING") >= 1


def test_a_server_held_up_by_a_long_script_is_waited_for(own: Server) -> None:
    killer, hog = own.client(), own.client()
    killer.config_set("busy-reply-threshold", "5")

    def spin() -> None:
        with pytest.raises(redis.ResponseError, match="killed"):
            hog.eval("while true do end", 0)

    with healing(Hive(own.url), killer.script_kill) as hive:
        hive.queue("q").dispatch(1)
        thread = threading.Thread(target=spin)
        thread.start()
        until(lambda: refused(killer, "BUSY"), "the server is held up")
        hive.queue("q").dispatch(2)
        thread.join(20)
        assert was_healed(hive)
        assert hive.queue("q").stats().created == 2
    killer.close()
    hog.close()


def refused(client: redis.Redis, word: str) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return word in str(error)
    return False


def test_a_server_that_cannot_write_to_its_disk_is_waited_for(program: Path, place: Path) -> None:
    disk = place / "disk"
    disk.mkdir()
    with running(program, place, 0, "--dir", str(disk), "--save", "3600 1") as server:
        admin = server.client()
        shutil.rmtree(disk)
        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err", "it noticed")
        heal = lambda: admin.config_set("stop-writes-on-bgsave-error", "no")  # noqa: E731
        with healing(Hive(server.url), heal) as hive:
            job = hive.queue("q").dispatch(1)
            assert was_healed(hive)
            assert job.state() == "ready"
        assert errors(server, "MISCONF") >= 1
        admin.close()


# Servers without memory


def test_without_memory_nothing_is_dispatched_but_work_goes_on(own: Server) -> None:
    with Hive(own.url) as hive, own.client() as admin:
        q = hive.queue("q")
        jobs = q.dispatch_many(range(4))
        first, second = q.lease(visibility=60), q.lease(visibility=60)
        assert first is not None
        assert second is not None
        admin.config_set("maxmemory", "1")
        with pytest.raises(QueueFull, match="used up its maxmemory"):
            q.dispatch(1)
        with pytest.raises(QueueFull, match="used up its maxmemory"):
            hive.queue("new").dispatch(1)
        first.extend(30)
        first.ack("done")
        second.fail("no", permanent=True)
        assert jobs[2].cancel()
        third = q.lease()
        assert third is not None
        third.release()
        q.pause()
        q.resume()
        assert [job.state() for job in jobs] == ["succeeded", "failed", "cancelled", "ready"]
        with pytest.raises(QueueFull):
            q.dead.retry(second.id)
        admin.config_set("maxmemory", "0")
        assert q.stats().created == 4  # what was refused has left nothing behind
        q.dispatch(1)


def test_an_evicting_server_is_warned_about_once(own: Server) -> None:
    with own.client() as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")

    async def several() -> None:
        async with AsyncHive(own.url) as hive:
            await asyncio.gather(*(hive.queue("q").dispatch(n) for n in range(5)))

    talks: list[Callable[[], None]] = [lambda: asyncio.run(several()), lambda: talked(Hive(own.url))]
    for talk in talks:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            talk()
        assert [one.category for one in caught] == [EvictingServer]
        assert "allkeys-lru" in str(caught[0].message)
        assert "Set it to noeviction" in str(caught[0].message)


def talked(hive: Hive) -> None:
    """Many first calls at once: one of them looks at the server for all."""
    with hive:
        threads = [threading.Thread(target=hive.queue("q").dispatch, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)


# Servers that refuse


def test_a_wrong_or_missing_password_is_an_error_with_advice_at_once(own: Server) -> None:
    with own.client() as admin:
        admin.config_set("requirepass", "secret")
    for url in (f"unix://{own.socket}", f"unix://:wr0ng@{own.socket}"):
        with Hive(url) as hive, pytest.raises(ServerRefused, match="Check user and password") as told:
            hive.queue("q").dispatch(1)
        assert "wr0ng" not in str(told.value)
    with Hive(f"unix://:secret@{own.socket}") as hive:
        assert hive.queue("q").dispatch(1).created
        assert "secret" not in f"{hive!r} {hive.settings} {hive._core.target!r}"


def test_a_user_who_may_not_listen_is_told_instead_of_left_to_poll(own: Server) -> None:
    with own.client() as admin:
        admin.execute_command("ACL", "SETUSER", "deaf", "on", ">p", "~*", "+@all", "resetchannels")
        with (
            Hive(f"unix://deaf:p@{own.socket}") as hive,
            pytest.raises(ServerRefused, match="PUBLISH, SUBSCRIBE"),
        ):
            hive.queue("q").lease(wait=20)


@pytest.mark.parametrize("version", ["1", "99", "x"])
def test_a_queue_of_another_version_is_refused_with_what_to_do(
    hive: Hive, server: Server, version: str
) -> None:
    q = hive.queue("q")
    q.dispatch(1)
    key = hive._core.commands.keys("q").name("meta")
    with server.client() as admin:
        admin.hset(key, "v", version)
        before = admin.dump(key)
        for call in (lambda: q.dispatch(2), q.stats, q.lease, lambda: q.cancel("a"), q.pause):
            with pytest.raises(ServerRefused, match="Use the same version of TaskHive"):
                call()
        assert admin.dump(key) == before


# Servers that are away


def test_a_server_that_is_away_is_an_error_after_the_patience(place: Path) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}"
    with Hive(nowhere, connect_timeout=0.2) as hive:
        with pytest.raises(RedisUnavailable, match=r"did not answer within 0\.2 s") as told:
            hive.queue("q").dispatch(1)
        assert told.value.seconds == 0.2
        assert "connect_timeout" in str(told.value)
        with pytest.raises(RedisUnavailable):
            hive.ping()
        with pytest.raises(RedisUnavailable):
            hive.queue("q").lease(wait=20)

    async def same() -> None:
        async with AsyncHive(nowhere, connect_timeout=0.2) as hive:
            with pytest.raises(RedisUnavailable, match=r"did not answer within 0\.2 s"):
                await hive.queue("q").dispatch(1)
            with pytest.raises(RedisUnavailable):
                await hive.ping()

    asyncio.run(same())


def test_a_server_that_takes_connections_but_never_answers_counts_as_away(own: Server) -> None:
    import signal

    with Hive(own.url, connect_timeout=0.3) as hive:
        hive.queue("q").dispatch(1)
        hive._broker = Broker(hive._core.target, hive._core.directory, 0.1)
        assert own.process is not None
        own.process.send_signal(signal.SIGSTOP)
        with pytest.raises(RedisUnavailable):
            hive.queue("q").dispatch(2)
        own.process.send_signal(signal.SIGCONT)
        assert hive.queue("q").stats().created >= 1


def test_an_idle_connection_that_was_closed_costs_no_patience(own: Server) -> None:
    with Hive(own.url, connect_timeout=0) as hive, own.client() as admin:
        for _ in range(3):
            hive.queue("q").dispatch(1)
            hive.ping()
            admin.client_kill_filter(_type="normal", skipme=True)
        assert hive.queue("q").stats().created == 3


def test_a_server_that_comes_later_is_waited_for(program: Path, place: Path) -> None:
    server = Server(program, place)
    with healing(Hive(server.url), server.start) as hive:
        try:
            hive.ping(wait=20)
            assert was_healed(hive)
            assert hive.queue("q").dispatch(1).created
        finally:
            server.stop()


# What is on disk


def test_nothing_acknowledged_as_durable_is_lost_by_kill_9_under_load(
    program: Path, place: Path
) -> None:
    with running(program, place, 0, "--appendonly", "yes") as server, Hive(server.url) as hive:
        with server.client() as admin:
            words = admin.info("server")["redis_version"].split(".")
        q = hive.queue("q").options(durable=True)
        if (int(words[0]), int(words[1])) < (7, 2):
            # It cannot be asked whether its disk has it, and says so instead of guessing.
            with pytest.raises(NotDurable, match=r"use Redis 7\.2 or newer") as told:
                q.dispatch(1)
            assert [job.state() for job in told.value.jobs] == ["ready"]
            return
        acknowledged: list[str] = []
        enough = threading.Event()

        def produce() -> None:
            while len(acknowledged) < 150:
                acknowledged.append(q.dispatch(len(acknowledged)).id)
                if len(acknowledged) == 60:
                    enough.set()

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        enough.wait(60)
        server.kill()
        server.start()
        for thread in threads:
            thread.join(60)
        assert len(acknowledged) >= 150
        assert [id for id in acknowledged if hive.job("q", id).state() != "ready"] == []
        taken = set()
        while lease := hive.queue("q").lease():
            taken.add(lease.id)
        assert taken >= set(acknowledged)


def test_what_holders_acknowledged_stays_settled_after_kill_9(program: Path, place: Path) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with running(program, place, 0, *options) as server, Hive(server.url) as hive:
        q = hive.queue("q")
        q.dispatch_many(range(20))
        leases = [q.lease(visibility=60) for _ in range(10)]
        for lease in leases[:5]:
            assert lease is not None
            lease.ack()
        server.kill()
        server.start()
        for lease in leases[5:]:  # the lease is as good as before
            assert lease is not None
            lease.ack()
        stats = q.stats()
        assert (stats.succeeded, stats.ready, stats.active) == (10, 10, 0)


@contextmanager
def counted_files() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    yield
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_trouble_leaves_no_connection_behind(own: Server) -> None:
    with Hive(own.url) as hive, own.client() as admin:
        hive.queue("q").dispatch(1)
        with counted_files():
            for _ in range(20):
                admin.client_kill_filter(_type="normal", skipme=True)
                hive.queue("q").stats()


def test_the_asyncio_client_waits_for_a_replica_to_be_promoted_too(own: Server) -> None:
    class Nurse(AsyncBroker):
        healed = False

        async def _other(self, effect: Any, subscription: Any) -> Any:
            if isinstance(effect, Pause) and not Nurse.healed:
                Nurse.healed = True
                with own.client() as admin:
                    admin.replicaof("NO", "ONE")
            return await super()._other(effect, subscription)

    async def main() -> None:
        async with AsyncHive(own.url) as hive:
            hive._broker = Nurse(hive._core.target, hive._core.directory, 2.0)
            with own.client() as admin:
                admin.replicaof("127.0.0.1", str(free_port()))
            job = await hive.queue("q").dispatch(1)
            assert Nurse.healed
            assert await job.state() == "ready"

    asyncio.run(main())
