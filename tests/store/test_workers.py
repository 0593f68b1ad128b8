"""Who works: announced for a while, listed while that lasts, forgotten afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive import Hive
from taskhive.errors import ConfigurationError
from tests.servers import Server, until


def announce(hive: Hive, worker_id: str, ttl: float = 60.0, **facts: Any) -> None:
    hive._run(hive._core.commands.announce(worker_id, facts, ttl))


def workers(hive: Hive) -> list[dict[str, Any]]:
    return hive._run(hive._core.commands.workers())


def test_workers_are_listed_with_what_they_say(hive: Hive) -> None:
    assert workers(hive) == []
    announce(hive, "b", host="two", queues=["x"])
    announce(hive, "a", host="one", load=0.5)
    announce(hive, "a", host="one", load=0.7)
    assert workers(hive) == [
        {"id": "a", "host": "one", "load": 0.7},
        {"id": "b", "host": "two", "queues": ["x"]},
    ]


def test_one_that_leaves_is_gone_at_once(hive: Hive, server: Server) -> None:
    announce(hive, "a")
    hive._run(hive._core.commands.leave("a"))
    hive._run(hive._core.commands.leave("a"))
    assert workers(hive) == []
    with server.client() as client:
        assert list(client.scan_iter(f"{hive.prefix}:*")) == []


def test_one_that_says_nothing_any_more_is_forgotten(hive: Hive, server: Server) -> None:
    announce(hive, "a", ttl=0.01)
    announce(hive, "b")
    until(lambda: [one["id"] for one in workers(hive)] == ["b"], "a is forgotten")
    with server.client() as client:
        assert client.smembers(f"{hive.prefix}:workers") == {b"b"}
    announce(hive, "a")
    assert [one["id"] for one in workers(hive)] == ["a", "b"]


@pytest.mark.parametrize("words", [b"", b"\xff", b"[" * 100_000, b"1", b'"text"', b'{"id": '])
def test_what_is_no_fact_is_passed_over(hive: Hive, server: Server, words: bytes) -> None:
    announce(hive, "a")
    announce(hive, "b")
    with server.client() as client:
        client.set(f"{hive.prefix}:worker:b", words)
        client.sadd(f"{hive.prefix}:workers", b"\xff\xfe", "nobody")
    assert [one["id"] for one in workers(hive)] == ["a"]


def test_a_worker_cannot_pass_for_another(hive: Hive) -> None:
    announce(hive, "a", id="b")
    assert workers(hive) == [{"id": "a"}]


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "x" * 201])
def test_a_name_that_fits_no_key_is_refused(hive: Hive, name: str) -> None:
    with pytest.raises(ConfigurationError, match="id"):
        announce(hive, name)
