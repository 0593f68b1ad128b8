"""URLs read into servers, a way of routing and the options of connections."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive.address import EMBEDDED, Address, Routing, read_url
from taskhive.errors import ConfigurationError

LOCAL = (Address("localhost", 6379),)


@pytest.mark.parametrize(
    ("url", "routing", "tls", "seeds"),
    [
        ("redis://", Routing.ONE, False, LOCAL),
        ("redis://localhost", Routing.ONE, False, LOCAL),
        ("REDIS://localhost", Routing.ONE, False, LOCAL),
        ("redis://:7000", Routing.ONE, False, (Address("localhost", 7000),)),
        ("redis://h:1/2", Routing.ONE, False, (Address("h", 1),)),
        ("redis://[::1]:7000", Routing.ONE, False, (Address("::1", 7000),)),
        ("redis://[::1]", Routing.ONE, False, (Address("::1", 6379),)),
        ("rediss://h", Routing.ONE, True, (Address("h", 6379),)),
        ("valkey://h", Routing.ONE, False, (Address("h", 6379),)),
        ("valkeys://h", Routing.ONE, True, (Address("h", 6379),)),
        ("unix:///run/s", Routing.ONE, False, (Address("/run/s", 0),)),
        ("unix:///a%20b/s", Routing.ONE, False, (Address("/a b/s", 0),)),
        ("sentinel://a,b:2/main", Routing.SENTINEL, False, (Address("a", 26379), Address("b", 2))),
        ("sentinels://a/main", Routing.SENTINEL, True, (Address("a", 26379),)),
        ("cluster://a:1,b:2", Routing.CLUSTER, False, (Address("a", 1), Address("b", 2))),
        ("clusters://a", Routing.CLUSTER, True, (Address("a", 6379),)),
    ],
)
def test_a_url_names_servers_and_a_way_of_routing(
    url: str, routing: Routing, tls: bool, seeds: tuple[Address, ...]
) -> None:
    target = read_url(url)
    assert (target.routing, target.tls, target.seeds) == (routing, tls, seeds)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h", {"db": 0}),
        ("redis://h/3", {"db": 3}),
        ("redis://h?db=4", {"db": 4}),
        ("redis://h/3?db=4", {"db": 4}),
        ("unix:///s?db=5", {"db": 5}),
        ("sentinel://h/main/6", {"db": 6}),
        ("sentinel://h/main", {"db": 0}),
        ("redis://:secret@h", {"db": 0, "password": "secret"}),
        ("redis://me@h", {"db": 0, "username": "me"}),
        ("redis://me:p%40ss%2F@h", {"db": 0, "username": "me", "password": "p@ss/"}),
        ("redis://me:a:b@h", {"db": 0, "username": "me", "password": "a:b"}),
        ("redis://h?socket_timeout=1.5", {"db": 0, "socket_timeout": 1.5}),
        ("redis://h?socket_keepalive=yes", {"db": 0, "socket_keepalive": True}),
        ("rediss://h?ssl_check_hostname=false", {"db": 0, "ssl_check_hostname": False}),
        ("redis://h?client_name=web", {"db": 0, "client_name": "web"}),
    ],
)
def test_a_url_says_how_to_connect(url: str, options: dict[str, Any]) -> None:
    assert read_url(url).connection == options


def test_options_beside_the_url_beat_it_and_sentinels_have_their_own() -> None:
    target = read_url("sentinel://u:p@h/main?sentinel_password=s", {"db": 2, "sentinel_username": "x"})
    assert target.connection == {"db": 2, "username": "u", "password": "p"}
    assert target.sentinel == {"password": "s", "username": "x"}
    assert target.service == "main"


def test_no_password_is_ever_shown() -> None:
    target = read_url("redis://me:secret@h:1/2?sentinel_password=secret")
    assert "secret" not in f"{target!r} {target}"
    assert str(target) == "h:1"
    assert str(read_url("sentinel://a,b/main")) == "main@a:26379,b:26379"
    assert str(EMBEDDED) == "the embedded server"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "http://h",
        "redis:/h",
        "redis://a,b",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:x",
        "redis://h:-1",
        "redis://h/x",
        "redis://h/-1",
        "redis://h/1/2",
        "redis://h?db=x",
        "redis://h?socket_timeout=x",
        "redis://h?socket_timeout=nan",
        "redis://h?socket_timeout=-1",
        "redis://h?socket_keepalive=maybe",
        "unix://",
        "unix:///",
        "unix://host/s",
        "sentinel://h",
        "sentinel://h/",
        "cluster://h/1",
        None,
        5,
        b"redis://h",
    ],
)
def test_a_url_that_is_none_is_told_so_with_an_example(url: Any) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        read_url(url)
    assert wrong.value.remedy
