"""What a type checker says about programs that use TaskHive."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from taskhive import AsyncHive, Hive

hive = Hive()
loop = AsyncHive()

@hive.handler
def bare(path: str, width: int = 320) -> bytes:
    return b""

@hive.handler(timeout=5, name="other")
def with_options(path: str) -> list[int]:
    return []

@hive.handler
async def awaited(n: int) -> float:
    return 0.5

@loop.handler
def on_a_loop(n: int) -> str:
    return ""

reveal_type(bare("a", width=3))  # -> bytes
reveal_type(bare.dispatch("a", width=3))  # -> Job[bytes]
reveal_type(bare.dispatch("a").result(timeout=3))  # -> bytes
reveal_type(bare.options(delay=3).dispatch("a").result())  # -> bytes
reveal_type(bare.dispatch_many(["a"]))  # -> list[Job[bytes]]
reveal_type(with_options.dispatch("a").result())  # -> list[int]
reveal_type(awaited(3))  # -> Coroutine[Any, Any, float]
reveal_type(awaited.dispatch(3).result())  # -> float
reveal_type(hive.gather([bare.dispatch("a")]))  # -> list[bytes]
reveal_type(next(hive.as_completed([bare.dispatch("a")])))  # -> Job[bytes]
reveal_type(hive.queue("q").dispatch(1).result())  # -> Any

async def main() -> None:
    reveal_type(on_a_loop(3))  # -> str
    job = await on_a_loop.dispatch(3)
    reveal_type(job)  # -> AsyncJob[str]
    reveal_type(await job.result())  # -> str
    reveal_type(await loop.gather([job]))  # -> list[str]
    async for done in loop.as_completed([job]):
        reveal_type(done)  # -> AsyncJob[str]
    await on_a_loop.dispatch("x")  # error: arg-type
    await on_a_loop.options(delay=1).dispatch()  # error: call-arg

bare.dispatch(3)  # error: arg-type
bare.dispatch("a", height=3)  # error: call-arg
bare.dispatch()  # error: call-arg
bare.options(delay=3).dispatch("a", 3, 4)  # error: call-arg
with_options.dispatch("a", "b")  # error: call-arg
bare.dispatch("a").result().upper().count(3.5)  # error: arg-type
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What mypy says of the program, by line."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    program = tmp_path_factory.mktemp("typing") / "program.py"
    program.write_text(PROGRAM)
    words = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), str(program)]
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found: dict[int, list[str]] = {}
    for line in ran.stdout.splitlines():
        match = re.match(r".*program\.py:(\d+): (.*)", line)
        if match:
            found.setdefault(int(match[1]), []).append(match[2])
    assert found, ran.stdout + ran.stderr
    return found


def lines(mark: str) -> dict[int, str]:
    numbered = enumerate(PROGRAM.splitlines(), 1)
    return {number: line.partition(mark)[2] for number, line in numbered if mark in line}


def test_calls_dispatches_and_results_have_the_types_of_the_handler(said: dict[int, list[str]]) -> None:
    wanted = lines("# -> ")
    assert len(wanted) > 10
    for number, kind in wanted.items():
        note = next(one for one in said[number] if "Revealed" in one)
        revealed = re.sub(r"\b(?:[a-z_]+\.)+", "", note.partition('"')[2].rpartition('"')[0])
        assert revealed == kind, note


def test_wrong_arguments_are_found_and_nothing_else_is_complained_of(said: dict[int, list[str]]) -> None:
    wrong = lines("# error: ")
    assert len(wrong) > 5
    for number, code in wrong.items():
        assert any(f"[{code}]" in note for note in said.get(number, [])), (number, code)
    assert set(said) == set(wrong) | set(lines("# -> "))
