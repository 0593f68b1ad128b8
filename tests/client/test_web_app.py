"""The web app of the examples: a request is answered by a job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from examples import web_app
from tests.servers import Server
from tests.workers import ROOT, working


def test_requests_are_answered_by_jobs(
    place: Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHIVE_URL", place.url)
    monkeypatch.setenv("TASKHIVE_PREFIX", prefix)
    for name in ("target", "prefix", "_own_commands"):
        vars(web_app.hive._core).pop(name, None)

    async def main() -> list[httpx.Response]:
        app = web_app.make_app()
        transport = httpx.ASGITransport(app=app)
        async with (
            web_app.hive,
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            paths = [f"/primes?below={10**power}" for power in range(1, 6)]
            return list(await asyncio.gather(*map(client.get, paths), client.get("/primes?below=-1")))

    with working(place.url, prefix, tmp_path / "log", str(ROOT / "examples" / "web_app.py")):
        *answers, bad = asyncio.run(main())
    assert [answer.json()["primes"] for answer in answers] == [4, 25, 168, 1229, 9592]
    assert (bad.status_code, bad.json()) == (400, {"error": "there is no prime below zero"})
