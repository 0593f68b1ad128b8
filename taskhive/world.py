"""What surrounds a supervisor: processes, the server, signals, files. A simulation has its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from taskhive import embedded, linux, orphans, secret
from taskhive.address import EMBEDDED, read_url
from taskhive.aio_broker import AsyncBroker
from taskhive.commands import Commands
from taskhive.core import DEFAULT_PREFIX, IO_TIMEOUT
from taskhive.doorbell import Doorbell
from taskhive.errors import ConfigurationError
from taskhive.exchanger import Runner
from taskhive.ids import nonce
from taskhive.session import Session
from taskhive.signing import KeyRing
from taskhive.spawner import Reports, Spawner, Zygote
from taskhive.worker_options import WorkerOptions

OUTAGE_PATIENCE = 5.0
"""After so long without an answer it is said once more that the server is away."""

Catalog = dict[str, Any]


class World(Protocol):
    """The edges of a worker."""

    seed: int | None
    where: str
    """The server, in words."""

    def settle_in(self, signalled: Callable[[int], None]) -> None:
        """Prepare this process; tell of signals."""
        ...

    def spawner(self, options: WorkerOptions, reports: Reports) -> Spawner:
        """What makes children."""
        ...

    def connect(self, options: WorkerOptions, catalog: Catalog) -> tuple[Runner, Commands]:
        """The way to the server."""
        ...

    def bell(
        self,
        commands: Commands,
        queues: Collection[str],
        rung: Callable[[str], None],
        hinted: Callable[[str, str], None],
    ) -> Awaitable[None]:
        """Listen for bells and hints of all queues, for ever."""
        ...

    def watch(
        self, catalog: Catalog, reload: Callable[[list[str]], Awaitable[Catalog | None]]
    ) -> Awaitable[None]:
        """Call `reload` whenever a file of the project changes, for ever."""
        ...

    def tidy(self, spawners: Sequence[Spawner]) -> None:
        """Clear away what fell to this process and is none of `spawners`."""
        ...

    async def close(self) -> None:
        """Let go of the server."""
        ...


class RealWorld:
    """This machine."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self.where = ""
        self._broker: AsyncBroker | None = None
        self._keys: KeyRing | None = None
        self._ensuring = threading.Lock()

    def settle_in(self, signalled: Callable[[int], None]) -> None:
        """Adopt what escapes from the zygote; listen to the signals that stop a worker."""
        linux.become_subreaper()
        linux.set_title("taskhive supervisor: starting")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled, number)

    def spawner(self, options: WorkerOptions, reports: Reports) -> Spawner:
        """A zygote process."""
        name = options.name or socket.gethostname()
        settings = {"queue": options.queue, "worker": f"{name}-{os.getpid()}-{nonce()}"}
        return Zygote(options.files, settings, reports, lambda: self._keys)

    def connect(self, options: WorkerOptions, catalog: Catalog) -> tuple[Runner, Commands]:
        """As the command line says, else the hives, else the environment, else the embedded server."""
        url = options.url or catalog["url"] or os.environ.get("TASKHIVE_URL")
        target = read_url(url) if url else EMBEDDED
        prefix = catalog["prefix"] or os.environ.get("TASKHIVE_PREFIX") or DEFAULT_PREFIX
        self.where = str(target)
        home = embedded.directory(os.environ) if target is EMBEDDED else None
        self._keys = secret.find(os.environ, lambda: home)
        if not catalog["has_secret"]:
            secret.need(self._keys)
        linux.set_title(f"taskhive supervisor: {' '.join(sorted(catalog['handlers']))}")
        self._broker = AsyncBroker(
            target, lambda: embedded.directory(os.environ), IO_TIMEOUT, self._ensure
        )
        return self._broker, Commands(Session(target, OUTAGE_PATIENCE), prefix)

    async def bell(
        self,
        commands: Commands,
        queues: Collection[str],
        rung: Callable[[str], None],
        hinted: Callable[[str, str], None],
    ) -> None:
        """One subscription per server."""
        assert self._broker is not None
        await Doorbell(self._broker, commands, queues, rung, hinted).listen()

    async def watch(
        self, catalog: Catalog, reload: Callable[[list[str]], Awaitable[Catalog | None]]
    ) -> None:
        """The folders of the project's own files; what is installed does not change."""
        from watchfiles import PythonFilter, awatch

        while True:
            files = [file for file in catalog["files"] if not _is_installed(file)]
            before = catalog["stamps"]
            async for changes in awatch(
                *folders_of(files), watch_filter=PythonFilter(), yield_on_timeout=True, rust_timeout=1000
            ):
                changed = {Path(path).name for _, path in changes}
                if before is not None:
                    # What changed between the import and the first look was seen by nobody.
                    changed |= {Path(f).name for f in files if stamp(f) != before.get(f, stamp(f))}
                    before = None
                if changed:
                    taken_up = await reload(sorted(changed))
                    if taken_up is not None:
                        catalog = taken_up
                        break

    def tidy(self, spawners: Sequence[Spawner]) -> None:
        """Kill what a dead zygote left, unless something is just being started that has no name yet."""
        if all(spawner.pid for spawner in spawners) and not self._ensuring.locked():
            orphans.clear({spawner.pid for spawner in spawners})

    def _ensure(self, directory: Path) -> Path:
        """Start the embedded server so that its warden is nobody's orphan of ours."""
        with self._ensuring:
            linux.become_subreaper(False)
            try:
                return embedded.ensure(directory)
            finally:
                linux.become_subreaper()

    async def close(self) -> None:
        """Close the connections."""
        if self._broker is not None:
            await self._broker.close()


def folders_of(files: Sequence[str]) -> list[str]:
    """The outermost folders of a project's files."""
    own = {str(Path(file).resolve().parent) for file in files}
    return [one for one in sorted(own) if not any(one.startswith(f"{other}/") for other in own)]


def stamp(file: str) -> int:
    """When a file was changed last; 0 if it is gone."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    return "site-packages" in path.parts or "lib" in path.parts or path.is_relative_to(_HERE)


_HERE = Path(__file__).resolve().parent


def check_reload(wanted: bool) -> None:
    """`--reload` needs a library that the rest does not."""
    if wanted:
        try:
            import watchfiles  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                "--reload", "the package watchfiles is not installed", "pip install 'taskhive[reload]'"
            ) from None
