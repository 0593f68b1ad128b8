"""Where the server is: a URL read into seeds, a way of routing and the options of connections."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from taskhive import units
from taskhive.errors import ConfigurationError


class Address(NamedTuple):
    """One server: a host and port, or a unix socket with port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class Routing(StrEnum):
    """How the server of a key is found."""

    ONE = "one server"
    EMBEDDED = "the embedded server"
    SENTINEL = "asked from sentinels"
    CLUSTER = "by hash slot"


@dataclass(frozen=True)
class Target:
    """What a URL says, with secrets kept out of its repr."""

    routing: Routing
    seeds: tuple[Address, ...]
    tls: bool = False
    service: str = ""
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options for connections to data servers."""
    sentinel: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options for connections to sentinels."""
    remap: Callable[[tuple[str, int]], tuple[str, int]] | None = field(default=None, repr=False)
    """Where a server is for us that calls itself something else, behind a NAT or in a container."""

    def reached(self, host: str, port: int) -> Address:
        """The address to connect to for one that a server has told."""
        return Address(*(self.remap((host, port)) if self.remap else (host, port)))

    def __str__(self) -> str:
        if self.routing is Routing.EMBEDDED:
            return "the embedded server"
        where = ",".join(map(str, self.seeds))
        return f"{self.service}@{where}" if self.service else where


EMBEDDED = Target(Routing.EMBEDDED, ())

_SCHEMES = {
    "redis": (Routing.ONE, False),
    "rediss": (Routing.ONE, True),
    "valkey": (Routing.ONE, False),
    "valkeys": (Routing.ONE, True),
    "unix": (Routing.ONE, False),
    "sentinel": (Routing.SENTINEL, False),
    "sentinels": (Routing.SENTINEL, True),
    "cluster": (Routing.CLUSTER, False),
    "clusters": (Routing.CLUSTER, True),
}
_AUTHORITY = re.compile(r"([^/?]*)(.*)", re.DOTALL)
_NUMBERS = {"socket_timeout", "socket_connect_timeout", "health_check_interval"}
_FLAGS = {"socket_keepalive", "ssl_check_hostname"}
_EXAMPLE = "Write redis://host:6379/0, rediss://, unix:///path, sentinel://host/service or cluster://"


def read_url(url: str, options: Mapping[str, Any] | None = None) -> Target:
    """A target from a URL; `options` are for the client library and beat what the URL says."""
    if not isinstance(url, str):
        raise ConfigurationError("url", f"{type(url).__name__} is not a URL", _EXAMPLE)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise ConfigurationError("url", f"{scheme!r} is no known scheme", _EXAMPLE)
    routing, tls = _SCHEMES[scheme.lower()]
    # One parser for all: a list of hosts is none for urlsplit, so they are cut out first.
    authority, tail = _AUTHORITY.match(rest).groups()  # type: ignore[union-attr]
    login, _, hosts = authority.rpartition("@")
    try:
        parts = urlsplit(f"x://h/{tail.removeprefix('/')}")
    except ValueError as error:
        raise ConfigurationError("url", str(error), _EXAMPLE) from error
    connection: dict[str, Any] = {}
    if login:
        user, colon, password = login.partition(":")
        if user:
            connection["username"] = unquote(user)
        if colon:
            connection["password"] = unquote(password)
    query_options = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = unquote(parts.path).strip("/")
    if scheme.lower() == "unix":
        seeds: tuple[Address, ...] = (Address("/" + path, 0),)
        if hosts or not path:
            raise ConfigurationError("url", "a unix socket needs a whole path", _EXAMPLE)
        service, database = "", query_options.pop("db", "0")
    else:
        seeds = tuple(_address(text, routing) for text in (hosts or "localhost").split(","))
        service, _, database = path.rpartition("/") if routing is Routing.SENTINEL else ("", "", path)
        if routing is Routing.SENTINEL and not service:
            service, database = database, ""
        database = query_options.pop("db", database)
    connection["db"] = _database(database or "0", routing)
    if routing is Routing.SENTINEL and not service:
        raise ConfigurationError("url", "no service name", "Write sentinel://host:26379/service")
    if len(seeds) > 1 and routing is Routing.ONE:
        raise ConfigurationError("url", "more than one host", "Use cluster:// or sentinel://")
    connection.update({name: _option(name, value) for name, value in query_options.items()})
    connection.update(options or {})
    asked = {name: connection.pop(name) for name in list(connection) if name.startswith("sentinel_")}
    sentinel = {name.removeprefix("sentinel_"): value for name, value in asked.items()}
    remap = connection.pop("address_remap", None)
    if remap is not None and not callable(remap):
        raise ConfigurationError(
            "address_remap", "not callable", "Give a function of (host, port) that returns such a pair"
        )
    return Target(routing, seeds, tls, service, connection, sentinel, remap)


def _address(text: str, routing: Routing) -> Address:
    if text.startswith("["):  # IPv6
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    number = 26379 if routing is Routing.SENTINEL else 6379
    if port:
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigurationError("url", f"{port!r} is not a port", "Write host:6379")
        number = int(port)
    return Address(unquote(host) or "localhost", number)


def _database(text: str, routing: Routing) -> int:
    if not text.isdigit():
        raise ConfigurationError("url", f"{text!r} is not a database number", "Write /0 at the end")
    if routing is Routing.CLUSTER and int(text) != 0:
        raise ConfigurationError("url", "a cluster has database 0 only", "Leave the number out")
    return int(text)


def _option(name: str, value: str) -> Any:
    if name in _NUMBERS:
        try:
            return units.seconds(float(value), name)
        except ValueError as error:
            raise ConfigurationError(name, f"{value!r} is not a number", "Give seconds") from error
    if name in _FLAGS:
        if value.lower() not in ("0", "1", "true", "false", "yes", "no"):
            raise ConfigurationError(name, f"{value!r} is not a flag", "Give true or false")
        return value.lower() in ("1", "true", "yes")
    return value
