"""Fixtures of worker tests: a folder of handlers, and workers that are gone after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from taskhive import Hive
from taskhive.embedded import binary
from tests.servers import Server, running
from tests.worker.workers import Worker


class Start(Protocol):
    def __call__(self, handlers: str | None = None, *words: str, **env: str) -> Worker: ...


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all workers of a test process: what it is was proved elsewhere."""
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(binary().path, Path(directory)) as started,
    ):
        yield started


@pytest.fixture
def hive(valkey: Server, prefix: str) -> Iterator[Hive]:
    with Hive(valkey.url, prefix=prefix) as hive:
        yield hive


@pytest.fixture
def start(
    valkey: Server, prefix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Start]:
    """Write handlers.py and run a worker on it, with two children unless told otherwise."""
    workers: list[Worker] = []

    def begin(handlers: str | None = None, *words: str, **env: str) -> Worker:
        if handlers is not None:
            (tmp_path / "handlers.py").write_text(handlers)
        files = [word for word in words if not word.startswith("-") and word.endswith(".py")]
        options = ["--concurrency", "2"] if "--concurrency" not in words else []
        named = [] if files else ["handlers.py"]
        worker = Worker(tmp_path, valkey.url, *named, *words, *options, prefix=prefix, **env)
        workers.append(worker)
        return worker

    yield begin
    for worker in workers:
        worker.clean_up()
