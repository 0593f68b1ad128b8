"""One server, for tests that would learn nothing from a second kind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, programs, running


@pytest.fixture(scope="module", name="server")
def one_server_fixture() -> Iterator[Server]:
    """For modules that import it."""
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(programs()["valkey"], Path(directory)) as started,
    ):
        yield started
