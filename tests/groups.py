"""Control groups of our own, where the machine lets us make them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.servers import until


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path | None]:
    """A group with a memory limit below our own; None where we may not make one."""
    mounts = Path("/proc/self/mountinfo")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        version_2 = after.startswith("cgroup2 ") and "memory" in _words(point / "cgroup.subtree_control")
        if not version_2 and not (
            after.startswith("cgroup ") and "memory" in after.split()[-1].split(",")
        ):
            continue
        name = point / f"taskhive-test-{os.getpid()}"
        try:
            name.mkdir()
            knob = "memory.max" if version_2 else "memory.limit_in_bytes"
            (name / knob).write_text(str(limit))
        except OSError:
            break
        try:
            yield name
        finally:
            procs = name / "cgroup.procs"
            until(lambda procs=procs: not _words(procs), "the group is empty")  # type: ignore[misc]
            name.rmdir()
        return
    yield None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
