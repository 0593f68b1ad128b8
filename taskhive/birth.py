"""Makes a forked process a child: its own group, its own chance, its own end."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import sys

from taskhive import linux


def settle_in(memory: int, output: int) -> None:
    """Leave everything of the zygote's behind that a handler must not share."""
    os.setpgid(0, 0)
    linux.become_subreaper()
    linux.raise_oom_score(500)
    linux.no_new_privileges()
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    faulthandler.enable(file=memory, all_threads=True)
    faulthandler.register(linux.STACK_SIGNAL, file=memory, all_threads=True, chain=False)
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def open_peak() -> int:
    """Where writing a 5 resets the peak of memory; on other systems somewhere it does nothing."""
    try:
        return os.open("/proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


class Habits:
    """What a handler should leave as it found it; a look costs a microsecond or two."""

    def __init__(self) -> None:
        self._was = self._now()

    def are_kept(self) -> bool:
        """Whether the next attempt finds what the first one found."""
        try:
            return self._now() == self._was
        except OSError:
            return False  # the folder it stands in is deleted, say

    @staticmethod
    def _now() -> tuple[object, ...]:
        return (
            os.getcwd(),
            len(os.environ),
            signal.getsignal(linux.SOFT_SIGNAL),
            signal.getsignal(signal.SIGTERM),
            signal.getsignal(signal.SIGINT),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            resource.getrlimit(resource.RLIMIT_AS),
        )
