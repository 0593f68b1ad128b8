from __future__ import annotations

import asyncio

from taskhive import AsyncHive
from tests.servers import Server


def test_a_job_is_dispatched_leased_and_acknowledged(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with AsyncHive(server.url, prefix=prefix) as hive:
            q = hive.queue("q")
            waiting = asyncio.create_task(q.lease(wait=20))
            job = await q.dispatch(1, b=2)
            lease = await waiting
            assert lease is not None
            assert (lease.id, lease.args, lease.kwargs) == (job.id, (1,), {"b": 2})
            async with lease:
                await lease.extend(5)
            assert await job.state() == "succeeded"

    asyncio.run(main())
