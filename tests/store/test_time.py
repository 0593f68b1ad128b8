"""Whose time counts: the server's, read once per call, as the scripts are shipped."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from redis import Redis

from taskhive import Hive, scripts
from tests.servers import Server
from tests.store.hands import exchange, take

CALLS: dict[str, Callable[[Hive], object]] = {
    "account": lambda hive: hive._run(hive._core.commands.account("q", {"n": 1})),
    "add": lambda hive: hive.queue("q").dispatch(1),
    "cancel": lambda hive: hive.queue("q").cancel("J"),
    "configure": lambda hive: hive.queue("q").pause(),
    "destroy": lambda hive: hive.queue("q").destroy(),
    "dispatch": lambda hive: hive.queue("q").options(id="J", delay=1).dispatch_many([1]),
    "exchange": lambda hive: exchange(hive, "q", want=10, by_hand=True),
    "list": lambda hive: hive.queue("q").jobs("ready"),
    "look": lambda hive: hive.job("q", "J").state(),
    "purge": lambda hive: hive.queue("q").purge("failed"),
    "remove": lambda hive: hive.job("q", "none").delete(),
    "revive": lambda hive: hive.queue("q").dead.retry("J"),
    "stats": lambda hive: hive.queue("q").stats(),
    "lock": lambda hive: hive.lock("q", ttl=600).acquire(wait=0),
    "sweep": lambda hive: hive.queue("q").sweep(),
}


def code(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


@pytest.mark.parametrize("name", scripts.names())
def test_the_time_is_read_in_one_place_and_from_no_argument(name: str) -> None:
    """A walk replaces the body of `wall` and nothing else; here is the text as it is shipped."""
    text = code(scripts.source(name))
    assert text.count("redis.call('TIME')") == 1
    assert not re.search(r"\bos\.(time|clock|date)\b", text)
    (wall,) = re.findall(r"local function wall\(\)\n(.*?)\nend\n", text, re.DOTALL)
    assert "'TIME'" in wall
    assert "ARGV" not in wall
    for reader in ("glance", "begin"):
        for body in re.findall(rf"local function {reader}\(\)\n(.*?)\nend\n", text, re.DOTALL):
            assert body.count("wall()") == 1
            assert "ARGV" not in body
    if name == "add":  # it has no time for the functions of the others
        assert (
            len(re.findall(r"(?<!function )wall\(\)", text)) == 2
        )  # one of them in `glance`, not called
        assert "glance()\n" not in text.replace("local function glance()", "")
    else:
        (now,) = re.findall(r"^local (\w+), refusal = (?:begin|glance)\(\)", text, re.MULTILINE)
        assert now in ("now", "_")
    assert not re.search(r"^\s*now = ", text, re.MULTILINE), "now is set a second time"


@pytest.mark.parametrize("name", CALLS)
def test_each_call_reads_the_time_once(hive: Hive, server: Server, name: str) -> None:
    """Two readings in one script may differ, and a job could be lapsed and not lapsed at once."""
    q = hive.queue("q")
    q.dispatch_many(range(5))
    take(q)
    take(q).fail("why", permanent=True)
    q.options(id="J").dispatch(1)
    with server.client() as client:
        before = readings(client)
        CALLS[name](hive)
        assert readings(client) == before + 1


def test_every_script_that_writes_is_among_those_calls() -> None:
    writing = {
        name for name in scripts.names() if "no-writes" not in scripts.source(name).split("\n")[0]
    }
    assert writing <= CALLS.keys()


def readings(client: Redis) -> int:
    calls = client.info("commandstats").get("cmdstat_time", {"calls": 0})["calls"]
    assert isinstance(calls, int)
    return calls
