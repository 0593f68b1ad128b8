"""Imports the user's handler files; the only place that does."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from taskhive import units
from taskhive.errors import ConfigurationError, HandlerError
from taskhive.handler_options import FAILURE_HANDLER, HandlerOptions
from taskhive.handlers import Handler
from taskhive.handles import HiveBase
from taskhive.hive import Hive
from taskhive.units import LANE_SUFFIX

CALLED = "taskhive.called"
"""Serves an Executor, on a queue that the command line names."""


class Loaded:
    """What the named files offer."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler[Any, Any, Any]] = {}
        self.child_starts: list[Any] = []
        self.hives: list[HiveBase] = []
        self.files: list[str] = []

    def take(self, hive: HiveBase) -> None:
        """Take in all a hive knows, once."""
        if any(hive is known for known in self.hives):
            return
        self.hives.append(hive)
        self.child_starts += hive._registry.child_starts
        for name, handler in hive._registry.handlers.items():
            if name in self.handlers:
                raise HandlerError(f"two handlers for the queue {name!r}: give one another name")
            self.handlers[name] = handler

    @property
    def max_result(self) -> int:
        """What a result may take: as much as the most generous of the hives says."""
        return max(hive._core.max_result for hive in self.hives)

    def targets(self) -> set[str]:
        """The servers the hives were given, if any."""
        return {str(hive._core._given) for hive in self.hives if hive._core._given is not None}


def load(names: Sequence[str], queue: str | None = None) -> Loaded:
    """Import files and modules and collect their handlers."""
    loaded = Loaded()
    uses_queue = False
    for name in names:
        module, attribute = _import(name)
        loaded.files.append(getattr(module, "__file__", None) or name)
        found = _hives(module, attribute, name)
        for hive in found:
            loaded.take(hive)
        if not found:
            _take_bare(loaded, module, name, queue)
        uses_queue = uses_queue or not found or module.__name__ == CALLED
    if not loaded.handlers:
        raise HandlerError(
            f"no handler in {', '.join(names)}: decorate a function with @hive.handler, or define "
            "handle(data, job)"
        )
    if queue is not None and not uses_queue:
        # Left out of account, it would look as if this worker served that queue alone.
        raise HandlerError(
            f"--queue {queue}: it names the queue of a bare handle(data, job), and there is none. "
            "Handlers of a Hive have queues of their own: leave it out"
        )
    return loaded


def _import(name: str) -> tuple[ModuleType, str]:
    path, _, attribute = name.partition(":") if not Path(name).exists() else (name, "", "")
    try:
        if path.endswith(".py") or "/" in path:
            return _import_file(Path(path)), attribute
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        return importlib.import_module(path), attribute
    except HandlerError:
        raise
    except BaseException as error:  # the user's module may raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            raise HandlerError(
                f"there is no module {error.name}. Name a file of handlers (handlers.py), a module that "
                "can be imported from here, or a command: see taskhive --help"
            ) from error
        raise HandlerError(f"cannot import {name}:\n\n{_own_traceback(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        seen_from = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise HandlerError(f"there is no file {path}{seen_from}: name a file of handlers")
    path = path.resolve()
    # As `python file.py` would: its folder comes first, so that it finds its neighbours.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if known is not None:
        raise HandlerError(
            f"{path.name} would hide the module {path.stem!r} that is loaded already: rename the file"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise HandlerError(f"{path} is not a Python file: name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _own_traceback(error: BaseException) -> str:
    """The traceback with the user's lines alone: what is ours or the importer's is no news."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not _is_machinery(frame)]
    )
    return "".join(told.format()).rstrip()


def _is_machinery(frame: traceback.FrameSummary) -> bool:
    file = frame.filename
    return (
        file.startswith("<frozen importlib")
        or file == importlib.__file__
        or Path(file).parent == Path(__file__).parent
        # What dataclasses write for the options of a handler.
        or (file == "<string>" and frame.name == "__init__")
    )


def _hives(module: ModuleType, attribute: str, name: str) -> list[HiveBase]:
    if attribute:
        hive = getattr(module, attribute, None)
        if not isinstance(hive, HiveBase):
            there = [key for key, value in vars(module).items() if isinstance(value, HiveBase)]
            known = f"its hives are: {', '.join(there)}" if there else "it has none"
            raise HandlerError(f"{name}: {attribute} is not a Hive; {known}")
        return [hive]
    return [value for value in vars(module).values() if isinstance(value, HiveBase)]


def _take_bare(loaded: Loaded, module: ModuleType, name: str, queue: str | None) -> None:
    """A module without a hive: `handle(data, job)` and, if it likes, `handle_failure`."""
    handle = getattr(module, "handle", None)
    if not callable(handle):
        raise HandlerError(
            f"{name} has neither a Hive nor a function handle(data, job): write hive = Hive() and put "
            "@hive.handler above a function"
        )
    try:
        own_name = units.queue_name(queue or module.__name__.rpartition(".")[2])
    except ConfigurationError as error:
        raise HandlerError(f"{name}: {error}") from error
    hive = Hive()

    def run(*args: Any, job: Any, **kwargs: Any) -> Any:
        return handle(_data(args, kwargs), job)

    hive._register(run, own_name, HandlerOptions())
    handle_failure = getattr(module, "handle_failure", None)
    if callable(handle_failure):

        def run_failure(failure: Any, job: Any) -> Any:
            return handle_failure(_data(failure.args, failure.kwargs), job, failure.error)

        hive._register(run_failure, own_name + LANE_SUFFIX, FAILURE_HANDLER)
    loaded.take(hive)


def _data(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The one argument; or, of a job dispatched otherwise, all of them."""
    if args and kwargs:
        return {"args": list(args), "kwargs": kwargs}
    if len(args) == 1:
        return args[0]
    return kwargs if not args else list(args)
