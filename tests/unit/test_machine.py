"""What is read of machines that are not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from taskhive.machine import Machine, whole

GIB = 1 << 30
STAT = "cpu  9 9 9 9 9 9 9 9\n" + "".join(f"cpu{i} 100 0 50 1000 10 5 5 40 0 0\n" for i in range(64))
V2 = "0::/work.slice/job.scope\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "5:memory:/docker/abc\n3:cpuacct,cpu:/docker/abc\n"
V1_MOUNT = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
BASE = {
    "proc/stat": STAT,
    "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {32 << 20} kB\n",
    "proc/vmstat": "pgfault 12\noom_kill 3\n",
    "proc/pressure/cpu": "some avg10=1.0 avg60=1.0 avg300=0.9 total=2500000\n",
    "proc/pressure/memory": "some avg10=0.0 avg60=0.0 avg300=0.0 total=500000\nfull avg10=0 total=1\n",
}
G2 = "sys/fs/cgroup/work.slice/job.scope"


def machine(root: Path, files: dict[str, str], cpus: int = 64) -> Machine:
    for name, text in {**BASE, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root, frozenset(range(cpus)))


def v2(root: Path, files: dict[str, str], cpus: int = 64) -> Machine:
    own = {"proc/self/cgroup": V2, "proc/self/mountinfo": V2_MOUNT, f"{G2}/cpu.stat": "usage_usec 1\n"}
    return machine(root, {**own, f"{G2}/memory.current": "1\n", **files}, cpus)


def v1(root: Path, files: dict[str, str], cpus: int = 64) -> Machine:
    own = {"proc/self/cgroup": V1, "proc/self/mountinfo": V1_MOUNT}
    here = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return machine(root, {**own, **here}, cpus)


def test_a_bare_machine_is_its_cores_and_its_memory(tmp_path: Path) -> None:
    grant = machine(tmp_path, {}).grant()
    assert (grant.cores, grant.memory, grant.quota) == (64.0, 64 * GIB, None)
    assert grant.words() == "64 cores"


def test_affinity_counts_before_what_is_built_in(tmp_path: Path) -> None:
    grant = machine(tmp_path, {}, cpus=3).grant()
    assert (grant.cores, grant.words()) == (3.0, "3 of 64 cores (affinity)")


def test_a_quota_of_version_2_is_granted(tmp_path: Path) -> None:
    grant = v2(tmp_path, {f"{G2}/cpu.max": "200000 100000\n"}).grant()
    assert (grant.cores, grant.words()) == (2.0, "2 of 64 cores (quota)")


def test_the_tightest_level_counts_wherever_it_is(tmp_path: Path) -> None:
    files = {
        f"{G2}/cpu.max": "max 100000\n",
        "sys/fs/cgroup/work.slice/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/cpu.max": "800000 100000\n",
        f"{G2}/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/work.slice/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }
    grant = v2(tmp_path, files).grant()
    assert (grant.cores, grant.memory) == (1.5, 4 * GIB)


def test_max_everywhere_is_no_limit(tmp_path: Path) -> None:
    files = {f"{G2}/cpu.max": "max 100000\n", f"{G2}/memory.max": "max\n"}
    grant = v2(tmp_path, files).grant()
    assert (grant.cores, grant.memory, grant.quota) == (64.0, 64 * GIB, None)


def test_a_quota_above_the_affinity_does_not_count(tmp_path: Path) -> None:
    grant = v2(tmp_path, {f"{G2}/cpu.max": "400000 100000\n"}, cpus=2).grant()
    assert (grant.cores, grant.words()) == (2.0, "2 of 64 cores (affinity)")


def test_quota_and_memory_of_version_1_are_granted(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
        "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/docker/abc/cpuacct.usage": "7500000000\n",
        "cpu,cpuacct/docker/abc/cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 9\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/docker/abc/memory.usage_in_bytes": f"{GIB}\n",
        "memory/docker/abc/memory.stat": f"cache 5\ntotal_inactive_file {GIB // 2}\n",
        "memory/docker/abc/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    here = v1(tmp_path, files)
    assert (here.grant().cores, here.grant().memory) == (2.5, 2 * GIB)
    reading = here.read()
    assert reading.inside == 7.5
    assert reading.available == 3 * GIB // 2
    assert (reading.periods, reading.throttled, reading.oom_kills) == (40, 10, 5)


def test_a_container_that_sees_the_path_of_its_host_finds_its_group(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu:/docker/abc\n",
        "proc/self/mountinfo": "3 2 0:1 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert machine(tmp_path, files).grant().cores == 1.0


def test_an_empty_version_2_beside_version_1_is_passed_over(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu:/a\n0::/\n",
        "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "2 1 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        "sys/fs/cgroup/unified/cgroup.procs": "1\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
    }
    assert machine(tmp_path, files).grant().cores == 3.0


def test_the_counters_of_version_2_are_read(tmp_path: Path) -> None:
    files = {
        f"{G2}/cpu.max": "200000 100000\n",
        f"{G2}/cpu.stat": "usage_usec 1500000\nnr_periods 100\nnr_throttled 25\nthrottled_usec 7\n",
        f"{G2}/memory.max": f"{4 * GIB}\n",
        f"{G2}/memory.current": f"{3 * GIB}\n",
        f"{G2}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        f"{G2}/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\n",
        f"{G2}/memory.pressure": "some avg10=0 avg60=0 avg300=0 total=1250000\n",
    }
    reading = v2(tmp_path, files, cpus=2).read()
    assert reading.busy == pytest.approx(2 * 2.0)
    assert reading.inside == 1.5
    assert reading.available == 2 * GIB
    assert (reading.memory_stalled, reading.cpu_stalled) == (1.25, 2.5)
    assert (reading.periods, reading.throttled, reading.oom_kills) == (100, 25, 2)


def test_what_could_run_is_counted_where_the_kernel_tells(tmp_path: Path) -> None:
    assert machine(tmp_path, {}).read().runnable is None
    assert machine(tmp_path, {"proc/stat": STAT + "procs_running 7\n"}).read().runnable == 7


def test_the_root_group_counts_the_kills_of_the_whole_machine(tmp_path: Path) -> None:
    assert machine(tmp_path, {}).read().oom_kills == 3


def test_files_full_of_nonsense_count_for_nothing(tmp_path: Path) -> None:
    files = {
        f"{G2}/cpu.max": "lots\n",
        f"{G2}/memory.max": "\n",
        f"{G2}/cpu.stat": "usage_usec\nnr_periods x\n",
        f"{G2}/memory.pressure": "some total=\n",
    }
    here = v2(tmp_path, files)
    assert here.grant().cores == 64.0
    assert here.read().inside is None


def test_what_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    here = v2(tmp_path, {f"{G2}/cpu.max": "200000 100000\n"})
    (tmp_path / f"{G2}/cpu.max").unlink()
    (tmp_path / f"{G2}/cpu.max").mkdir()  # not even root reads a directory
    assert here.grant().cores == 64.0


def test_without_proc_and_sys_the_machine_is_still_known(tmp_path: Path) -> None:
    here = Machine(tmp_path)
    assert here.grant().cores >= 1
    assert here.grant().memory > 0
    reading = here.read()
    assert reading.busy > 0
    assert reading.available > 0
    assert reading.inside is None


def test_a_quota_written_for_another_group_is_not_ours(tmp_path: Path) -> None:
    grant = v2(tmp_path, {"sys/fs/cgroup/other/cpu.max": "1000 100000\n"}).grant()
    assert grant.quota is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_this_very_machine_can_be_read() -> None:
    here = Machine()
    first, second = here.read(), here.read()
    assert second.busy >= first.busy > 0
    assert 0 < second.available <= here.grant().memory


@pytest.mark.parametrize(("cores", "children"), [(0.1, 1), (1.0, 1), (1.04, 1), (1.5, 2), (2.0, 2)])
def test_parts_of_a_core_are_rounded_up(cores: float, children: int) -> None:
    assert whole(cores) == children
