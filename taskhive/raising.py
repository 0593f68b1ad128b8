"""What a worker is told of an exception: how to go on, and its record."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from collections.abc import Collection
from typing import Any, NamedTuple

from taskhive import calls, codec, exceptions
from taskhive.errors import PayloadTooLarge, PermanentError, Retry, SoftTimeout
from taskhive.handlers import Handler

_OURS = {__file__, calls.__file__, asyncio.runners.__file__, asyncio.base_events.__file__}


class Told(NamedTuple):
    """One exception, for the supervisor."""

    kind: str
    after: float | None
    at: float | None
    record: bytes


def tell(
    handler: Handler[Any, Any, Any],
    job_id: str,
    error: BaseException,
    attempt: int,
    encoding: bool,
    callers: Collection[str],
) -> Told:
    """An exception as JSON, whatever its methods do; nothing of it is trusted to be short.

    `encoding` says that the handler was done and its result could not be encoded; `callers` are
    the files that called the handler, whose frames are no news.
    """
    kind, after, at = "error", None, None
    name = exceptions.class_name(error)
    options = handler.options_given
    if encoding:
        kind = "permanent"
        name = "ResultTooLarge" if isinstance(error, PayloadTooLarge) else "ResultEncode"
    elif isinstance(error, (codec.BadPayload, PermanentError, *options.permanent)):
        kind = "permanent"
    elif isinstance(error, Retry):
        after, at = error.after, error.at
    elif isinstance(error, SoftTimeout):
        kind = "timeout"
    elif options.backoff is not None:
        with contextlib.suppress(Exception):  # a broken backoff leaves the exponential one
            after = float(options.backoff(attempt, error))
    hidden = frozenset((*_OURS, *callers))
    record = {
        "type": name[:200],
        "message": exceptions.guarded(lambda: str(error)),
        "traceback": exceptions.guarded(lambda: _traceback(error, hidden)),
        "exception": calls.encode_exception(handler, job_id, error, hidden),
    }
    return Told(kind, after, at, json.dumps(record).encode())


def _traceback(error: BaseException, hidden: frozenset[str]) -> str:
    # Bounded before it is formatted: a message of 100 MB need not be copied to be cut.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-50)
    return "".join(line[:4096] for line in lines)
