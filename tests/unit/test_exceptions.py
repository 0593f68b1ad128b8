"""Exceptions as records: what comes back is what was raised, and a forged record does nothing."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from taskhive import ConfigurationError, PermanentError, RemoteError
from taskhive.exceptions import MAX_EXCEPTIONS, MAX_TEXT, checked_class, encode, rebuild


class Odd(Exception):
    """A constructor that takes something else than it keeps."""

    def __init__(self, code: int, *, hint: str = "") -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


class Missing(OSError):
    pass


REGISTERED = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (Odd, Missing)}


def deep(error: BaseException, calls: int = 3) -> None:
    if calls:
        deep(error, calls - 1)
    raise error


def raised(error: BaseException) -> BaseException:
    try:
        deep(error)
    except BaseException as caught:  # noqa: BLE001 -- any, as a handler's
        return caught
    raise AssertionError


def travelled(error: BaseException, registered: Any = REGISTERED) -> Exception:
    record = json.loads(json.dumps(encode(raised(error))))
    made = rebuild(record, registered)
    assert made is not None
    return made


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError("bad", 3, None, (1, ["x"]), {"a": b"\xff"}),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "nope.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ZeroDivisionError(),
        PermanentError("not an image"),
        Odd(7, hint="x"),
        Missing(2, "No such file", "nope.txt"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_known_exception_comes_back_as_it_was(error: Exception) -> None:
    made = travelled(error)
    assert type(made) is type(error)
    assert (made.args, str(made), vars(made)) == (error.args, str(error), vars(error))


def test_the_traceback_names_file_line_and_function_of_the_raiser() -> None:
    made = travelled(ValueError("bad"))
    frames = traceback.extract_tb(made.__traceback__)
    assert [frame.name for frame in frames][-4:] == ["deep"] * 4
    assert frames[-1].filename == __file__
    assert frames[-1].line == "raise error"


def test_causes_contexts_and_notes_are_kept() -> None:
    error = ValueError("outer")
    error.add_note("a note")
    error.__cause__ = raised(KeyError("cause"))
    error.__cause__.__context__ = raised(TypeError("context"))
    made = travelled(error)
    assert made.__notes__ == ["a note"]
    assert repr(made.__cause__) == "KeyError('cause')"
    assert made.__cause__ is not None
    assert repr(made.__cause__.__context__) == "TypeError('context')"
    assert made.__suppress_context__
    text = "".join(traceback.format_exception(made))
    assert "The above exception was the direct cause" in text
    assert "During handling of the above exception" in text


def test_groups_are_kept_with_what_is_in_them() -> None:
    inner = ExceptionGroup("inner", [raised(Odd(1)), raised(KeyError("k"))])  # type: ignore[type-var]
    made = travelled(ExceptionGroup("outer", [inner, ValueError("x")]))
    assert isinstance(made, ExceptionGroup)
    first, second = made.exceptions
    assert isinstance(first, ExceptionGroup)
    assert [type(one) for one in first.exceptions] == [Odd, KeyError]
    assert repr(second) == "ValueError('x')"
    assert traceback.extract_tb(first.exceptions[0].__traceback__)[-1].name == "deep"


def test_an_unknown_class_becomes_a_remote_error_with_its_name_and_traceback() -> None:
    made = travelled(Odd(7), {})
    assert isinstance(made, RemoteError)
    assert made.type_name.endswith(".Odd")
    assert made.text == "code 7"
    assert traceback.extract_tb(made.__traceback__)[-1].name == "deep"


@pytest.mark.parametrize(
    "error",
    [StopIteration(1), StopAsyncIteration(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
)
def test_what_would_end_a_loop_or_a_program_comes_back_as_a_remote_error(error: BaseException) -> None:
    made = travelled(error)
    assert isinstance(made, RemoteError)
    assert made.type_name == type(error).__name__


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


class Loud(Exception):
    def __str__(self) -> str:
        return "x" * 1_000_000


class Chatty(str):
    __slots__ = ()

    def __getitem__(self, index: Any) -> str:
        raise KeyError(index)


class Subclassed(Exception):
    def __str__(self) -> str:
        return Chatty("y" * 100_000)


def test_whatever_its_methods_do_a_record_is_made_and_is_short() -> None:
    notes = ValueError("x" * 100_000, b"y" * 100_000, object())
    notes.__notes__ = ["n" * 100_000] * 50
    notes.huge = list(range(100_000))  # type: ignore[attr-defined]
    notes.lone = "\ud800"  # type: ignore[attr-defined]
    chain: BaseException = ValueError("end")
    for _ in range(500):
        before, chain = chain, ValueError("z" * 10_000)
        chain.__cause__ = before
    loop = ValueError("loop")
    loop.__context__ = KeyError("back")
    loop.__context__.__context__ = loop
    group = ExceptionGroup("many", [ValueError("v" * 5000) for _ in range(1000)])
    for error in (Hostile(), Loud(), Subclassed(), notes, chain, loop, group):
        record = encode(raised(error))
        assert len(json.dumps(record)) < 4 * MAX_TEXT + 8000 * MAX_EXCEPTIONS
        made = rebuild(json.loads(json.dumps(record)), REGISTERED)
        assert made is not None
        assert "".join(traceback.format_exception(made))


def test_a_recursion_error_keeps_its_first_and_its_last_frames() -> None:
    def endless(number: int) -> int:
        return endless(number + 1) + 1

    try:
        endless(0)
    except RecursionError as error:
        made = rebuild(encode(error), {})
    assert made is not None
    names = [frame.name for frame in traceback.extract_tb(made.__traceback__)]
    assert names[0].startswith("test_a_recursion")
    assert names[-1] == "endless"
    assert len(names) == 50


def test_forged_records_are_harmless(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w')"
    device = [["/dev/zero", "x", 1], ["/dev/stdin", "x", 1], ["/etc/passwd", "x", 1]]
    forged: list[Any] = [
        None,
        [],
        "x",
        {},
        {"class": "os.system", "args": [f"touch {canary}"]},
        {"class": "builtins.eval", "args": [code]},
        {"class": "builtins.exec", "message": code},
        {"class": "builtins.SystemExit", "args": [1]},
        {"class": "builtins.KeyboardInterrupt"},
        {"class": "builtins.StopIteration", "args": [1]},
        {"class": "subprocess.Popen", "args": [["touch", str(canary)]]},
        {"class": f"{__name__}.Odd", "attributes": {"__class__": "x", "__dict__": {}, "args": 3}},
        {"class": "builtins.ExceptionGroup", "message": "g", "group": []},
        {"class": "builtins.ExceptionGroup", "message": "g", "group": [None, 3]},
        {"class": "builtins.UnicodeDecodeError", "args": [1]},
        {"class": "builtins.ValueError", "args": {"$tuple": 1}, "frames": device, "notes": [1, None]},
        {"class": "builtins.ValueError", "frames": [["a.py", "f", 10**30], ["a.py", "f", -1], [1], 3]},
        {"class": "builtins.ValueError", "frames": [["a\0.py", "\ud800", 1]] * 1000},
        {"class": ["x"], "message": {"a": 1}, "frames": {"a": 1}, "group": "x", "cause": 3},
    ]
    bomb: dict[str, Any] = {"class": "builtins.ValueError"}
    for _ in range(500):
        bomb = {"class": "builtins.ValueError", "cause": bomb, "group": [bomb], "args": [[[bomb]]]}
    for record in [*forged, bomb]:
        made = rebuild(record, REGISTERED)
        assert made is None or type(made).__mro__.index(Exception)
        if made is not None:
            assert "daemon" not in "".join(traceback.format_exception(made))
    assert not canary.exists()


@pytest.mark.parametrize(
    "kind", [int, KeyboardInterrupt, BaseException, StopIteration, "ValueError", None]
)
def test_what_cannot_be_raised_safely_cannot_be_registered(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="exception"):
        checked_class(kind)
