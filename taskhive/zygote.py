"""The process that imported the handlers: it forks children, reaps them and kills them.

Single-threaded, so that a fork copies no lock held by a thread that does not exist in the copy. It
listens to the supervisor alone; when that falls silent or away, it kills every child and ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from taskhive import birth, linux, secret
from taskhive.child import Child
from taskhive.errors import TaskHiveError
from taskhive.loader import Loaded, load
from taskhive.mouth import Mouth
from taskhive.orphans import kill_tree
from taskhive.outbox import Outbox
from taskhive.output import Lines
from taskhive.signing import KeyRing
from taskhive.wire import Kind, Reader, json_frame, read_json

FORK_DESCRIPTORS = 4
"""With each FORK come the child's socket, the end of its output pipe, and memory for stacks and ends."""


class Zygote:
    """Forks on order; every child it ever made is killed and reaped by it."""

    def __init__(self, control: socket.socket, words: list[str], settings: dict[str, Any]) -> None:
        self._control = control
        self._words = words
        self._settings = settings
        self._reader = Reader()
        self._descriptors: list[int] = []
        self._slots: dict[int, int] = {}
        self._trusted_until = float("inf")
        self._let_go: set[int] = set()
        """Children that were killed because the supervisor was silent: no fault of their attempts."""
        self._fresh_interpreters = False
        self._loaded = Loaded()
        self._keys: list[str] | None = None
        self._own: set[int] = set()
        """What the user's modules started when they were imported: it stays."""

    def run(self) -> None:
        """Import, report, then serve until the supervisor is gone."""
        waker, wakes = os.pipe()
        for descriptor in (waker, wakes):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, stack: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        linux.become_subreaper()
        linux.set_title("taskhive zygote: importing")
        if not self._import():
            return
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(waker, select.POLLIN)
        try:
            while True:
                for descriptor, _ in poll.poll(self._patience()):
                    if descriptor == waker:
                        with contextlib.suppress(BlockingIOError):
                            os.read(waker, 4096)
                    elif not self._listen():
                        return
                self._reap()
                if linux.boottime() > self._trusted_until:
                    # The supervisor is frozen: its leases may be somebody else's by now.
                    self._trusted_until = float("inf")
                    self._let_go.update(self._slots)
                    self._kill_all()
        finally:
            self._kill_all()

    def _patience(self) -> float | None:
        left = self._trusted_until - linux.boottime()
        return None if left == float("inf") else max(0.0, left * 1000 + 1)

    def _tell(self, kind: Kind, value: Any) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone; the next read says so
            self._control.sendall(json_frame(kind, value))

    # Import

    def _import(self) -> bool:
        try:
            loaded = load(self._words, self._settings.get("queue"))
            targets = loaded.targets()
            if len(targets) > 1:
                raise TaskHiveError(
                    f"the hives of these files name different servers ({', '.join(sorted(targets))}): "
                    "a worker serves one"
                )
        except TaskHiveError as error:
            self._tell(Kind.BROKEN, str(error))
            return False
        self._loaded = loaded
        self._own = set(linux.children_of(os.getpid()))
        threads = threading.active_count() - 1
        self._fresh_interpreters = bool(threads) or not hasattr(os, "fork")
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        # From before the import would be better; but who knows then what will be imported?
        stamps = {file: os.stat(file).st_mtime_ns for file in files if file and os.path.isfile(file)}
        given = next((hive._core for hive in loaded.hives if hive._core._given is not None), None)
        url = given.url if given is not None else None
        catalog = {
            "handlers": {
                name: handler.options_given.portable() for name, handler in loaded.handlers.items()
            },
            "url": url,
            "has_secret": all(
                handler.options_given.codec == "json" or handler._hive._core._secret is not None
                for handler in loaded.handlers.values()
            ),
            "prefix": next((h._core._prefix for h in loaded.hives if h._core._prefix), None),
            "threads": [t.name for t in threading.enumerate() if t is not threading.main_thread()],
            "files": list(stamps),
            "stamps": stamps,
        }
        gc.collect()
        gc.freeze()
        linux.set_title(f"taskhive zygote: {' '.join(sorted(loaded.handlers))}")
        self._tell(Kind.CATALOG, catalog)
        return True

    # Orders

    def _listen(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 64)
        except OSError:
            return False
        if not data:
            return False
        self._descriptors += descriptors
        for kind, body in self._reader.feed(data):
            order, _ = read_json(body)
            match kind:
                case Kind.FORK:
                    self._fork(order)
                case Kind.SIGNAL:
                    self._signal(*order)
                case Kind.KILL:
                    self._kill(order)
                case Kind.ENTRUST:
                    self._keys = order
                    secret.entrust(None if order is None else KeyRing.from_portable(order))
                case Kind.PULSE:
                    self._trusted_until = order
                case _:
                    raise RuntimeError(f"the supervisor sent {kind.name}")
        return True

    def _fork(self, slot: int) -> None:
        mine, self._descriptors = (
            self._descriptors[:FORK_DESCRIPTORS],
            self._descriptors[FORK_DESCRIPTORS:],
        )
        parent = os.getpid()
        try:
            pid = self._spawn(mine) if self._fresh_interpreters else os.fork()
        except OSError as error:
            self._tell(Kind.FORKED, [slot, 0, str(error)])
            for descriptor in mine:
                os.close(descriptor)
            return
        if pid == 0:
            self._become_child(mine, parent)
        for descriptor in mine:
            os.close(descriptor)
        self._slots[pid] = slot
        self._tell(Kind.FORKED, [slot, pid, ""])

    def _become_child(self, mine: list[int], parent: int) -> None:
        code = 1
        try:
            linux.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            self._control.close()
            for descriptor in self._descriptors:
                os.close(descriptor)
            serve(mine, self._loaded, self._settings)
            code = 0
        except BaseException:  # noqa: BLE001 -- on_child_start is the user's and may raise anything
            with contextlib.suppress(Exception):
                sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _spawn(self, mine: list[int]) -> int:
        """A fresh interpreter: the handlers started threads, which no fork survives."""
        words = [sys.executable, "-m", "taskhive.fresh", json.dumps([mine, self._words, self._settings])]
        made = subprocess.Popen(words, pass_fds=mine, stdin=subprocess.PIPE)
        assert made.stdin is not None
        with contextlib.suppress(BrokenPipeError), made.stdin:
            made.stdin.write(json.dumps(self._keys).encode())
        # Or the library would reap it when it makes the next one, and its end would never be told.
        made.returncode = 0
        return made.pid

    # Ends

    def _signal(self, pid: int, number: int, group: bool) -> None:
        if pid in self._slots:  # not reaped yet, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(pid, number)

    def _kill(self, pid: int) -> None:
        if pid in self._slots:
            kill_tree(pid)

    def _kill_all(self) -> None:
        for pid in list(self._slots):
            kill_tree(pid)
        deadline = time.monotonic() + 5
        while self._slots and time.monotonic() < deadline:
            if not self._reap():
                signal.sigtimedwait([signal.SIGCHLD], 0.01)

    def _reap(self) -> bool:
        """Report who has ended; kill who fell to us from a child that is gone."""
        some = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            some = True
            slot = self._slots.pop(pid, None)
            if slot is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                cpu = usage.ru_utime + usage.ru_stime
                peak = usage.ru_maxrss * linux.MAXRSS_UNIT
                self._tell(Kind.EXITED, [slot, code, cpu, peak, pid in self._let_go])
                self._let_go.discard(pid)
        if some:
            for orphan in linux.children_of(os.getpid()):
                if orphan not in self._slots and orphan not in self._own:
                    kill_tree(orphan)
        return some


def serve(mine: list[int], loaded: Loaded, settings: dict[str, Any]) -> None:
    """Be a child on these descriptors until the supervisor closes the socket."""
    job_socket, output, memory, box = mine
    birth.settle_in(memory, output)
    linux.set_title("taskhive child: idle")
    mouth = Mouth(socket.socket(fileno=job_socket), Outbox(box))
    Child(mouth, loaded, settings["worker"]).run()


def main() -> None:
    """Run as `python -m taskhive.zygote DESCRIPTOR SETTINGS FILE...`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    settings, words = json.loads(sys.argv[2]), sys.argv[3:]
    sys.argv = ["taskhive", *words]
    sys.stdout, sys.stderr = Lines(1), Lines(2)
    Zygote(control, words, settings).run()


if __name__ == "__main__":
    main()
