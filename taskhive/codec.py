"""Arguments and results as bytes: strict JSON, or raw bytes, behind one byte that says which.

    j  a JSON array: the positional arguments; for a result: any JSON value
    k  a JSON array of two: positional arguments, keyword arguments
    r  the bytes themselves: one positional argument, or a result
    p  a signed pickle, which is not opened here: see `signing`
    s  one of the first three, signed: read here as it stands, verified by `payloads`

What JSON would change silently is refused (NaN, keys that are not strings, lone surrogates); tuples
travel as arrays. Decoding is for hostile bytes: duplicate keys, constants, depth and digits are checked.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any

from taskhive.errors import BadPayload as BadPayload
from taskhive.errors import ConfigurationError, NotEncodable, PayloadTooLarge

MAX_DEPTH = 100
MAX_DIGITS = 1000
MAX_PAYLOAD = 1024 * 1024
MAX_RESULT = 1024 * 1024
CODECS = ("json", "raw", "pickle")
SIGNED = b"s"
ENVELOPE = 50
"""Bytes of a signature before what is signed."""

_BIG = 10**MAX_DIGITS
_INFINITE = (float("inf"), float("-inf"))
_LEAVES = frozenset({str, float, bool, type(None)})


def _encoder() -> Callable[[Any], str]:
    """Strict JSON of a value.

    `JSONEncoder.encode` makes a new C encoder for every call, which takes longer than a small value
    takes to encode; this one is made once. It keeps nothing between calls, so threads may share it.
    """
    plain = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C module
        return plain.encode
    text: Any = json.encoder.encode_basestring
    chunks = make(None, plain.default, text, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_encode = _encoder()


class Sealed(BadPayload):
    """A signed pickle: it is opened where it is used, and nowhere else."""


def encode_call(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    codec: str = "json",
    limit: int = MAX_PAYLOAD,
) -> bytes:
    """The payload of a dispatch; refuses what could not be read back the same."""
    if codec == "raw":
        if len(args) != 1 or kwargs or not isinstance(args[0], (bytes, bytearray, memoryview)):
            raise ConfigurationError(
                "codec", "raw takes one bytes argument", "Use .dispatch(b'...') alone"
            )
        data = b"r" + bytes(args[0])
    elif kwargs:
        data = b"k" + _json((args, kwargs), ("args", "kwargs"))
    else:
        data = b"j" + _json(args, "args")
    if len(data) > limit:
        raise PayloadTooLarge(
            len(data),
            limit,
            "the arguments",
            "Store the data elsewhere and pass its name, or raise Hive(max_payload=...)",
        )
    return data


def encode_result(value: Any, *, limit: int = MAX_RESULT) -> bytes:
    """The stored form of a handler's result; bytes travel as they are."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = b"r" + bytes(value)
    else:
        data = b"j" + _json(value, "result")
    if len(data) > limit:
        raise PayloadTooLarge(
            len(data),
            limit,
            "the result",
            "Store it elsewhere and return its name, or raise Hive(max_result=...)",
        )
    return data


def decode_call(data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a payload; BadPayload for anything that encode_call would not write."""
    kind, body = _parts(data)
    if kind == b"r":
        return (body,), {}
    if kind not in (b"j", b"k"):
        if kind == b"p":
            raise Sealed("a signed pickle, in a queue whose handler takes data only")
        raise BadPayload(f"unknown codec {kind!r} in a payload")
    value = _parse(body)
    if kind == b"j" and isinstance(value, list):
        return tuple(value), {}
    if kind == b"k" and isinstance(value, list) and len(value) == 2:
        args, kwargs = value
        if isinstance(args, list) and isinstance(kwargs, dict):
            return tuple(args), kwargs
    raise BadPayload("a payload that is not a call")


def decode_result(data: bytes) -> Any:
    """A result from its stored form."""
    kind, body = _parts(data)
    if kind == b"r":
        return body
    if kind != b"j":
        if kind == b"p":
            raise Sealed("a result that is a signed pickle")
        raise BadPayload(f"unknown codec {kind!r} in a result")
    return _parse(body)


def _parts(data: bytes) -> tuple[bytes, bytes]:
    at = ENVELOPE if data[:1] == SIGNED else 0
    return data[at : at + 1], data[at + 1 :]


def _json(value: Any, path: str | tuple[str, str]) -> bytes:
    if not _is_json(value, MAX_DEPTH + 1):
        _complain(value, path)
    try:
        return _encode(value).encode()
    except ValueError:  # NaN, or a lone surrogate: found by the encoder at its own speed
        _complain(value, path)
        raise


def _is_json(value: Any, depth: int) -> bool:
    """Whether JSON keeps the value as it is; says nothing about where it does not."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is int:
        return bool(-_BIG < value < _BIG)
    if depth == 0:
        return False
    if isinstance(value, (list, tuple)):
        return all([_is_json(item, depth - 1) for item in value if type(item) not in _LEAVES])
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str or (type(item) not in _LEAVES and not _is_json(item, depth - 1)):
                return False
        return True
    return isinstance(value, (str, float)) or (isinstance(value, int) and -_BIG < value < _BIG)


def _complain(value: Any, path: str | tuple[str, str]) -> None:
    """Find the offending value and say where it is; silent if there is none."""
    if isinstance(path, tuple):
        for part, name in zip(value, path, strict=True):
            _complain(part, name)
        return
    stack: list[tuple[Any, str, int]] = [(value, path, 0)]
    while stack:
        item, where, depth = stack.pop()
        problem = _problem(item, depth)
        if problem:
            raise NotEncodable(where, problem)
        if isinstance(item, dict):
            for key, inner in reversed(list(item.items())):
                if not isinstance(key, str):
                    raise NotEncodable(where, f"key {key!r} is not a string; JSON has only those")
                if _lone_surrogate(key):
                    raise NotEncodable(where, f"key {key!r} has a lone surrogate")
                stack.append((inner, f"{where}[{key!r}]", depth + 1))
        elif isinstance(item, (list, tuple)):
            inside = enumerate(item)
            stack.extend(reversed([(x, f"{where}[{i}]", depth + 1) for i, x in inside]))


def _problem(item: Any, depth: int) -> str | None:
    if isinstance(item, str):
        return "text with a lone surrogate has no UTF-8 form" if _lone_surrogate(item) else None
    if isinstance(item, float):
        return f"{item!r} is not JSON" if item != item or item in _INFINITE else None
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, int):
        return None if -_BIG < item < _BIG else f"an int of more than {MAX_DIGITS} digits"
    if isinstance(item, (list, tuple, dict)):
        return f"nested deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else None
    remedy = {
        "bytes": "; send bytes alone with options(codec='raw'), or as base64 text",
        "datetime": "; send .isoformat()",
        "set": "; send a sorted list",
        "ndarray": "; send .tolist(), or store it and send its name",
    }.get(type(item).__name__, "")
    return f"{type(item).__name__} is not JSON{remedy}"


def _lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _checked_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise ValueError(f"an int of more than {MAX_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in _INFINITE:  # 1e999 is grammar, but no number that was ever encoded
        raise ValueError(f"{digits[:20]} is too large for a float")
    return number


_decode = json.JSONDecoder(
    object_pairs_hook=_no_duplicates,
    parse_constant=_no_constant,
    parse_int=_checked_int,
    parse_float=_finite,
).decode


def _parse(body: bytes) -> Any:
    try:
        value = _decode(body.decode())
        if b"\\ud" in body or b"\\uD" in body:
            _encode(value).encode()  # half a pair, escaped, has no UTF-8 form; a whole pair has
    except (ValueError, RecursionError) as error:
        raise BadPayload(f"bytes that are not strict JSON: {error}") from error
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and not _is_json(value, MAX_DEPTH + 2):
        raise BadPayload(f"JSON nested deeper than {MAX_DEPTH}")
    return value
