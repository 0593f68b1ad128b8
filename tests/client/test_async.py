"""AsyncHive: everything awaited, on any loop, and a cancelled await leaves nothing broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from taskhive import AsyncHive, JobTimeout, ResultTimeout
from tests.client.conftest import PREFIX, SECRET
from tests.servers import Server
from tests.workers import Worker

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a new loop of each kind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work)

    return run


def test_results_failures_and_many_waiters_are_awaited(place: Server, worker: Worker, run: Run) -> None:
    async def main() -> None:
        async with AsyncHive(place.url, prefix=PREFIX, secret=SECRET) as hive:
            job = await hive.queue("add").dispatch(2, 3)
            assert await job.result(timeout=30) == 5
            bad = await hive.queue("fails").dispatch("built-in")
            with pytest.raises(ValueError, match="bad number 3") as caught:
                await bad.result(timeout=30)
            assert caught.traceback[-1].name == "inner"
            with pytest.raises(JobTimeout):
                await (await hive.queue("hangs").dispatch()).result(timeout=30)
            jobs = await hive.queue("echo").dispatch_many(range(300))
            assert await hive.gather(jobs, timeout=60) == list(range(300))
            seen = {done.id async for done in hive.as_completed(jobs, timeout=30)}
            assert seen == {job.id for job in jobs}
            done, missing = await hive.wait(jobs, timeout=30)
            assert (len(done), len(missing)) == (300, 0)

    run(main())


def test_a_thousand_results_are_awaited_at_once_on_one_connection(
    place: Server, prefix: str, run: Run
) -> None:
    async def main() -> None:
        async with AsyncHive(place.url, prefix=prefix) as hive:
            q = hive.queue("q")
            jobs = await q.dispatch_many(range(1000))
            with place.client() as client:
                before = len(client.client_list())
                waiting = [asyncio.create_task(job.result(timeout=60)) for job in jobs]
                while sum(client.pubsub_numsub(hive._core.commands.keys("q").done)[0][1:]) == 0:
                    await asyncio.sleep(0)
                assert len(client.client_list()) - before == 1
                for number in range(1000):
                    lease = await q.lease()
                    assert lease is not None
                    await lease.ack(number)
                assert await asyncio.gather(*waiting) == list(range(1000))

    run(main())


def test_a_cancelled_await_leaves_no_broken_connection(place: Server, prefix: str, run: Run) -> None:
    async def main() -> None:
        async with AsyncHive(place.url, prefix=prefix) as hive:
            q = hive.queue("q")
            jobs = await q.dispatch_many(range(40))
            for step, job in enumerate(jobs[:-1]):
                waiting = asyncio.create_task(job.result())
                stats = asyncio.create_task(q.stats())
                for _ in range(step % 7):
                    await asyncio.sleep(0)
                waiting.cancel()
                stats.cancel()
                await asyncio.gather(waiting, stats, return_exceptions=True)
            assert (await q.stats()).ready == 40
            with pytest.raises(ResultTimeout):
                await jobs[0].result(timeout=0.01)
            lease = await q.lease()
            assert lease is not None
            await lease.ack("x")
            assert await jobs[0].result(timeout=30) == "x"

    run(main())


def test_a_hive_serves_one_loop_after_the_other(place: Server, prefix: str, run: Run) -> None:
    hive = AsyncHive(place.url, prefix=prefix)

    async def main(number: int) -> None:
        job = await hive.queue("q").dispatch()
        lease = await hive.queue("q").lease()
        assert lease is not None
        await lease.ack(number)
        assert await job.result(timeout=30) == number
        await hive.close()

    for number in range(2):
        run(main(number))


def test_a_waiter_on_a_loop_outlives_the_loss_of_its_connection(
    place: Server, prefix: str, run: Run
) -> None:
    async def main() -> None:
        async with AsyncHive(place.url, prefix=prefix) as hive:
            job = await hive.queue("q").dispatch()
            waiting = asyncio.create_task(job.result(timeout=60))
            with place.client() as client:
                channel = hive._core.commands.keys("q").done
                for _ in range(2):
                    while client.pubsub_numsub(channel)[0][1] == 0:
                        await asyncio.sleep(0.01)
                    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            lease = await hive.queue("q").lease()
            assert lease is not None
            await lease.ack("through")
            assert await waiting == "through"

    run(main())


def test_any_number_of_waiters_takes_one_connection(place: Server, prefix: str, run: Run) -> None:
    def connections() -> int:
        with place.client() as client:
            return sum(one["name"] == prefix for one in client.client_list())

    async def main() -> None:
        named = AsyncHive(place.url, prefix=prefix, client_options={"client_name": prefix})
        async with named as hive, AsyncHive(place.url, prefix=prefix) as other:
            counts = []
            for many in (1, 1000):
                sent = await other.queue("q").dispatch_many(range(many))
                jobs = [hive.job("q", job.id) for job in sent]
                waiting = asyncio.gather(*(job.result() for job in jobs))
                for _ in jobs:
                    lease = await other.queue("q").lease()
                    assert lease is not None
                    await lease.ack(lease.data)
                assert await waiting == list(range(many))
                counts.append(connections())
            assert counts == [1, 1]

    run(main())
