"""A first look: dispatch a few jobs, lease them, settle them, watch the numbers.

    python examples/first_job.py

It uses the embedded server (or TASKHIVE_URL) and a queue of its own, which it destroys at the end.
"""

from __future__ import annotations

import secrets

from taskhive import Hive, Lease, Queue


def main() -> None:
    # A name nobody else has: two of these programs may run at once.
    name = f"first-job-{secrets.token_hex(4)}"
    with Hive() as hive:
        hive.ping(wait=10)  # starts the embedded server if it has to
        print(f"Server: {hive.settings.server}, answers in {hive.ping() * 1000:.1f} ms")
        q = hive.queue(name)
        try:
            show(hive, q)
        finally:
            q.destroy()
        print(f"\nThe queue is destroyed. Still listed: {name in hive.queues()}")


def show(hive: Hive, q: Queue) -> None:
    print("\n1. Dispatch: one job, one with an id and a delay, three at once")
    job = q.dispatch("a.png", width=64)
    later = q.options(id="b.png", delay=30).dispatch("b.png")
    batch = q.dispatch_many(["c.png", "d.png", "e.png"])
    for one in (job, later, *batch):
        print(f"   {one.id:24} {one.state()}")
    numbers(q)

    print("\n2. Lease a job and acknowledge it with a result")
    lease = taken(q)
    print(f"   leased {lease.args} {lease.kwargs}, try {lease.tries}")
    print(f"   while it runs it is {job.state()}")
    lease.ack({"bytes": 1234})
    print(f"   then {job.state()}, with the result {job.info().result}")

    print("\n3. An exception in a with-block is a failed attempt")
    try:
        with taken(q) as lease:
            raise ValueError("not an image")
    except ValueError:
        info = hive.job(q.name, lease.id).info()
        assert info.error is not None
        print(f"   {info.error.type}: {info.error.message}")
        print(f"   {info.counts.retries} retry counted; it comes again after a backoff ({info.state})")

    print("\n4. Give one up: it becomes a dead letter, and a failure job is made")
    lease = taken(q)
    lease.fail("the disk is gone", permanent=True)
    for dead in q.dead.jobs():
        assert dead.error is not None
        print(f"   dead: {dead.args[0]}, {dead.error.kind}: {dead.error.message}")
    print(f"   waiting in {q.name}:fail: {hive.queue(q.name + ':fail').stats().ready}")
    print(f"   tried again: {q.dead.retry(lease.id)}")

    print("\n5. An id is one job: a second dispatch updates the one that waits")
    again = q.options(id="b.png").dispatch("b2.png")
    print(f"   made a new one: {again.created}; its argument now: {again.info().args[0]}")
    print(f"   cancelled: {again.cancel()}, so it is {again.state()}")
    numbers(q)


def taken(q: Queue) -> Lease:
    lease = q.lease(visibility=30, wait=5)
    assert lease is not None, "somebody else has taken the jobs of this queue"
    return lease


def numbers(q: Queue) -> None:
    s = q.stats()
    now = f"{s.ready} ready, {s.delayed} delayed, {s.active} active, {s.dead} dead"
    print(f"   now: {now}\n   ever: {s.succeeded} succeeded, {s.failed} failed, {s.cancelled} cancelled")


if __name__ == "__main__":
    main()
