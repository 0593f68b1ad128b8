"""Everything a handler can do to its child, as handlers, and what must become of each."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import atexit, collections, ctypes, gc, itertools, os, resource, signal, socket, subprocess, sys
import threading, time
from taskhive import Hive
hive = Hive()
{start}

def job_socket():
    "The descriptor over which this child talks to its worker."
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{{name}}").startswith("socket:"):
                return int(name)
        except OSError:
            pass

def mouth():
    return next(one for one in gc.get_objects() if type(one).__name__ == "Mouth")

@hive.handler(max_crashes=0, max_retries=0, max_timeouts=0)
def innocent(n):
    time.sleep(0.02)
    return [n, os.getcwd(), "TORTURED" in os.environ, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL]
"""
FRESH = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
"""At import: then no child can be forked, and each is an interpreter of its own."""


@dataclass(frozen=True)
class Row:
    """One misdeed and its outcome; `verdict` of a black box, `error` the name of an exception."""

    name: str
    body: str
    state: str = "failed"
    kind: str | None = "crash"
    verdict: str | None = None
    error: str | None = None
    options: str = ""

    def handler(self) -> str:
        limits = "max_crashes=0, max_retries=0, max_timeouts=0"
        timeout = "" if "timeout" in self.options else ", timeout=20"
        options = f"{limits}{timeout}{', ' if self.options else ''}{self.options}"
        body = "".join(f"    {line}\n" for line in self.body.strip().splitlines())
        return f"\n@hive.handler({options})\ndef {self.name}():\n{body}"


def _hang(name: str, body: str) -> Row:
    return Row(name, body, kind="timeout", verdict="timeout", options="timeout=0.4")


def _fine(name: str, body: str, options: str = "") -> Row:
    return Row(name, body, "succeeded", None, options=options)


def _raises(name: str, body: str, error: str, kind: str = "error") -> Row:
    return Row(name, body, kind=kind, error=error)


ROWS = [
    Row("segfault", "ctypes.string_at(0)", verdict="segfault"),
    Row("killed", "os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)", verdict="killed from outside"),
    Row("exit_0", "os._exit(0)", verdict="os._exit(0)"),
    Row("exit_3", "os._exit(3)", verdict="os._exit(3)"),
    Row(
        "exit_in_a_thread",
        "threading.Thread(target=os._exit, args=(0,)).start()\ntime.sleep(60)",
        verdict="os._exit(0)",
    ),
    _fine("sys_exit_in_a_thread", "t = threading.Thread(target=sys.exit)\nt.start(); t.join()"),
    _fine(
        "result_then_death",
        """
m = mouth()
send = m.send
def last(data):
    send(data)
    ctypes.string_at(0)
m.send = last
""",
    ),
    Row("corrupt_frame", "os.write(job_socket(), b'\\xff' * 64)\ntime.sleep(60)", verdict="protocol"),
    Row("partial_frame", "os.write(job_socket(), b'\\0\\0\\0\\4\\1\\2')", verdict="protocol"),
    Row(
        "partial_frame_then_death",
        "os.write(job_socket(), b'\\0\\0\\1\\0\\1\\2\\3\\4\\x12half')\nos._exit(4)",
        verdict="os._exit(4)",
    ),
    Row("closed_socket", "os.close(job_socket())\ntime.sleep(60)", verdict="protocol"),
    Row("closed_socket_then_return", "os.close(job_socket())"),
    Row(
        "duplicated_socket",
        "subprocess.Popen(['sleep', '600'], pass_fds=[job_socket()])\nos._exit(0)",
        verdict="os._exit(0)",
    ),
    Row("closed_descriptors", "os.closerange(3, 256)"),
    _raises("too_large", "return 'x' * (3 << 20)", "ResultTooLarge", "permanent"),
    _raises("not_encodable", "return object()", "ResultEncode", "permanent"),
    Row(
        "crash_while_encoding",
        """
from taskhive import codec
codec.encode_result = lambda *args, **named: ctypes.string_at(0)
return 1
""",
        verdict="segfault",
    ),
    _raises(
        "silent_exception",
        """
class Silent(Exception):
    def __str__(self): raise ValueError("no words")
    __repr__ = __str__
raise Silent
""",
        "Silent",
    ),
    _raises(
        "recursive_exception",
        """
class Deep(Exception):
    def __str__(self): return str(self)
error = Deep()
error.__cause__ = error.__context__ = error
raise error
""",
        "Deep",
    ),
    _raises("long_exception", "raise ValueError('x' * 100_000_000)", "ValueError"),
    _raises("unpicklable_exception", "raise ValueError(lambda: 1, threading.Lock())", "ValueError"),
    _raises("recursion", "def f(): return f()\nf()", "RecursionError"),
    _raises("no_memory", "raise MemoryError", "MemoryError"),
    _hang("c_loop", "collections.deque(itertools.repeat(None), maxlen=0)"),
    _hang(
        "stubborn",
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
""",
    ),
    _hang("deadlock", "lock = threading.Lock()\nlock.acquire(); lock.acquire()"),
    _fine("leftover_thread", "threading.Thread(target=time.sleep, args=(600,)).start()"),
    _fine(
        "leftover_thread_when_it_leaves",
        "threading.Thread(target=time.sleep, args=(600,)).start()",
        'isolation="fresh"',
    ),
    _fine("hanging_atexit", "atexit.register(time.sleep, 600)", 'isolation="fresh"'),
    Row("grandchildren", "subprocess.Popen(['sh', '-c', 'sleep 600 & sleep 600'])\nos._exit(2)"),
    Row(
        "escape",
        """
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    os._exit(0)
subprocess.Popen(["setsid", "sleep", "600"])
os.wait()
ctypes.string_at(0)
""",
        verdict="segfault",
    ),
    _fine("flood", "for n in range(3000): print('x' * 2000)\nos.write(1, b'y' * 300_000)"),
    _fine("changed_folder", "os.chdir('/')"),
    _fine("changed_environment", "os.environ['TORTURED'] = '1'"),
    _fine("changed_signals", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"),
    _fine("changed_limits", "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"),
    _fine("closed_output", "os.close(1); os.close(2)\nprint('still here')"),
]


def handlers(start: str = "") -> str:
    """handlers.py with every misdeed and an innocent."""
    return HEAD.format(start=start) + "".join(row.handler() for row in ROWS)
