"""What goes in and out of a handler as bytes, in the codec that its worker chose for it.

The job cannot choose: a handler that takes data is never given a pickle, however well signed, and one
that takes signed pickles is never given unsigned data.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from taskhive import called, codec, exceptions, payloads, pickles, secret
from taskhive.context import CurrentJob, Failure
from taskhive.handlers import Handler
from taskhive.records import read_error, read_json
from taskhive.retries import Counts
from taskhive.signing import KeyRing

AnyHandler = Handler[Any, Any, Any]


def decode(
    handler: AnyHandler, job_id: str, payload: bytes, extra: dict[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an attempt; BadPayload for what its handler does not take."""
    failed = extra["failure"]["job_id"] if extra is not None and "failure" in extra else None
    place = payloads.signed_for(handler.name, job_id, failed)
    if handler.options_given.codec == "pickle":
        return pickles.decode_call(_ring(handler), *place, payload)
    return payloads.decode_call(handler._hive._core.ring(), *place, payload)


def given(
    handler: AnyHandler,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    job: CurrentJob,
    extra: dict[str, Any] | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the function is called with: a failure handler with its `Failure`, any with its `job`."""
    if extra is not None and "failure" in extra:
        args, kwargs = (_failure(extra["failure"], args, kwargs),), {}
    if handler.wants_job and "job" not in kwargs:
        kwargs = {**kwargs, "job": job}
    return args, kwargs


def _failure(told: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Failure:
    body = told["error"].encode("latin-1")
    error = read_error(body, told["kind"])
    counts = Counts(*told["counts"])
    return Failure(told["job_id"], args, kwargs, error, told["kind"], counts, _black_box(body))


def _black_box(body: bytes) -> dict[str, Any] | None:
    facts = read_json(body)
    box = facts.get("black_box") if isinstance(facts, dict) else None
    return box if isinstance(box, dict) else None


def encode(handler: AnyHandler, job_id: str, result: Any, limit: int) -> bytes:
    """The result of an attempt."""
    limit = max(limit, handler.max_result)
    if handler.options_given.codec == "pickle":
        return pickles.encode_result(_ring(handler), handler.name, job_id, result, limit)
    data = codec.encode_result(result, limit=limit)
    return payloads.sealed(handler._hive._core.ring(), "result", handler.name, job_id, data)


def encode_exception(
    handler: AnyHandler, job_id: str, error: BaseException, hidden: Collection[str]
) -> dict[str, Any]:
    """The exception of an attempt as a record, and, for a handler of pickles, the object itself."""
    record = exceptions.encode(error, {*hidden, called.__file__})
    if handler.options_given.codec == "pickle" and isinstance(error, Exception):
        signed = pickles.encode_exception(_ring(handler), handler.name, job_id, error)
        if signed is not None:
            record["pickle"] = signed
    return record


def _ring(handler: AnyHandler) -> KeyRing:
    return secret.need(handler._hive._core.ring())
