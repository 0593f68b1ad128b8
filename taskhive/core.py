"""What `Hive` and `AsyncHive` share: settings, the encoding of calls, and their flows; no I/O."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from taskhive import codec, embedded, payloads, pickles, relay, units
from taskhive import secret as secrets
from taskhive.address import EMBEDDED, Address, Routing, Target, read_url
from taskhive.commands import Commands
from taskhive.effects import Flow
from taskhive.errors import (
    ConfigurationError,
    NotDurable,
    NotEncodable,
    PartialDispatch,
    ServerError,
    TaskHiveError,
)
from taskhive.ids import new_id, nonce
from taskhive.jobs import ENDED, LISTED, WAITING, JobState
from taskhive.options import PLAIN, UNSET, JobOptions, read_stored, spec
from taskhive.parcels import Answer, Item, Leased, Settle
from taskhive.records import encode_error, text
from taskhive.retries import Again, FailureKind, Limits, decide
from taskhive.session import Session
from taskhive.signing import KeyRing, is_sealed

DEFAULT_PREFIX = "th"
DEFAULT_VISIBILITY = 30.0
IO_TIMEOUT = 5.0
"""How long one reply may take before the connection counts as dead."""


@dataclass(frozen=True, slots=True)
class HiveSettings:
    """What a `Hive` was told, and the defaults for the rest."""

    server: str
    """Where it connects, without user and password."""
    prefix: str
    connect_timeout: float
    max_payload: int
    max_result: int


@dataclass(frozen=True, slots=True)
class BoundJob:
    """One dispatch that was not made yet, encoded and checked."""

    queue: str
    item: Item
    durable: bool


class Core:
    """Everything of a hive but its way of doing I/O."""

    def __init__(
        self,
        url: str | None,
        *,
        prefix: str | None,
        client: Any,
        client_options: Mapping[str, Any] | None,
        connect_timeout: float,
        id_factory: Callable[[], str] | None,
        max_payload: int | str,
        max_result: int | str,
        secret: Any = None,
    ) -> None:
        self.url = url
        self._given = _target(url, client, client_options)
        self._client_options = dict(client_options or {})
        self._prefix = None if prefix is None else units.key_prefix(prefix)
        self.connect_timeout = units.seconds(connect_timeout, "connect_timeout")
        if id_factory is not None and not callable(id_factory):
            raise ConfigurationError("id_factory", "not callable", "Give a function that returns an id")
        self.id_factory = id_factory
        self.max_payload = units.size(max_payload, "max_payload")
        self.max_result = units.size(max_result, "max_result")
        self._secret = secrets.given(secret)
        self._found: KeyRing | None = None
        self._found_at = 0
        self.exceptions: dict[str, type[Exception]] = {}
        """Classes that this program has registered, by the name a record gives them."""

    # The environment is read here, at first use: importing a module that makes a Hive asks nobody.

    @cached_property
    def target(self) -> Target:
        """The server to talk to."""
        if self._given is not None:
            return self._given
        url = os.environ.get("TASKHIVE_URL")
        return read_url(url, self._client_options) if url else EMBEDDED

    @cached_property
    def prefix(self) -> str:
        """What all keys begin with."""
        if self._prefix is not None:
            return self._prefix
        return units.key_prefix(os.environ.get("TASKHIVE_PREFIX") or DEFAULT_PREFIX)

    @property
    def commands(self) -> Commands:
        """The operations on this server; inside a handler, those of the supervisor."""
        return relay.installed or self._own_commands  # type: ignore[return-value]

    @property
    def _own_commands(self) -> Commands:
        made: Commands | None = self.__dict__.get("_made_commands")
        if made is None:
            # Threads may come here at once, and all must share what is known of the server.
            fresh = Commands(Session(self.target, self.connect_timeout), self.prefix)
            made = self.__dict__.setdefault("_made_commands", fresh)
        return made

    def directory(self) -> Path:
        """Where the embedded server lives."""
        return embedded.directory(os.environ)

    def ring(self) -> KeyRing | None:
        """The keys of this program, if it has any: what it was given, or what its surroundings hold."""
        if self._secret is not None:
            return self._secret
        if self._found_at != secrets.changes:
            self._found = secrets.find(os.environ, self._embedded_home)
            self._found_at = secrets.changes
        return self._found

    def _embedded_home(self) -> Path | None:
        return self.directory() if self.target.routing is Routing.EMBEDDED else None

    def settings(self) -> HiveSettings:
        """What this hive was told, and the defaults for the rest."""
        return HiveSettings(
            str(self.target), self.prefix, self.connect_timeout, self.max_payload, self.max_result
        )

    # Dispatch

    def item(
        self, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any], queue: str = ""
    ) -> Item:
        """One job ready to be sent, or the error that says what is wrong with it."""
        if options is PLAIN and self.id_factory is None:
            job_id, payload = new_id(), codec.encode_call(args, kwargs, limit=self.max_payload)
            if (ring := self.ring()) is not None:
                payload = payloads.sealed(ring, "call", queue, job_id, payload)
            return Item(job_id, payload, b"")
        kind = "json" if options.codec is UNSET else options.codec
        job_id, request = self._identity(options, args, kwargs)
        ring, limit, due = self.ring(), self.max_payload, _due(options)
        if kind == "pickle":
            payload = pickles.encode_call(secrets.need(ring), queue, job_id, args, kwargs, limit, due)
        else:
            data = codec.encode_call(args, kwargs, codec=kind, limit=limit)
            payload = payloads.sealed(ring, "call", queue, job_id, data, due)
        return Item(job_id, payload, spec(options, request).encode())

    def _identity(
        self, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, str | None]:
        if options.id is not UNSET:
            return options.id, nonce()
        if options.unique is True:
            return _digest(args, kwargs), nonce()
        if self.id_factory is not None:
            # It may come to the same id twice, so it is treated as an id of the user's own.
            return units.job_id(self.id_factory()), nonce()
        return new_id(), None

    def many(self, options: JobOptions, values: Sequence[Any], queue: str = "") -> list[Item]:
        """One job for each value; the first bad one is named before anything is sent."""
        if options.id is not UNSET and len(values) > 1:
            raise ConfigurationError(
                "id",
                "one id for many jobs would merge them into one",
                "Give each its own: hive.dispatch_many([q.options(id=...).bind(x) for x in ...])",
            )
        items = []
        for index, value in enumerate(values):
            try:
                items.append(self.item(options, (value,), {}, queue))
            except NotEncodable as error:
                where = error.path.removeprefix("args[0]")
                raise NotEncodable(f"items[{index}]{where}", error.problem) from error
        return items

    def dispatch_bound(self, bound: Sequence[BoundJob]) -> Flow[list[Answer]]:
        """Dispatch calls of any queues, one trip for each queue and thousand; answers in order."""
        groups: dict[tuple[str, bool], list[int]] = {}
        for index, one in enumerate(bound):
            groups.setdefault((one.queue, one.durable), []).append(index)
        answers: dict[int, Answer] = {}
        errors: dict[int, Exception] = {}
        for (queue, durable), places in groups.items():
            items = [bound[place].item for place in places]
            try:
                got = yield from self.commands.dispatch(queue, items, durable)
                answers.update(zip(places, got, strict=True))
            except (PartialDispatch, NotDurable) as error:
                done = len(error.jobs)
                answers.update(zip(places[:done], error.jobs, strict=True))
                rest = places[done:] or places[-1:]  # all there, but the last not confirmed
                errors.update(dict.fromkeys(rest, error))
            except TaskHiveError as error:
                errors.update(dict.fromkeys(places, error))
                if isinstance(error, ServerError):
                    # Nor will the rest get through; one patience is enough to wait.
                    errors.update({i: error for i in range(len(bound)) if i not in answers})
                    break
        if errors and not answers:
            raise next(iter(errors.values()))
        if errors:
            raise PartialDispatch([answers.get(i) for i in range(len(bound))], errors)
        return [answers[index] for index in range(len(bound))]

    # Leases by hand

    def opened(self, queue: str, job: Leased) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a job that was leased by hand."""
        failed = job.fields.get(b"i")
        place = payloads.signed_for(queue, job.id, None if failed is None else text(failed))
        return payloads.decode_call(self.ring(), *place, job.payload)

    def lease(self, queue: str, lease_ms: int, wait: float | None) -> Flow[Leased | None]:
        """A job whose arguments can be read here; others are given up on the way."""
        while True:
            job = yield from self.commands.lease(queue, lease_ms, wait)
            if job is None or is_sealed(job.payload) or not payloads.are_signed(self.ring()):
                return job
            try:
                self.opened(queue, job)
                return job
            except codec.BadPayload as error:
                body = encode_error(type(error).__name__, str(error))
                refusal = Settle(job.id, job.token, "fail", "permanent", body=body)
                yield from self.commands.settle(queue, refusal)

    def acked(self, queue: str, job: Leased, result: Any) -> Settle:
        """A successful end."""
        ring, body = self.ring(), b""
        if result is not None or payloads.are_signed(ring):
            body = codec.encode_result(result, limit=self.max_result)
            body = payloads.sealed(ring, "result", queue, job.id, body)
        return Settle(job.id, job.token, "done", body=body)

    def failed(self, job: Leased, why: Any, permanent: bool, rng: Any) -> Settle:
        """A failed attempt: again after a while, or given up, as the job's limits say."""
        kind = FailureKind.PERMANENT if units.flag(permanent, "permanent") else FailureKind.ERROR
        error_type = type(why).__name__ if isinstance(why, BaseException) else "Failed"
        body = encode_error(error_type, _said(why))
        match decide(kind, job.counts, limits(job), rng):
            case Again(delay):
                return Settle(
                    job.id, job.token, "again", "error", delay_ms=round(delay * 1000), body=body
                )
            case _:
                return Settle(job.id, job.token, "fail", kind.value, body=body)


def limits(job: Leased) -> Limits:
    """The limits stored with a job, over the defaults."""
    stored = job.fields.get(b"o")
    if stored is None:
        return Limits()
    known = set(Limits.__dataclass_fields__)
    chosen = {name: value for name, value in read_stored(text(stored)).items() if name in known}
    return Limits(**chosen)


def _due(options: JobOptions) -> float:
    """When a job may run at the earliest, if it was said; its signature is not old before that."""
    at: Any = options.run_at
    delay: Any = options.delay
    if at is not UNSET:
        return float(at)
    return 0.0 if delay is UNSET else time.time() + delay


def listed_state(value: Any) -> JobState:
    """A state that jobs can be listed by."""
    return _state(value, LISTED)


def purged_state(value: Any) -> JobState:
    """A state that can be purged: what runs is cancelled, not purged."""
    return _state(value, (*WAITING, *ENDED))


def _state(value: Any, allowed: Sequence[JobState]) -> JobState:
    try:
        if (state := JobState(value)) in allowed:
            return state
    except ValueError:
        pass
    raise ConfigurationError("state", f"{value!r} is none", f"Use one of {', '.join(allowed)}")


def _said(why: Any) -> str:
    try:
        return str(why)
    except Exception as error:  # noqa: BLE001 -- a __str__ of the user's may raise anything
        return f"(its text could not be had: {type(error).__name__})"


def _digest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """An id that equal arguments share, whatever the order of their keywords."""
    if any(isinstance(value, (bytes, bytearray, memoryview)) for value in args):
        words = b"r" + b"".join(args)
    else:
        words = json.dumps([args, kwargs], sort_keys=True).encode()
    return "unique-" + hashlib.sha256(words).hexdigest()[:32]


# What of a client's own settings is about reaching and entering the server.
_BORROWED = ("db", "username", "password", "client_name", "credential_provider", "socket_timeout")


def _target(url: str | None, client: Any, options: Mapping[str, Any] | None) -> Target | None:
    if client is None:
        return None if url is None else read_url(url, options)
    if url is not None:
        raise ConfigurationError("client", "given together with a URL", "Give one of them")
    pool = getattr(client, "connection_pool", None)
    known: dict[str, Any] | None = getattr(pool, "connection_kwargs", None)
    if known is None or "connection_pool" in known:
        raise ConfigurationError(
            "client",
            f"{type(client).__name__} is not a plain client",
            "Give a redis.Redis, or a URL: cluster:// and sentinel:// are read by TaskHive itself",
        )
    tls = {name: value for name, value in known.items() if name.startswith("ssl_")}
    connection = {name: known[name] for name in _BORROWED if known.get(name) is not None}
    if "path" in known:
        seed = Address(known["path"], 0)
    else:
        seed = Address(known.get("host", "localhost"), int(known.get("port", 6379)))
    is_tls = "SSL" in pool.connection_class.__name__  # type: ignore[union-attr]
    return Target(Routing.ONE, (seed,), is_tls, "", {**connection, **tls, **(options or {})})
