"""Control groups of our own, where the machine lets us make them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers import until


def memory_group(limit: int) -> contextlib.AbstractContextManager[Path | None]:
    """A group with a memory limit below our own; None where we may not make one."""
    return _group("memory", {"memory.max": str(limit)}, {"memory.limit_in_bytes": str(limit)})


def cpu_group(cores: float) -> contextlib.AbstractContextManager[Path | None]:
    """A group that is granted so many cores; None where we may not make one."""
    period = 100_000
    quota = str(round(cores * period))
    return _group(
        "cpu",
        {"cpu.max": f"{quota} {period}"},
        {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": quota},
    )


@contextlib.contextmanager
def _group(
    controller: str, version_2: Mapping[str, str], version_1: Mapping[str, str]
) -> Iterator[Path | None]:
    """A group below the root of a controller, with these settings in the words of either version."""
    mounts = Path("/proc/self/mountinfo")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        unified = after.startswith("cgroup2 ") and controller in _words(point / "cgroup.subtree_control")
        if not unified and not (
            after.startswith("cgroup ") and controller in after.split()[-1].split(",")
        ):
            continue
        name = point / f"taskhive-test-{os.getpid()}"
        try:
            name.mkdir()
            for knob, value in (version_2 if unified else version_1).items():
                (name / knob).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                name.rmdir()
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
