"""The record of a waiting job: small, and whole whatever the server's clock says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from taskhive import Hive, codec
from tests.servers import Server
from tests.store import walker_state
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import key, take

FIRST, BEYOND = walker_state.FIRST, walker_state.FIRST + 2**40
"""What five bytes can hold, in milliseconds: from 2024 until the end of 2058."""


@pytest.mark.parametrize("together", [1, 3])
def test_a_plain_job_takes_eight_bytes_beside_its_arguments(
    hive: Hive, server: Server, together: int
) -> None:
    text = "x" * 95
    hive.queue("q").dispatch_many([text] * together)
    with server.client() as client:
        records = client.hvals(key(hive, "q", "jobs"))
    assert [len(record) - len(codec.encode_call((text,), {})) for record in records] == [8] * together


@pytest.mark.parametrize("ms", [0, 1, FIRST - 1, FIRST, FIRST + 255, BEYOND - 1, BEYOND, 2**44])
def test_a_job_is_kept_with_its_time_whatever_the_servers_clock_says(
    hive: Hive, clock: Clock, ms: int
) -> None:
    clock.jump(ms / 1000 - clock.now)
    q = hive.queue("q")
    plain, named = q.dispatch("plain"), q.options(id="named").dispatch("named")
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    assert [plain.info().created_at, named.info().created_at] == [moment, moment]
    take(q).fail("once")
    assert plain.info().created_at == moment
    assert take(q).args == ("named",)
    clock.jump(3600)
    assert take(q).args == ("plain",)
    assert q.stats().anomalies == 0
