"""One request until its answer, without a server: the flow is driven by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import MovedError, ResponseError, TryAgainError

from taskhive import ConfigurationError, RedisUnavailable, ServerRefused
from taskhive.address import Address, read_url
from taskhive.effects import DropIdle, Pause, Send, Trouble
from taskhive.session import Session

INFO = [b"redis_version:7.2.4\r\n", b"maxmemory_policy:noeviction\r\n"]
SLOT = key_slot(b"k")
FAR, NEAR = Address("10.0.0.9", 7000), Address("127.0.0.1", 17000)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def session(url: str, patience: float = 10.0, **options: Any) -> tuple[Session, Clock]:
    clock = Clock()
    made = Session(read_url(url, options), patience, clock=clock, rng=random.Random(1))
    return made, clock


def drive(
    flow: Any, clock: Clock, outcomes: Iterator[Any], asked: list[Any] | None = None
) -> tuple[Any, list[Any]]:
    """Act out a flow with the outcomes of its sends; its value, and what it asked for."""
    asked = [] if asked is None else asked
    try:
        effect = next(flow)
        while True:
            asked.append(effect)
            outcome = None
            if isinstance(effect, Send):
                outcome = next(outcomes)
            elif isinstance(effect, Pause):
                clock.now += effect.seconds
            effect = flow.send(outcome)
    except StopIteration as stop:
        return stop.value, asked


def sends(asked: list[Any]) -> list[Address]:
    return [effect.address for effect in asked if isinstance(effect, Send)]


def slots(address: Address) -> list[Any]:
    return [[[0, 16383, [address.host.encode(), address.port, b"id"]]]]


def test_a_server_that_calls_itself_something_else_is_reached_where_one_says() -> None:
    made, clock = session("cluster://seed:1", address_remap=lambda told: NEAR if told == FAR else told)
    value, asked = drive(made.command(b"k", b"GET"), clock, iter([slots(FAR), INFO, [b"v"]]))
    assert (value, sends(asked)) == (b"v", [Address("seed", 1), NEAR, NEAR])
    moved = [MovedError(f"{SLOT} {FAR}")]
    value, asked = drive(made.command(b"k", b"GET"), clock, iter([moved, [b"v"]]))
    assert (value, sends(asked)) == (b"v", [NEAR, NEAR])
    made, clock = session("sentinel://s:1/hive", address_remap=lambda told: NEAR)
    value, asked = drive(made.command(b"k", b"GET"), clock, iter([[[b"x", b"1"]], INFO, [b"v"]]))
    assert sends(asked)[1:] == [NEAR, NEAR]
    with pytest.raises(ConfigurationError, match="address_remap"):
        read_url("cluster://seed", {"address_remap": {"a": "b"}})


def test_a_redirection_without_a_host_means_the_one_that_was_asked() -> None:
    made, clock = session("cluster://seed:1")
    replies = iter([slots(FAR), INFO, [MovedError(f"{SLOT} :7001")], [b"v"]])
    _, asked = drive(made.command(b"k", b"GET"), clock, replies)
    assert sends(asked)[-1] == Address(FAR.host, 7001)


def test_servers_that_send_each_other_on_for_ever_are_an_error_after_the_patience() -> None:
    made, clock = session("cluster://seed:1", 3.0)
    tries = 0

    def answers() -> Iterator[Any]:
        nonlocal tries
        while True:
            data = asked[-1].data
            if b"SLOTS" in data:
                yield slots(FAR)
            elif b"INFO" in data:
                yield INFO
            else:
                tries += 1
                yield [MovedError(f"{SLOT} {FAR.host}:{7000 + tries % 2}")]

    asked: list[Any] = []
    with pytest.raises(RedisUnavailable, match="MovedError"):
        drive(made.command(b"k", b"GET"), clock, answers(), asked)
    assert 102.0 < clock.now < 104.0
    assert tries < 100


def test_what_is_waited_for_is_sent_again_with_growing_pauses_until_the_patience_is_over() -> None:
    made, clock = session("redis://one", 5.0)
    replies = iter([INFO, *[[TryAgainError("wait")]] * 1000])
    with pytest.raises(RedisUnavailable, match="TryAgainError"):
        drive(made.command(b"k", b"GET"), clock, replies)
    assert 104.0 < clock.now < 106.0
    left = sum(1 for _ in replies)
    assert 5 < 1000 - left < 60  # neither a storm nor a single try


def test_an_idle_connection_that_was_closed_is_replaced_though_there_is_no_patience() -> None:
    made, clock = session("redis://one", 0.0)
    gone = Trouble(ConnectionResetError("by peer"), True)
    value, asked = drive(made.command(b"k", b"GET"), clock, iter([INFO, gone, [b"v"]]))
    assert value == b"v"
    assert any(isinstance(effect, DropIdle) for effect in asked)
    with pytest.raises(RedisUnavailable, match="by peer"):
        drive(made.command(b"k", b"GET"), clock, iter([gone, gone]))
    never = Trouble(ConnectionRefusedError("nobody"), False)
    with pytest.raises(RedisUnavailable, match="nobody"):
        drive(made.command(b"k", b"GET"), clock, iter([never]))


def test_an_answer_that_no_repetition_will_change_is_an_error_at_once() -> None:
    made, clock = session("redis://one")
    with pytest.raises(ServerRefused, match="CROSSSLOT"):
        drive(made.command(b"k", b"GET"), clock, iter([INFO, [ResponseError("CROSSSLOT keys")]]))
    old = [b"redis_version:6.2.1\r\n", b""]
    with pytest.raises(ServerRefused, match=r"needs Redis 7\.0 or newer"):
        drive(session("redis://one")[0].command(b"k", b"GET"), clock, iter([old]))


@pytest.mark.parametrize(
    ("url", "seeds"),
    [
        ("redis://h:7?ssl_ca_certs=/a/b", [("h", 7)]),
        ("rediss://u:p%2F@h/3?x=a/b", [("h", 6379)]),
        ("cluster://a,b:2,[::1]:3", [("a", 6379), ("b", 2), ("::1", 3)]),
        ("sentinel://a,b:2/hive/1", [("a", 26379), ("b", 2)]),
        ("unix:///run/x.sock?db=2", [("/run/x.sock", 0)]),
    ],
)
def test_urls_are_read_into_servers(url: str, seeds: list[tuple[str, int]]) -> None:
    assert [tuple(one) for one in read_url(url).seeds] == seeds


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://x",
        "redis://a,b",
        "redis://h:port",
        "unix://x",
        "sentinel://h",
        "cluster://h/2",
    ],
)
def test_a_url_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Write|Use|Leave"):
        read_url(url)
