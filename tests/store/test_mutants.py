"""The walk against scripts with a known mistake in them: it must notice each."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from taskhive import TaskHiveError, scripts
from tests.servers import Server
from tests.store import clock
from tests.store.clock import clock_fixture  # noqa: F401
from tests.store.mutants import MUTANTS, Mutant
from tests.store.one_server import one_server_fixture  # noqa: F401
from tests.store.walker import Walker
from tests.store.walker_compare import Violation
from tests.store.walker_crew import Crew
from tests.store.walker_wire import Scripts, Wire

WITHIN = 20_000
WALK = 80


def test_there_are_enough_mistakes_and_each_is_told_once() -> None:
    assert len(MUTANTS) >= 25
    assert len({one.mistake for one in MUTANTS}) == len(MUTANTS)


def by_walk() -> list[Mutant]:
    return [one for one in MUTANTS if not one.killer]


def named() -> list[Mutant]:
    return [one for one in MUTANTS if one.killer]


@pytest.mark.parametrize("mutant", by_walk(), ids=lambda one: one.mistake.replace(" ", "-"))
def test_the_walk_notices_that(
    mutant: Mutant,
    server: Server,
    prefix: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    mutated = Scripts(mutant.put_into(tmp_path))
    with Wire(server.socket) as wire:
        compiles(wire, mutated)
        steps = noticed_after(wire, mutated, prefix)
    assert steps is not None, f"{WITHIN:,} steps went by without anybody noticing that {mutant.mistake}"
    record_property("report", f"noticed after {steps:,} steps")


def compiles(wire: Wire, mutated: Scripts) -> None:
    """A mistake of grammar would be noticed at once, and prove nothing."""
    for name, text in mutated.texts.items():
        (digest,) = wire.call([b"SCRIPT", b"LOAD", text])
        assert digest == hashlib.sha1(text).hexdigest().encode(), f"{name}: {digest}"


def noticed_after(wire: Wire, mutated: Scripts, prefix: str) -> int | None:
    steps, seed = 0, 0
    while steps < WITHIN:
        walker = Walker(wire, mutated, f"{prefix}-{seed}")
        crew = Crew(walker, random.Random(seed))
        try:
            while walker.figures["steps"] < WALK:
                crew.step()
            crew.drain()
        except Violation:
            return steps + walker.figures["steps"]
        except AssertionError:  # not empty after the drain
            return steps + walker.figures["steps"]
        finally:
            walker.clean_up()
        steps += walker.figures["steps"]
        seed += 1
    return None


@pytest.mark.parametrize("mutant", named(), ids=lambda one: one.mistake.replace(" ", "-"))
def test_a_test_of_its_own_notices_that(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module, _, function = mutant.killer.partition("::")
    function, _, chosen = function.rstrip("]").partition("[")
    test = getattr(importlib.import_module(f"tests.store.{module}"), function)
    wrong = mutant.put_into(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(scripts, "lua_directory", lambda: wrong)
        scripts.script.cache_clear()
        clock.script.cache_clear()
        try:
            given = dict(pair.split("=") for pair in chosen.split(",") if pair)
            wanted = [name for name in inspect.signature(test).parameters if name not in given]
            with pytest.raises((AssertionError, TaskHiveError, pytest.fail.Exception)):
                test(**given, **{name: request.getfixturevalue(name) for name in wanted})
        finally:
            scripts.script.cache_clear()
            clock.script.cache_clear()
