"""One hive for many: threads, forks, event loops, and awaits that are cancelled."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from taskhive import AsyncHive, Hive
from tests.proxy import Fault, proxied
from tests.servers import Server, until


def test_threads_share_a_hive_and_each_gets_its_own_answers(hive: Hive) -> None:
    wrong: list[object] = []

    def talk(number: int) -> None:
        q = hive.queue(f"q{number % 3}")
        for n in range(40):
            job = q.options(id=f"{number}.{n}").dispatch(number, n=n)
            if job.info().args != (number,) or job.info().kwargs != {"n": n}:
                wrong.append(job)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert [hive.queue(f"q{n}").stats().ready for n in range(3)] == [120, 120, 80]


def test_threads_lease_each_job_once(hive: Hive) -> None:
    q = hive.queue("q")
    q.dispatch_many(range(100))
    taken: list[str] = []

    def consume() -> None:
        while lease := q.lease(visibility=60):
            taken.append(lease.id)
            lease.ack()

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(taken), len(set(taken))) == (100, 100)
    assert q.stats().succeeded == 100


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(hive: Hive, server: Server) -> None:
    """Both sides talk at the same time on what was one hive: no reply may go to the other."""
    q = hive.queue("q")
    q.dispatch("parent")
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                right = [
                    q.options(id=f"c{number}.{n}").dispatch(n).info().args == (n,) for n in range(30)
                ]
                code = 0 if all(right) else 2
            finally:
                os._exit(code)
        children.append(child)
    wrong = [n for n in range(60) if q.options(id=f"p.{n}").dispatch(n).info().args != (n,)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert (codes, wrong) == ([0, 0, 0], [])
    assert q.stats().created == 151


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_a_thread_talks_leaves_the_child_a_hive_that_works(hive: Hive) -> None:
    q = hive.queue("q")
    stop = threading.Event()

    def talk() -> None:
        while not stop.is_set():
            q.stats()

    thread = threading.Thread(target=talk)
    thread.start()
    codes = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a lock held by a thread that is not here would be waited for for ever
            code = 1
            try:
                q.dispatch(1)
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    thread.join(20)
    assert codes == [0] * 5
    assert q.stats().created == 5


def on_a_loop_of_its_own(coroutine: Coroutine[Any, Any, None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(coroutine))
    thread.start()
    return thread


def test_an_asyncio_hive_serves_two_loops_at_once_and_one_after_the_other(
    server: Server, prefix: str
) -> None:
    hive = AsyncHive(server.url, prefix=prefix)
    wrong: list[int] = []

    async def talk(number: int) -> None:
        q = hive.queue("q")
        for n in range(30):
            job = await q.options(id=f"{number}.{n}").dispatch(number, n=n)
            if (await job.info()).kwargs != {"n": n}:
                wrong.append(n)
        await hive.close()

    for pair in ((0, 1), (2, 3)):
        for thread in [on_a_loop_of_its_own(talk(number)) for number in pair]:
            thread.join(60)
    gc.collect()  # a connection left open would be noticed here
    assert not wrong
    with Hive(server.url, prefix=prefix) as plain:
        assert plain.queue("q").stats().created == 120


def test_after_many_cancelled_awaits_every_reply_still_belongs_to_its_request(
    server: Server, prefix: str
) -> None:
    rng = random.Random(3)
    cancelled = 0

    async def ask(hive: AsyncHive, number: int) -> None:
        job = await hive.queue("q").options(id=f"j{number}").dispatch(number)
        for _ in range(3):
            info = await job.info()
            assert (info.id, info.args) == (f"j{number}", (number,))

    async def main() -> None:
        nonlocal cancelled
        async with AsyncHive(server.url, prefix=prefix) as hive:
            await hive.ping()
            for start in range(0, 160, 20):
                tasks = [asyncio.ensure_future(ask(hive, start + n)) for n in range(20)]
                for _ in range(rng.randrange(30)):
                    await asyncio.sleep(0)
                for task in tasks:
                    if rng.random() < 0.5:
                        task.cancel()
                for one in await asyncio.gather(*tasks, return_exceptions=True):
                    cancelled += isinstance(one, asyncio.CancelledError)
                    assert one is None or isinstance(one, asyncio.CancelledError), one
            await asyncio.gather(*(ask(hive, n) for n in range(160)))
            assert (await hive.queue("q").stats()).ready == 160

    asyncio.run(main())
    gc.collect()
    assert cancelled >= 30


def test_hundreds_of_tasks_share_a_few_connections(server: Server, prefix: str) -> None:
    admin = server.client()

    async def main() -> None:
        async with AsyncHive(server.url, prefix=prefix) as hive:
            q = hive.queue("q")
            before = admin.info("stats")["total_connections_received"]
            jobs = await asyncio.gather(*(q.dispatch(n) for n in range(300)))
            assert len({job.id for job in jobs}) == 300
            assert admin.info("stats")["total_connections_received"] - before <= 64

    asyncio.run(main())
    admin.close()


def test_an_await_cancelled_in_the_middle_of_a_reply_closes_its_connection(
    server: Server, prefix: str
) -> None:
    async def main() -> None:
        with proxied(server.socket) as proxy:
            async with AsyncHive(proxy.url, prefix=prefix) as hive:
                q = hive.queue("q")
                await q.dispatch(0)
                proxy.plan.append(Fault.HOLD_REPLY)
                task = asyncio.ensure_future(q.options(id="held").dispatch(1))
                before = proxy.requests
                while proxy.requests == before:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                proxy.let_go.set()
                assert (await q.stats()).created in (1, 2)  # it may have been done, or not
                assert (await q.options(id="held").dispatch(2)).id == "held"
                assert (await hive.job("q", "held").info()).args == (2,)

    asyncio.run(main())
    gc.collect()


def test_a_cancelled_wait_for_a_job_takes_none_and_leaves_no_connection(
    server: Server, hive: Hive, prefix: str
) -> None:
    admin = server.client()

    def ears() -> int:
        return sum(int(one["sub"]) for one in admin.client_list())

    others = ears()

    async def main() -> None:
        async with AsyncHive(server.url, prefix=prefix) as waiting:
            tasks = [asyncio.ensure_future(waiting.queue("q").lease(wait=60)) for _ in range(5)]
            while ears() < others + 5:
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(one, asyncio.CancelledError)
                for one in await asyncio.gather(*tasks, return_exceptions=True)
            )

    asyncio.run(main())
    until(lambda: ears() == others, "nobody listens any more")
    job = hive.queue("q").dispatch(1)
    assert job.state() == "ready"
    admin.close()


def test_ctrl_c_in_the_middle_of_a_reply_closes_the_connection(server: Server, prefix: str) -> None:
    with proxied(server.socket) as proxy, Hive(proxy.url, prefix=prefix) as hive:
        q = hive.queue("q")
        q.dispatch(0)

        def interrupt() -> None:
            until(lambda: proxy.happened[Fault.HOLD_REPLY] == 1, "it waits for its reply")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        proxy.plan.append(Fault.HOLD_REPLY)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            q.options(id="held").dispatch(1)
        thread.join(20)
        proxy.let_go.set()
        assert q.options(id="held").dispatch(2).info().args == (2,)
