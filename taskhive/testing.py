"""For tests of programs that use TaskHive: a private server, a worker beside the test, inline handlers.

    pytest_plugins = ["taskhive.testing"]        # in conftest.py

brings the fixtures `taskhive_url`, `taskhive_worker` and `taskhive_inline`. The context managers behind
them, `server`, `worker` and `inline`, need no pytest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from taskhive import embedded, linux
from taskhive import secret as secrets
from taskhive.address import read_url
from taskhive.errors import ConfigurationError, HandlerError, NoServer, ServerError
from taskhive.handles import HiveBase
from taskhive.hive import Hive
from taskhive.inline import Inline

__all__ = ["Inline", "inline", "server", "worker"]

START_WITHIN = 30.0
_numbers = itertools.count()


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A server of its own, without files that stay; its URL."""
    with tempfile.TemporaryDirectory(prefix="th-") as folder:  # short: it holds a unix socket
        path = Path(folder, "s")
        words = [str(embedded.binary().path), "--port", "0", "--unixsocket", str(path), "--dir", folder]
        words += ["--save", "", "--appendonly", "no", "--logfile", str(Path(folder, "log"))]
        parent = os.getpid()
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, preexec_fn=lambda: linux.die_with_parent(parent)
        )
        try:
            url = f"unix://{path}"
            _until_it_answers(url, process)
            yield url
        finally:
            process.kill()
            process.wait()


def _until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_WITHIN
    with Hive(url) as hive:
        while True:
            try:
                hive.ping()
                return
            except ServerError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NoServer("the private server for tests did not start") from error
                time.sleep(0.005)


@contextlib.contextmanager
def worker(
    *handlers: str | Path | ModuleType, url: str, concurrency: int = 1, secret: str | None = None
) -> Iterator[Hive]:
    """A worker in the background; yields a hive of its server, with keys of its own.

    `handlers` are files or modules. The hives of a module that is given as such, and not as a name,
    dispatch to this worker until the end.
    """
    prefix = _prefix()
    words = [_file(one) for one in handlers]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.NamedTemporaryFile(prefix="taskhive-", suffix=".log"))
        given = {k: v for k, v in os.environ.items() if not k.startswith("TASKHIVE_")}
        given |= {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
        given |= {"TASKHIVE_PREFIX": prefix} | ({} if secret is None else {"TASKHIVE_SECRET": secret})
        options = ("--url", url, "--concurrency", str(concurrency), "--grace", "0")
        process = subprocess.Popen(
            [sys.executable, "-m", "taskhive.beside", "run", *words, *options],
            env=given,
            stdin=subprocess.PIPE,  # it ends when this process does
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_stop, process)
        _until_it_serves(process, Path(log.name))
        for hive in _hives(one for one in handlers if isinstance(one, ModuleType)):
            stack.enter_context(redirected(hive, url, prefix, secret))
            _look_nowhere(hive)
        made = stack.enter_context(Hive(url, prefix=prefix, secret=secret))
        _look_nowhere(made)
        yield made


@contextlib.contextmanager
def inline(*handlers: HiveBase | ModuleType, url: str) -> Iterator[Inline]:
    """Handlers that run in this process: when `run()` is called, and before anything is waited for.

    Until the end the hives dispatch to this server, under keys of their own.
    """
    prefix = _prefix()
    hives = [one for one in handlers if isinstance(one, HiveBase)]
    hives += _hives(one for one in handlers if isinstance(one, ModuleType))
    if not any(hive._registry.handlers for hive in hives):
        raise ConfigurationError("inline", "there is no handler", "Give the hive that has them")
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(Hive(url, prefix=prefix))
        made = Inline(own, hives)
        for hive in hives:
            stack.enter_context(redirected(hive, url, prefix, None))
            stack.enter_context(_before_waiting(hive, made.run))
        yield made


@contextlib.contextmanager
def redirected(hive: HiveBase, url: str, prefix: str, secret: str | None) -> Iterator[None]:
    """Let a hive that was made for somewhere else use this server."""
    core = hive._core
    names = ("target", "prefix", "_own_commands", "_secret", "_found", "_found_at")
    before = {name: vars(core)[name] for name in names if name in vars(core)}
    broker, hive._broker = getattr(hive, "_broker", None), None  # type: ignore[attr-defined]
    vars(core).update(target=read_url(url), prefix=prefix)
    vars(core).pop("_own_commands", None)
    if secret is not None:
        core._secret = Hive(url, secret=secret)._core.ring()
    core._found_at = 0
    try:
        yield
    finally:
        if isinstance(hive, Hive):
            hive.close()
        for name in names:
            vars(core).pop(name, None)
        vars(core).update(before)
        hive._broker = broker  # type: ignore[attr-defined]


def _look_nowhere(hive: HiveBase) -> None:
    """The worker of a test has none of this program's environment, so neither has who talks to it."""
    hive._core._found, hive._core._found_at = None, secrets.changes


@contextlib.contextmanager
def _before_waiting(hive: HiveBase, run: Callable[[], Any]) -> Iterator[None]:
    hive._before_waiting = run
    try:
        yield
    finally:
        hive._before_waiting = None


def _prefix() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


def _file(one: str | Path | ModuleType) -> str:
    if isinstance(one, ModuleType):
        if one.__file__ is None:
            raise ConfigurationError("handlers", f"{one!r} has no file", "Give a module of one file")
        return one.__file__
    return str(one)


def _hives(modules: Iterator[ModuleType]) -> list[HiveBase]:
    return [v for module in modules for v in vars(module).values() if isinstance(v, HiveBase)]


def _until_it_serves(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    while "worker.started" not in (said := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise HandlerError(f"the worker for tests did not start:\n{said}")
        time.sleep(0.005)


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


try:
    import pytest
except ImportError:  # the context managers do without
    pass
else:

    @pytest.fixture(scope="session")
    def taskhive_url() -> Iterator[str]:
        """The URL of a private server, shared by the tests of a session."""
        with server() as url:
            yield url

    @pytest.fixture
    def taskhive_worker(taskhive_url: str) -> Iterator[Callable[..., Hive]]:
        """Call it with files or modules: a worker runs them until the end of the test."""
        with contextlib.ExitStack() as stack:
            yield lambda *handlers, **more: stack.enter_context(
                worker(*handlers, url=taskhive_url, **more)
            )

    @pytest.fixture
    def taskhive_inline(taskhive_url: str) -> Iterator[Callable[..., Inline]]:
        """Call it with hives or modules: their handlers run in the test's own process."""
        with contextlib.ExitStack() as stack:
            yield lambda *handlers: stack.enter_context(inline(*handlers, url=taskhive_url))
