"""What taskhive.testing gives to the tests of others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskhive import (
    AsyncHive,
    ConfigurationError,
    HandlerError,
    Hive,
    NoCurrentJob,
    RemoteError,
    Retry,
    current_job,
)
from taskhive.context import CurrentJob, Failure
from taskhive.testing import Inline, taskhive_inline, taskhive_url, taskhive_worker
from tests.workers import ROOT

__all__ = ["taskhive_inline", "taskhive_url", "taskhive_worker"]

Start = Callable[..., Inline]


def test_a_worker_of_a_test_and_who_talks_to_it_have_the_secret_of_the_test_alone(
    taskhive_worker: Callable[..., Hive], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHIVE_SECRET", "the secret of the program that is tested, say")
    file = tmp_path / "twice.py"
    file.write_text(
        "from taskhive import Hive\nhive = Hive()\n@hive.handler\ndef twice(n): return 2 * n\n"
    )
    for given in ({}, {"secret": "a-secret-of-this-test-and-of-its-worker"}):
        hive = taskhive_worker(file, **given)
        assert hive.queue("twice").dispatch(2).result(timeout=30) == 4
        assert (hive._core.ring() is None) == (not given)


def handlers() -> tuple[Hive, list[Any]]:
    """A hive with handlers, and what they have seen."""
    hive = Hive("redis://somewhere.invalid")
    seen: list[Any] = []

    @hive.handler
    def add(a: int, b: int = 0) -> int:
        return a + b

    @hive.handler(max_retries=2)
    def flaky(times: int, job: CurrentJob) -> int:
        if job.attempt <= times:
            raise (Retry(after=60) if job.attempt == 1 else ValueError("not yet"))
        return job.attempt

    @flaky.on_failure
    def gave_up(failure: Failure) -> None:
        seen.append((failure.args, failure.error.type, failure.kind))

    @hive.handler
    def not_json() -> object:
        return object()

    @hive.handler
    def chain(left: int) -> str:
        seen.append((current_job().id, left))
        if left:
            chain.dispatch(left - 1)
        return "done"

    @hive.handler(max_retries=0)
    def waits() -> int:
        return add.dispatch(1, 2).result(timeout=5)

    @hive.handler
    async def awaited(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    return hive, seen


def test_inline_handlers_run_before_anything_is_waited_for(taskhive_inline: Start) -> None:
    hive, _ = handlers()
    taskhive_inline(hive)
    job = hive.queue("add").dispatch(1, b=2)
    assert job.state() == "ready"
    assert job.result(timeout=30) == 3
    assert hive.gather(hive.queue("add").dispatch_many([1, 2]), timeout=30) == [1, 2]
    assert hive.queue("awaited").dispatch(1).result(timeout=30) == 2
    with pytest.raises(NoCurrentJob):
        current_job()


def test_inline_handlers_are_retried_and_given_up_as_in_a_worker(taskhive_inline: Start) -> None:
    hive, seen = handlers()
    run = taskhive_inline(hive)
    assert hive.queue("flaky").dispatch(2).result(timeout=30) == 3
    job = hive.queue("flaky").dispatch(9)
    with pytest.raises(ValueError, match="not yet") as caught:
        job.result(timeout=30)
    assert caught.traceback[-1].name == "flaky"
    assert job.info().counts.retries == 2
    assert seen == [((9,), "ValueError", "error")]
    assert run.attempts == 7


def test_what_could_not_travel_fails_inline_as_well(taskhive_inline: Start) -> None:
    hive, _ = handlers()
    run = taskhive_inline(hive)
    job = hive.queue("not_json").dispatch()
    with pytest.raises(Exception, match="object is not JSON"):
        job.result(timeout=30)
    assert job.info().error is not None
    with pytest.raises(RemoteError, match="WouldDeadlock"):
        hive.queue("waits").dispatch().result(timeout=30)
    wrong = hive.queue("add").dispatch("a", 1, 2, 3)
    with pytest.raises(TypeError):
        wrong.result(timeout=30)
    later = hive.queue("add").options(delay=60).dispatch(1)
    run.run()
    assert later.state() == "delayed"


def test_what_a_handler_dispatches_is_run_too(taskhive_inline: Start) -> None:
    hive, seen = handlers()
    run = taskhive_inline(hive)
    hive.queue("chain").dispatch(3)
    assert run.run() == 4
    assert [left for _, left in seen] == [3, 2, 1, 0]


def test_a_hive_is_itself_again_after_the_test(taskhive_inline: Start, taskhive_url: str) -> None:
    from taskhive.testing import inline

    hive, _ = handlers()
    with inline(hive, url=taskhive_url):
        hive.queue("add").dispatch(1)
    assert "somewhere.invalid" in repr(hive)
    assert hive.prefix == "th"
    with pytest.raises(ConfigurationError, match="no handler"):
        taskhive_inline(Hive())


def test_inline_handlers_serve_an_async_program(taskhive_inline: Start) -> None:
    hive = AsyncHive("redis://somewhere.invalid")

    @hive.handler
    def double(n: int) -> int:
        return 2 * n

    taskhive_inline(hive)

    async def main() -> None:
        assert await (await double.dispatch(4)).result(timeout=30) == 8
        await hive.close()

    asyncio.run(main())


HANDLERS = """
from taskhive import Hive
hive = Hive()

@hive.handler(max_retries=0)
def half(n):
    return n / 2
"""


def test_a_worker_in_the_background_runs_a_file_or_a_module(
    taskhive_worker: Callable[..., Hive], tmp_path: Path
) -> None:
    file = tmp_path / "halves.py"
    file.write_text(HANDLERS)
    module = types.ModuleType("halves")
    module.__file__ = str(file)
    exec(HANDLERS, vars(module))
    hive = taskhive_worker(module)
    assert hive.queue("half").dispatch(3).result(timeout=30) == 1.5
    assert module.half.dispatch(5).result(timeout=30) == 2.5
    with pytest.raises((TypeError, RemoteError)):
        hive.queue("half").dispatch("x").result(timeout=30)
    file.write_text("raise ValueError('broken handlers')")
    with pytest.raises(HandlerError, match="broken handlers"):
        taskhive_worker(file)


TEST = """
pytest_plugins = ["taskhive.testing"]

from taskhive import Hive
hive = Hive()

@hive.handler
def shout(text):
    return text.upper()

def test_shout(taskhive_inline):
    taskhive_inline(hive)
    assert shout.dispatch("hey").result(timeout=30) == "HEY"
"""


def test_the_fixtures_come_as_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_shout.py").write_text(TEST)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
