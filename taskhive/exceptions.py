"""Exceptions as records: written by the child, rebuilt by the client.

A record is plain JSON: the class by name, the text, the arguments and attributes that are JSON, notes,
the frames of its traceback, its cause, its context and, of a group, the exceptions in it. Writing one
calls methods of the user's (`__str__`), so each call is guarded and each text is cut. Reading
one is for hostile bytes: a class comes from a fixed table or was registered by this very program, and
nothing is imported, called or opened because a record names it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import Any

import tblib

from taskhive.errors import (
    BadPayload,
    BadSignature,
    ConfigurationError,
    NotEncodable,
    PayloadTooLarge,
    PermanentError,
    RemoteError,
    Retry,
)

MAX_TEXT = 16 * 1024
"""Characters of all texts of one record together."""
MAX_FRAMES = 50
MAX_EXCEPTIONS = 20
_MAX_NAME = 200
_MAX_FILE = 500
_MAX_DEPTH = 5
_MAX_LINE = 10_000_000
_SOURCE = (".py", ".pyi", ".pyw", ".pyx")

# A forged record must not end a loop, a generator or a program.
_NEVER = ("StopIteration", "StopAsyncIteration")
BUILT_IN: Mapping[str, type[Exception]] = {
    f"builtins.{kind.__name__}": kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind.__name__ not in _NEVER
}
OURS: Mapping[str, type[Exception]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (PermanentError, Retry, NotEncodable, PayloadTooLarge, BadPayload, BadSignature)
}


# Writing, in the child


def guarded(make: Callable[[], str], limit: int = MAX_TEXT) -> str:
    """A text of the user's making, cut in its middle, or why it could not be had."""
    try:
        text = make()
        if type(text) is not str:  # a subclass may have an opinion on slices too
            text = str.__str__(text)
        return text if len(text) <= limit else text[: limit // 2] + "\n...\n" + text[-(limit // 2) :]
    except BaseException as error:  # noqa: BLE001 -- the user's __str__ may raise anything
        return f"(could not be had: {type(error).__name__})"


class _Budget:
    """What one record may still hold."""

    def __init__(self) -> None:
        self.text = MAX_TEXT
        self.exceptions = MAX_EXCEPTIONS
        self.seen: set[int] = set()

    def words(self, make: Callable[[], str]) -> str:
        got = guarded(make, max(self.text, 200)).encode(errors="backslashreplace").decode()
        self.text -= len(got)
        return got


def encode(error: BaseException, hidden: Collection[str] = ()) -> dict[str, Any]:
    """An exception as JSON, whatever its methods do; leading frames of `hidden` files are left out."""
    return _record(error, _Budget(), frozenset(hidden), 0) or {}


def _record(
    error: BaseException | None, budget: _Budget, hidden: frozenset[str], depth: int
) -> dict[str, Any] | None:
    if error is None or id(error) in budget.seen or budget.exceptions <= 0 or depth > _MAX_DEPTH * 2:
        return None
    budget.seen.add(id(error))
    budget.exceptions -= 1
    made: dict[str, Any] = {
        "class": f"{_name(error, '__module__')}.{_name(error, '__qualname__')}",
        "message": budget.words(lambda: str(error)),
        "frames": _frames(error.__traceback__, hidden),
    }
    args = _plain(_arguments(error), budget)
    if args is not None:
        made["args"] = args["$tuple"]
    if attributes := _attributes(error, budget):
        made["attributes"] = attributes
    if notes := _notes(error, budget):
        made["notes"] = notes
    if isinstance(error, BaseExceptionGroup):
        made["message"] = budget.words(lambda: error.message)
        inside = [_record(one, budget, hidden, depth + 1) for one in error.exceptions]
        made["group"] = [one for one in inside if one is not None]
    cause = _record(error.__cause__, budget, hidden, depth + 1)
    if cause is not None:
        made["cause"] = cause
    if error.__suppress_context__:
        made["suppress"] = True
    else:
        context = _record(error.__context__, budget, hidden, depth + 1)
        if context is not None:
            made["context"] = context
    return made


def _arguments(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, OSError) and len(error.args) == 2 and type(error.filename) in (str, bytes):
        return (*error.args, error.filename)  # it takes three, and says that it has two
    return error.args


def class_name(error: BaseException) -> str:
    """The bare name of its class."""
    return _name(error, "__name__")


def _name(error: BaseException, which: str) -> str:
    return guarded(lambda: getattr(type(error), which), _MAX_NAME)


def _frames(trace: TracebackType | None, hidden: frozenset[str]) -> list[list[Any]]:
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden:
        trace = trace.tb_next
    frames: list[list[Any]] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append([code.co_filename[-_MAX_FILE:], code.co_name[:_MAX_NAME], trace.tb_lineno])
        if len(frames) > MAX_FRAMES:
            # The outermost ten show where it began, the rest where it ended.
            del frames[10]
        trace = trace.tb_next
    return frames


def _attributes(error: BaseException, budget: _Budget) -> dict[str, Any] | None:
    own = {k: v for k, v in vars(error).items() if not k.startswith("__")}
    made = {k[:_MAX_NAME]: plain for k, v in own.items() if (plain := _plain(v, budget)) is not None}
    return made or None


def _notes(error: BaseException, budget: _Budget) -> list[str]:
    notes = vars(error).get("__notes__")
    if not isinstance(notes, (list, tuple)):
        return []
    return [budget.words(lambda note=note: str(note)) for note in list(notes)[:20]]  # type: ignore[misc]


def _plain(value: Any, budget: _Budget) -> Any:
    """A value as JSON that can be read back the same, or None if it has no such form."""
    try:
        made, size = _portable(value, 0)
    except (ValueError, TypeError, UnicodeError, RecursionError):
        return None
    if size > budget.text:
        return None
    budget.text -= size
    return made


def _portable(value: Any, depth: int) -> tuple[Any, int]:
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if value is None:
        return {"$none": 0}, 4
    if kind is bool or (kind is int and abs(value) < 2**63) or (kind is float and value == value):
        if kind is float and value in (float("inf"), float("-inf")):
            raise ValueError("not JSON")
        return value, 20
    if kind is str:
        return value, len(value.encode())
    if kind is bytes:
        return {"$bytes": value.decode("latin-1")}, 2 * len(value)
    if kind in (list, tuple):
        if len(value) > 1000:
            raise ValueError("too long")
        items = [_portable(one, depth + 1) for one in value]
        made: Any = [item for item, _ in items]
        return (made if kind is list else {"$tuple": made}), 2 + sum(size for _, size in items)
    if kind is dict and len(value) <= 1000 and all(type(key) is str for key in value):
        pairs = {key: _portable(one, depth + 1) for key, one in value.items()}
        if any(key.startswith("$") for key in pairs):
            raise ValueError("would be read as something else")
        return {k: item for k, (item, _) in pairs.items()}, sum(
            len(k) + s for k, (_, s) in pairs.items()
        )
    raise TypeError("not JSON")


# Reading, in the client


def checked_class(kind: Any) -> type[Exception]:
    """A class that a client may register."""
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ConfigurationError(
            "exception", f"{kind!r} is no subclass of Exception", "Register an exception class"
        )
    if issubclass(kind, (StopIteration, StopAsyncIteration)):
        raise ConfigurationError(
            "exception", f"{kind.__name__} would end loops of the reader", "Choose another base class"
        )
    return kind


def rebuild(record: Any, registered: Mapping[str, type[Exception]]) -> Exception | None:
    """The exception of a record that anybody may have written; None if it is no record at all."""
    return _rebuilt(record, registered, 0, [MAX_EXCEPTIONS])


def _rebuilt(
    record: Any, registered: Mapping[str, type[Exception]], depth: int, left: list[int]
) -> Exception | None:
    if not isinstance(record, dict) or depth > _MAX_DEPTH * 2 or left[0] <= 0:
        return None
    left[0] -= 1
    name = str(record.get("class", "?"))[: 2 * _MAX_NAME]
    message = str(record.get("message", ""))[:MAX_TEXT]
    inside = record.get("group")
    group = None
    if isinstance(inside, list):
        found = [_rebuilt(one, registered, depth + 1, left) for one in inside[:MAX_EXCEPTIONS]]
        group = [one for one in found if one is not None]
    made = _instance(name, message, record, registered, group)
    if made is None:
        made = RemoteError(name.removeprefix("builtins."), message)
    notes = record.get("notes")
    for note in notes[:20] if isinstance(notes, list) else ():
        made.add_note(str(note)[:MAX_TEXT])
    made.__cause__ = _rebuilt(record.get("cause"), registered, depth + 1, left)
    made.__context__ = _rebuilt(record.get("context"), registered, depth + 1, left)
    made.__suppress_context__ = record.get("suppress") is True
    return made.with_traceback(traceback_of(record.get("frames")))


def _instance(
    name: str,
    message: str,
    record: dict[str, Any],
    registered: Mapping[str, type[Exception]],
    group: list[Exception] | None,
) -> Exception | None:
    kind = registered.get(name) or BUILT_IN.get(name) or OURS.get(name)
    if kind is None:
        return None
    try:
        args = tuple(_value(one, 0) for one in record["args"])
    except (KeyError, TypeError, ValueError):
        args = (message,)
    if group is not None:
        args = (message, group)
    try:
        # No constructor of the user's is called: it may take other arguments than it kept.
        made = kind(*args) if name in BUILT_IN and name not in registered else _bare(kind, args)
        if not isinstance(made, Exception):
            return None
        if name not in BUILT_IN or name in registered:
            _restore(made, record.get("attributes"))
        return made
    except Exception:  # noqa: BLE001 -- a __new__ or a property of the user's may raise anything
        return None


def _bare(kind: type[Exception], args: tuple[Any, ...]) -> Exception:
    try:
        made = kind.__new__(kind, *args)
    except TypeError:
        made = kind.__new__(kind)
    if not isinstance(made, (BaseExceptionGroup, OSError)):  # these have read them already
        made.args = args
    return made


def _restore(made: Exception, attributes: Any) -> None:
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(name, str) and name.isidentifier() and not name.startswith("__"):
            made.__dict__[name] = _value(value, 0)


def _value(plain: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH + 1:
        raise ValueError("too deep")
    if isinstance(plain, list):
        return [_value(one, depth + 1) for one in plain]
    if isinstance(plain, dict):
        match plain:
            case {"$none": _}:
                return None
            case {"$bytes": str(text)}:
                return text.encode("latin-1")
            case {"$tuple": list(items)}:
                return tuple(_value(one, depth + 1) for one in items)
        return {key: _value(one, depth + 1) for key, one in plain.items()}
    return plain


def traceback_of(frames: Any) -> TracebackType | None:
    """A traceback that shows these frames; made by tblib, and of nothing that could be called."""
    top = None
    for file, function, line in reversed(list(_checked_frames(frames))):
        names = {"__name__": "?", "__file__": file}
        code = {"co_filename": file, "co_name": function}
        frame = {"f_globals": names, "f_locals": {}, "f_code": code, "f_lineno": line}
        top = {"tb_frame": frame, "tb_lineno": line, "tb_next": top}
    if top is None:
        return None
    made: TracebackType | None = tblib.Traceback.from_dict(top).as_traceback()
    return made


def _checked_frames(frames: Any) -> Iterator[tuple[str, str, int]]:
    for one in frames[: MAX_FRAMES + 1] if isinstance(frames, list) else ():
        match one:
            case [str(file), str(function), int(line)] if 0 <= line <= _MAX_LINE:
                file, function = (
                    text.encode(errors="backslashreplace").decode().replace("\0", "?")
                    for text in (file[:_MAX_FILE], function[:_MAX_NAME])
                )
                # Printing a traceback opens its files. A forged one must not name /dev/zero.
                if not file.endswith(_SOURCE) and not file.startswith("<"):
                    file = f"<{file}>"
                yield (f"{file}>" if file.startswith("<") and file[-1:] != ">" else file), function, line
