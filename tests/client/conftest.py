"""A worker shared by the tests of a process, beside a server of TaskHive's own kind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskhive import Hive
from tests.servers import Server, programs, running
from tests.workers import Worker, working

HANDLERS = Path(__file__).with_name("handlers.py")
PREFIX = f"client-{os.getpid()}"
SECRET = "only-the-programs-of-these-tests-know-it"


@pytest.fixture(scope="session")
def place() -> Iterator[Server]:
    """One server: what is tested here is above the scripts, which are tested on every kind."""
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(programs()["valkey"], Path(directory)) as started,
    ):
        yield started


@pytest.fixture(scope="session")
def worker(place: Server) -> Iterator[Worker]:
    log = place.directory / "worker.log"
    words = (str(HANDLERS), "--concurrency", "2")
    environment = {"TASKHIVE_SECRET": SECRET}
    with working(place.url, PREFIX, log, *words, environment=environment) as started:
        yield started


@pytest.fixture
def hive(place: Server, worker: Worker) -> Iterator[Hive]:
    """A hive whose jobs are run."""
    with Hive(place.url, prefix=PREFIX, secret=SECRET) as made:
        yield made


@pytest.fixture
def idle(place: Server, prefix: str) -> Iterator[Hive]:
    """A hive whose jobs nobody runs."""
    with Hive(place.url, prefix=prefix) as made:
        yield made
