"""What can be seen of jobs while they run: progress, attempts, events."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskhive import AsyncHive, ConfigurationError, Hive, ResultTimeout
from taskhive.events import Event
from tests.servers import Server, until


def kinds(events: Any) -> list[str]:
    return [str(event.kind) for event in events]


def test_progress_is_seen_from_anywhere_and_the_last_is_kept(hive: Hive, tmp_path: Path) -> None:
    job = hive.queue("counts").dispatch(5000)
    assert job.result(timeout=30) == 5000
    progress = job.progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.note) == (5000, 5000, {"of": 5000})
    running = hive.queue("stops").dispatch(str(tmp_path))
    until(lambda: running.progress() is not None, "its progress is known while it runs")
    assert running.state() == "active"
    assert running.cancel()
    assert hive.queue("echo").options(delay=60).dispatch().progress() is None


def test_every_attempt_is_told_with_its_error(hive: Hive) -> None:
    job = hive.queue("flaky").dispatch()
    assert job.result(timeout=30) == "now"
    first, second = job.attempts()
    assert first.error is not None
    assert (first.error.type, first.error.message) == ("ValueError", "not yet")
    assert "flaky" in first.error.traceback
    assert second.error is None


def test_the_events_of_a_job_end_with_its_end(hive: Hive) -> None:
    job = hive.queue("flaky").dispatch()
    events = list(job.events())
    told = [kind for kind in kinds(events) if kind not in ("progress", "dispatched")]
    assert told == ["started", "retrying", "started", "succeeded"]
    retrying = next(event for event in events if event.kind == "retrying")
    assert retrying.error is not None
    assert (retrying.error.type, retrying.error.message) == ("ValueError", "not yet")
    assert (retrying.attempt, retrying.job_id, retrying.queue) == (1, job.id, "flaky")
    assert kinds(job.events())[-1] == "succeeded"  # again, though it has ended


def test_the_progress_of_a_job_is_among_its_events(hive: Hive, tmp_path: Path) -> None:
    job = hive.queue("stops").dispatch(str(tmp_path))
    events = job.events()
    progress = next(event.progress for event in events if event.kind == "progress")
    assert progress is not None
    assert (progress.done, progress.total) == (1, 2)
    assert job.cancel()
    assert kinds(events)[-1] == "cancelled"


def ended(hive: Hive, queue: str, **options: Any) -> Any:
    job = hive.queue(queue).options(**options).dispatch()
    lease = hive.queue(queue).lease(wait=30)
    assert lease is not None
    lease.ack()
    return job


def test_an_end_is_told_also_where_no_event_is_kept(idle: Hive, place: Server) -> None:
    job = ended(idle, "q")
    with place.client() as client:
        client.delete(idle._core.commands.keys("q").events)
    assert kinds(job.events()) == ["succeeded"]
    idle.queue("silent").configure(events=False)
    quiet = ended(idle, "silent")
    assert kinds(quiet.events()) == ["succeeded"]
    with place.client() as client:
        assert not client.exists(idle._core.commands.keys("silent").events)
    idle.queue("silent").configure(events=True)
    assert kinds(ended(idle, "silent").events())[-1] == "succeeded"
    gone = ended(idle, "q", result_ttl=0)
    assert set(kinds(gone.events())) <= {"dispatched", "started", "succeeded"}


def test_a_handle_hears_of_its_own_run_and_not_of_one_before(idle: Hive) -> None:
    first = ended(idle, "q", id="x")
    assert kinds(first.events()) == ["dispatched", "started", "succeeded"]
    second = idle.queue("q").options(id="x").dispatch()
    heard: list[str] = []
    thread = threading.Thread(target=lambda: heard.extend(kinds(second.events())))
    thread.start()
    lease = idle.queue("q").lease(wait=30)
    assert lease is not None
    lease.fail("no", permanent=True)
    thread.join(30)
    assert heard == ["dispatched", "started", "failed"]


def test_a_reader_of_a_queue_goes_on_where_it_was(idle: Hive, place: Server) -> None:
    q = idle.queue("q")
    events: Iterator[Event] = q.events()
    job = ended(idle, "q")
    seen = list(itertools.islice(events, 2))
    with place.client() as client:  # its connection is lost in the middle
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    seen += list(itertools.islice(events, 1))
    assert kinds(seen) == ["dispatched", "started", "succeeded"]
    assert {event.job_id for event in seen} == {job.id}
    assert seen[0].at is not None
    again = list(itertools.islice(q.events(after=seen[0]), 2))
    assert again == seen[1:]
    assert list(itertools.islice(q.events(after=""), 3)) == seen


def test_all_queues_are_followed_also_new_ones(idle: Hive) -> None:
    idle.queue("a").dispatch()
    events = idle.events()
    idle.queue("a").dispatch()
    assert next(events).queue == "a"
    idle.queue("b").dispatch()
    event = next(events)
    assert (event.queue, event.kind) == ("b", "dispatched")


def test_events_are_followed_on_a_loop(place: Server, prefix: str) -> None:
    async def main() -> None:
        async with AsyncHive(place.url, prefix=prefix) as hive:
            q = hive.queue("q")
            everything = hive.events()
            first = asyncio.ensure_future(anext(everything))
            await asyncio.sleep(0.1)
            job = await q.dispatch()
            assert (await first).kind == "dispatched"
            lease = await q.lease()
            assert lease is not None
            await lease.ack()
            assert kinds([event async for event in job.events()]) == [
                "dispatched",
                "started",
                "succeeded",
            ]
            async for event in q.events(after=""):
                if event.kind == "succeeded":
                    break
            assert await job.progress() is None
            assert len(await job.attempts()) == 1

    asyncio.run(main())


def test_a_wrong_cancel_or_setting_is_refused(idle: Hive) -> None:
    job = idle.queue("q").dispatch()
    for options in ({"grace": -1}, {"cooperative": 1}, {"cooperative": True, "grace": 3}):
        with pytest.raises(ConfigurationError):
            job.cancel(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="nothing is given"):
        idle.queue("q").configure()
    with pytest.raises(ResultTimeout):
        job.result(0)
