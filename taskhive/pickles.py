"""Calls, results and exceptions as signed pickles; opened only where their signature fits.

Calls are opened in the child alone, results and exceptions in the program that asked for them. A pickle
runs code when it is read, so whoever can sign one can run code there; nobody else can.
"""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any, NoReturn

import cloudpickle

from taskhive.codec import MAX_RESULT, BadPayload
from taskhive.errors import NotEncodable, PayloadTooLarge
from taskhive.signing import BadSignature, KeyRing

MAX_EXCEPTION = 64 * 1024


def dumps(value: Any, what: str) -> bytes:
    """A pickle. What a plain one would only name (a lambda, a class of a script) goes along by value."""
    made = io.BytesIO()
    try:
        _OnlyData(made, pickle.HIGHEST_PROTOCOL).dump(value)
    except (_NotData, RecursionError):
        return by_value(value, what)
    return made.getvalue()


class _NotData(Exception):
    pass


class _OnlyData(pickle.Pickler):
    """Numbers, text, bytes and the built-in containers: of those, cloudpickle makes the same bytes in
    ten times the time. What is none of them is asked for here first, and ends it."""

    def reducer_override(self, obj: object) -> NoReturn:
        raise _NotData


def by_value(value: Any, what: str) -> bytes:
    """A pickle of a function that need not be importable where it is read."""
    try:
        made: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return made
    except Exception as error:  # a __reduce__ of the user's may raise anything
        raise NotEncodable(what, f"cannot be pickled: {type(error).__name__}: {error}") from error


def loads(data: bytes, what: str) -> Any:
    """What a pickle holds; only ever called behind a signature."""
    try:
        return pickle.loads(data)
    except Exception as error:  # a module that is missing here, a __setstate__ that raises
        raise BadPayload(f"{what} cannot be unpickled: {type(error).__name__}: {error}") from error


def encode_call(
    ring: KeyRing,
    queue: str,
    job_id: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limit: int,
    due: float = 0.0,
) -> bytes:
    """The signed payload of a dispatch."""
    data = ring.seal("call", queue, job_id, dumps((args, kwargs), "args"), due=due)
    if len(data) > limit:
        raise PayloadTooLarge(
            len(data),
            limit,
            "the arguments",
            "Store the data elsewhere and pass its name, or raise Hive(max_payload=...)",
        )
    return data


def decode_call(
    ring: KeyRing, queue: str, job_id: str, data: bytes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a payload that was signed for this job."""
    value = loads(ring.open("call", queue, job_id, data), "the arguments")
    match value:
        case (tuple() as args, dict() as kwargs):
            return args, kwargs
    raise BadPayload("a signed payload that is not a call")


def encode_result(ring: KeyRing, queue: str, job_id: str, value: Any, limit: int = MAX_RESULT) -> bytes:
    """The signed form of a handler's result."""
    data = ring.seal("result", queue, job_id, dumps(value, "result"))
    if len(data) > limit:
        raise PayloadTooLarge(
            len(data),
            limit,
            "the result",
            "Store it elsewhere and return its name, or raise Hive(max_result=...)",
        )
    return data


def decode_result(ring: KeyRing, queue: str, job_id: str, data: bytes) -> Any:
    """A result that was signed for this job."""
    return loads(ring.open("result", queue, job_id, data), "the result")


def encode_exception(ring: KeyRing, queue: str, job_id: str, error: BaseException) -> str | None:
    """An exception as signed text for its record; None if it does not pickle, or is too large."""
    try:
        data = dumps(error, "exception")
    except NotEncodable:
        return None
    if len(data) > MAX_EXCEPTION:
        return None
    return base64.b64encode(ring.seal("exception", queue, job_id, data)).decode()


def decode_exception(ring: KeyRing, queue: str, job_id: str, text: Any) -> Exception | None:
    """The exception itself, or None for what is forged, does not load, or would end the program."""
    if not isinstance(text, str) or len(text) > 2 * MAX_EXCEPTION:
        return None
    try:
        data = base64.b64decode(text, validate=True)
        error = loads(ring.open("exception", queue, job_id, data), "the exception")
    except (ValueError, BadSignature, BadPayload):
        return None
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    return None
