"""The process that minds one embedded server, from its start until its last client has left.

It is the server's parent. It asks the server every few seconds how many clients it has; when there
was none for `linger` seconds it stops the server, saved, removes the socket, exits. `embedded`
starts it, by the path of this file; nothing of TaskHive is imported here, because the warden
stays in memory for as long as the server does.

Two locks order everything, both `flock`s in the server's directory:

    lock      whoever starts or stops a server, for as long as that takes
    running   the warden AND the server (it inherits the descriptor), for as long as either lives

The second makes two servers on one append-only file impossible, whoever was killed and in whatever
order: the kernel lets go of it only when both processes are gone.

The server never binds the socket's public name. It binds `new.PID`, which the warden renames to
`server.sock` once the server answers, and away again before it stops it. So clients never meet
a half-started server, a client that comes in the last moment is seen, and a server that ends late
removes no socket but its own.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

LOCK = "lock"
RUNNING = "running"
SOCKET = "server.sock"
RECORD = "server.json"
LOG = "server.log"
LOG_LIMIT = 1 << 20
READY = b"ready"

OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    # After a crash of the machine the file may end in the middle of a command.
    "aof-load-truncated": "yes",
    "save": "",
    "maxmemory-policy": "noeviction",
    "lazyfree-lazy-expire": "yes",
    "daemonize": "no",
    "loglevel": "notice",
}


class Refusal(Exception):
    """Why there is no server, in words for whoever asked for one."""


class Pulse(enum.Enum):
    """What a socket said to a PING."""

    ANSWERS = "answers"  # anything else, errors such as BUSY included: somebody is alive
    LOADING = "loading"  # alive, reading its append-only file
    SILENT = "silent"  # it took the connection and said nothing in time
    ABSENT = "absent"  # no socket, nobody behind it, or somebody who is just leaving

    @property
    def alive(self) -> bool:
        """Whether a client may connect, and be patient."""
        return self in (Pulse.ANSWERS, Pulse.LOADING)


class Wire:
    """One connection to the server that speaks as much of its protocol as is needed here."""

    def __init__(self, path: str, seconds: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Zero would mean non-blocking rather than impatient.
            self._socket.settimeout(max(seconds, 0.01))
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self._replies = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()
        self._socket.close()

    def ask(self, *words: bytes) -> bytes:
        """Send one command; return its status line, error line or bulk text."""
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self._socket.sendall(b"".join(parts))
        line = self._replies.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        if line.startswith(b"$"):
            return self._replies.read(int(line[1:]) + 2)
        return line.rstrip()


def pulse(path: str, deadline: float) -> Pulse:
    """PING whoever listens at `path`, once, waiting for the answer until `deadline`."""
    while True:
        try:
            with contextlib.closing(Wire(path, deadline - time.monotonic())) as wire:
                loading = wire.ask(b"PING").startswith(b"-LOADING")
            return Pulse.LOADING if loading else Pulse.ANSWERS
        except BlockingIOError:
            # The backlog is full: alive, but there is no descriptor to wait on before connect.
            if time.monotonic() > deadline:
                return Pulse.SILENT
            time.sleep(0.01)
        except TimeoutError:
            return Pulse.SILENT
        except (FileNotFoundError, NotADirectoryError, ConnectionError):
            return Pulse.ABSENT
        except OSError as error:
            if error.errno == errno.ENOTSOCK:
                return Pulse.ABSENT
            raise


class Lock:
    """An exclusive `flock` on a file, shared with whoever inherits the descriptor."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(path, flags, 0o600)
        # An odd umask may have taken away even the owner's rights.
        os.fchmod(self.descriptor, 0o600)

    def take(self) -> bool:
        """Take the lock if it is free; never wait."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go, even if a fork in another thread has copied the descriptor meanwhile."""
        # Closing alone would leave the lock with the copy.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def trim(path: str) -> None:
    """Empty a log that has grown over its limit; its writers append, so they carry on."""
    with contextlib.suppress(FileNotFoundError):  # nothing was logged yet
        if os.stat(path).st_size > LOG_LIMIT:
            os.truncate(path, 0)


class Order:
    """What the starter asked for: the command line, parsed."""

    def __init__(self, arguments: list[str]) -> None:
        if len(arguments) != 7:
            raise SystemExit("usage: warden.py DIRECTORY SOCKET BINARY VERSION LINGER PATIENCE READY_FD")
        self.directory, self.socket, self.binary, self.version = arguments[:4]
        self.linger = float(arguments[4])
        self.patience = float(arguments[5])
        self.ready = int(arguments[6])
        # Relative names where possible: they follow the directory when it is moved or deleted,
        # so that this warden never touches what is made anew under the old path.
        folder, _ = os.path.split(self.socket)
        self.folder = "" if folder == self.directory else folder


class Census:
    """How many clients are connected apart from us, and how many ever came."""

    def __init__(self, info: bytes) -> None:
        rows = (line.partition(b":") for line in info.split(b"\r\n"))
        facts = {name: value for name, _, value in rows}
        self.others = int(facts[b"connected_clients"]) - 1
        self.arrivals = int(facts[b"total_connections_received"])


class Warden:
    """Parent of one server process."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.pid = os.getpid()
        self.server = 0
        self.told_to_stop = False
        self.wire: Wire | None = None
        self.inode = self.record = 0
        self.home = os.stat(".")
        self.running = Lock(RUNNING)
        self.gate = Lock(LOCK)
        self.bell, ringer = os.pipe()
        self._listen(ringer)

    def run(self) -> None:
        """Start the server, watch it, stop it."""
        deadline = time.monotonic() + self.order.patience
        if not self._claim(deadline):
            return
        try:
            self._start(deadline)
            self._publish()
            self.tell(READY)
            self._watch()
        finally:
            self._stop()
            self._clear()

    def tell(self, answer: bytes) -> None:
        """Answer the starter, once; it may have gone away."""
        ready, self.order.ready = self.order.ready, -1
        if ready < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # killed meanwhile: nobody to tell
            os.write(ready, answer)
        os.close(ready)

    # Signals

    def _listen(self, ringer: int) -> None:
        """Turn signals into bytes in a pipe."""
        os.set_blocking(ringer, False)
        os.set_blocking(self.bell, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # The starter may have blocked or ignored any of them, and both are inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _pause(self, seconds: float) -> None:
        """Wait for a signal, at most this long."""
        poll = select.poll()
        poll.register(self.bell, select.POLLIN)
        if poll.poll(seconds * 1000):
            self.told_to_stop |= signal.SIGTERM in os.read(self.bell, 4096)

    # Start

    def _claim(self, deadline: float) -> bool:
        """Wait until no server is left here; False if one turns up that can be used."""
        while not self.running.take():
            # Held by a server that is just ending, or by one whose starter was killed before
            # it could say so. There is no descriptor to wait on for a lock.
            if pulse(self.order.socket, deadline).alive:
                self.tell(READY)
                return False
            if self.told_to_stop or time.monotonic() > deadline:
                raise Refusal(f"an earlier server still holds {self.order.directory}/{RUNNING}")
            self._pause(0.02)
        return True

    def _start(self, deadline: float) -> None:
        """Start the server and wait until it answers under its own name."""
        self._sweep()
        with contextlib.suppress(FileNotFoundError):  # the last server took its record along
            os.unlink(RECORD)
        self.server = os.fork()
        if self.server == 0:
            self._become_server()
        # A damaged file is found while loading, so that is waited for, lest clients are sent to
        # a server about to give up. But a large one takes its time, and clients can wait too.
        halfway = (time.monotonic() + deadline) / 2
        while (found := pulse(self._named("new"), deadline)) is not Pulse.ANSWERS:
            if found is Pulse.LOADING and time.monotonic() > halfway:
                return
            if (ending := self._reap()) is not None:
                raise Refusal(f"the server ended at once, {ending}")
            if self.told_to_stop or time.monotonic() > deadline:
                raise Refusal("the server did not answer in time")
            self._pause(0.005)

    def _become_server(self) -> None:
        """In the forked child: turn into the server, or say why not."""
        try:
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(self.pid)
            os.set_inheritable(self.running.descriptor, True)
            words = [self.order.binary, "--unixsocket", self._named("new")]
            for name, value in OPTIONS.items():
                words += [f"--{name}", value]
            os.execv(self.order.binary, words)
        except OSError as error:
            event("server_not_executed", binary=self.order.binary, error=repr(error))
        finally:
            # Whatever went wrong must not unwind into a second warden.
            os._exit(127)

    def _publish(self) -> None:
        """Give the socket its public name, replacing what a killed server left there."""
        self.inode = os.stat(self._named("new")).st_ino
        os.rename(self._named("new"), self._public)
        record = {
            "warden": self.pid,
            "server": self.server,
            "binary": self.order.binary,
            "version": self.order.version,
            "socket": self.order.socket,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with open(f"{RECORD}.new", "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            self.record = os.fstat(file.fileno()).st_ino
        os.rename(f"{RECORD}.new", RECORD)
        event("server_started", pid=self.server, version=self.order.version)

    # Watch

    def _watch(self) -> None:
        """Return when the server has ended or should."""
        tick = min(2.0, self.order.linger / 4)
        arrivals, quiet_since = -1, time.monotonic()
        while True:
            self._pause(tick)
            if (ending := self._reap()) is not None:
                event("server_ended", how=ending)
                return
            if self.told_to_stop:
                event("server_stopping", why="told to")
                return
            if not self._in_place():
                event("server_stopping", why="its socket or directory is gone")
                return
            trim(LOG)
            census = self._census()
            # Arrivals count too: whoever came and went between two looks, and above all a
            # starter that has just made sure of the server, whose client connects next.
            if census is None or census.others or census.arrivals != arrivals:
                arrivals = census.arrivals if census else -1
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= self.order.linger and self._retire(arrivals):
                event("server_stopping", why="no client left")
                return

    def _census(self) -> Census | None:
        """Count the clients; None if the server is too busy to say, which is not idle."""
        try:
            if self.wire is None:
                self.wire = Wire(self._public, 5.0)
            answer = self.wire.ask(b"INFO", b"clients", b"stats")
            return None if answer.startswith(b"-") else Census(answer)
        except OSError:
            # Our connection was killed or timed out halfway through a reply: take a new one
            # next time. If the server is gone, its exit status says so.
            if self.wire is not None:
                self.wire.close()
            self.wire = None
            return None

    def _retire(self, arrivals: int) -> bool:
        """Close the door, look once more; False, and the door open again, if somebody came."""
        if not self.gate.take():
            return False
        os.rename(self._public, self._named("old"))
        # Nobody can connect from here on. Who did just before is accepted, at the latest, in the
        # round of the server's loop that answers the first question, so the second one sees it.
        for _ in range(2):
            census = self._census()
            if census is None or census.others or census.arrivals != arrivals:
                os.rename(self._named("old"), self._public)
                fcntl.flock(self.gate.descriptor, fcntl.LOCK_UN)
                return False
        # The gate stays ours until we exit: who waits there finds the place empty.
        return True

    def _in_place(self) -> bool:
        """Whether a client that follows the paths would still find this server."""
        try:
            home = os.stat(self.order.directory)
            return os.path.samestat(home, self.home) and os.stat(self.order.socket).st_ino == self.inode
        except OSError:
            return False

    # Stop

    def _reap(self) -> str | None:
        """How the server ended, or None while it runs."""
        pid, status = os.waitpid(self.server, os.WNOHANG)
        if pid == 0:
            return None
        self.server = 0
        code = os.waitstatus_to_exitcode(status)
        return f"exit status {code}" if code >= 0 else f"killed by signal {-code}"

    def _stop(self) -> None:
        """Have the server save and end, however long it takes: a kill could lose a second."""
        if self.server:
            os.kill(self.server, signal.SIGTERM)
            os.waitpid(self.server, 0)
            self.server = 0

    def _clear(self) -> None:
        """Remove what is ours, and nothing a successor has made."""
        self._sweep()
        # Whatever was removed by somebody else is removed.
        for path, inode in ((self._public, self.inode), (RECORD, self.record)):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)

    def _sweep(self) -> None:
        """Remove sockets under passing names; while we hold `running`, nobody uses them."""
        with contextlib.suppress(FileNotFoundError):  # the directory is deleted
            for name in os.listdir(self.order.folder or "."):
                if name.startswith(("new.", "old.")):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.order.folder, name))

    @property
    def _public(self) -> str:
        return os.path.join(self.order.folder, SOCKET)

    def _named(self, what: str) -> str:
        """A passing name for the socket, never longer than the public one."""
        return os.path.join(self.order.folder, f"{what}.{self.pid}")


def die_with_parent(parent: int) -> None:
    """Ask the kernel for a SIGTERM when `parent` dies, whatever kills it; Linux only."""
    if not sys.platform.startswith("linux"):
        return
    try:
        # Imported in the child alone: the warden need not carry it for its whole life.
        import ctypes
    except ImportError:
        event("no_parent_death_signal", why="this Python has no ctypes")
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def event(name: str, **facts: object) -> None:
    """Write one line to the log, which is our standard error."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = " ".join(f"{key}={value!r}" for key, value in facts.items())
    os.write(2, f"{stamp} embedded.{name} {words}\n".encode(errors="backslashreplace"))


def hold_standard_descriptors() -> None:
    """Open whatever of 0, 1 and 2 is closed, lest a lock or a socket becomes the output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def main(arguments: list[str]) -> None:
    """Detach from the starter, then mind a server until it is not needed any more."""
    order = Order(arguments)
    hold_standard_descriptors()
    os.set_inheritable(order.ready, False)
    # The starter reaps this process at once; its child belongs to init, so that nobody is left
    # with a zombie, and it leads no session, so that no terminal can become its own.
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    os.chdir(order.directory)
    warden = Warden(order)
    try:
        warden.run()
    except (Refusal, OSError) as problem:
        event("failed", why=str(problem))
        warden.tell(str(problem).encode(errors="backslashreplace"))


if __name__ == "__main__":
    main(sys.argv[1:])
