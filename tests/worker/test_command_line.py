"""The command line of a worker: what it refuses, what it prints, how it ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from taskhive import Hive
from tests.servers import DEADLINE, Server, until
from tests.worker.conftest import Start
from tests.worker.workers import ROOT, over

HEAD = "import os, time\nfrom taskhive import Hive, current_job\nhive = Hive()\n"
WORK = HEAD + "@hive.handler\ndef work(n=0): return n\n"


def taskhive(
    folder: Path, *words: str, url: str | None = None, prefix: str = "th"
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_PREFIX": prefix, "COLUMNS": "80"}
    if url is not None:
        environment["TASKHIVE_URL"] = url
    return subprocess.run(
        [sys.executable, "-m", "taskhive", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize(
    ("handlers", "words", "said"),
    [
        ("import nothing_of_this_name\n", [], "No module named 'nothing_of_this_name'"),
        ("def f(:\n", [], "SyntaxError"),
        ("raise SystemExit(4)\n", [], "SystemExit"),
        ("x = 1\n", [], "neither a Hive nor a function handle(data, job): write hive = Hive()"),
        ("import os\nos.abort()\n", [], "died while importing them. Import them by hand"),
        (WORK, ["--queue", "other"], "--queue other: it names the queue of a bare handle"),
        ("from taskhive import Hive\nhive = Hive()\n", [], "no handler in handlers.py"),
        (
            HEAD + "@hive.handler\ndef a(): ...\n@hive.handler(name='a')\ndef b(): ...\n",
            [],
            "two handlers for the queue 'a'",
        ),
        (HEAD + "@hive.handler(timeout='soon')\ndef a(): ...\n", [], "is not a duration"),
        (HEAD + "@hive.handler(colour=1)\ndef a(): ...\n", [], "there is no such handler option"),
        (HEAD + "@hive.handler(name='a:fail')\ndef a(): ...\n", [], "the ending of fail lanes"),
        (HEAD + "@hive.handler\ndef a(): yield 1\n", [], "is a generator"),
        (
            "from taskhive import Hive\na = Hive('redis://one')\nb = Hive('redis://two')\n"
            "@a.handler\ndef f(): ...\n@b.handler\ndef g(): ...\n",
            [],
            "name different servers",
        ),
        (HEAD + "@hive.handler(weight=0)\ndef a(): ...\n", [], "Give a number above 0"),
        (HEAD + "@hive.handler(memory='2 apples')\ndef a(): ...\n", [], 'a string such as "2GiB"'),
        (WORK, ["--concurrency", "none"], "--concurrency: 'none' is no number of jobs. Give 1 to 1024"),
        (WORK, ["--concurrency", "0"], "--concurrency: '0' is no number of jobs. Give 1 to 1024"),
        (WORK, ["--min", "5", "--max", "2"], "--min: 5 is above --max 2. Make it the smaller one"),
        (WORK, ["--memory", "2 apples"], "--memory: '2 apples' is not a size. Give bytes"),
        (WORK, ["--lease", "0.1"], "--lease: 0.1 s is out of range. Give 1 s or more"),
        (WORK, ["--grace", "-1"], "--grace"),
        (WORK, ["--log-format", "xml"], "--log-format"),
        (WORK, ["--colour"], "No such option"),
        (WORK, ["--url", "ftp://x"], "no known scheme"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words_and_nothing_is_taken(
    tmp_path: Path, valkey: Server, hive: Hive, prefix: str, handlers: str, words: list[str], said: str
) -> None:
    (tmp_path / "handlers.py").write_text(handlers)
    jobs = [hive.queue(name).dispatch() for name in ("a", "work")]
    answer = taskhive(tmp_path, "handlers.py", *words, url=valkey.url, prefix=prefix)
    assert answer.returncode == 2, answer.stderr
    assert said in answer.stderr
    # The user's own traceback begins with the user's own file, and holds nobody else's lines.
    assert "taskhive/" not in answer.stderr.replace("from taskhive", "")
    assert "<string>" not in answer.stderr
    # Nothing began, so nothing is said to have ended.
    assert "worker." not in answer.stderr
    assert [str(job.state()) for job in jobs] == ["ready", "ready"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("no_such.py", "there is no file no_such.py in {folder}: name a file of handlers"),
        ("/no_such.py", "there is no file /no_such.py: name a file of handlers"),
        ("statu", "there is no module statu. Name a file of handlers"),
        ("handlers.missing", "there is no module handlers.missing. Name a file"),
        ("no.such", "there is no module no. Name a file"),
        ("notes.txt:hive", "there is no module notes. Name a file"),
        ("./notes.txt", "notes.txt is not a Python file: name one that ends in .py"),
        ("handlers:nope", "handlers:nope: nope is not a Hive; its hives are: hive"),
    ],
)
def test_what_is_not_there_is_said_to_be_missing_with_what_to_name_instead(
    tmp_path: Path, word: str, said: str
) -> None:
    (tmp_path / "handlers.py").write_text(WORK)
    (tmp_path / "notes.txt").write_text("")
    answer = taskhive(tmp_path, word)
    assert answer.returncode == 2
    assert said.format(folder=tmp_path) in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_server_that_refuses_ends_the_worker_with_its_own_code(
    tmp_path: Path, valkey: Server, hive: Hive, prefix: str
) -> None:
    (tmp_path / "handlers.py").write_text(WORK)
    hive.queue("work").dispatch()
    with valkey.client() as client:
        client.hset(f"{prefix}:{{work}}:meta", "v", "999")
    answer = taskhive(tmp_path, "handlers.py", url=valkey.url, prefix=prefix)
    assert answer.returncode == 3
    assert "key layout 999" in answer.stderr


def test_the_help_names_every_option_of_run(tmp_path: Path) -> None:
    text = taskhive(tmp_path, "run", "--help").stdout
    for option in (
        "--url",
        "--concurrency",
        "--queue",
        "--grace",
        "--lease",
        "--reload",
        "--log-format",
    ):
        assert option in text
    assert max(map(len, text.splitlines())) <= 80
    commands = taskhive(tmp_path, "--help").stdout.partition("Commands:")[2]
    assert all(word in commands for word in ("demo", "run", "status"))
    assert "..." not in commands  # each is told in one line, to its end
    assert taskhive(tmp_path, "--version").stdout.startswith("taskhive, version ")


def test_options_may_come_from_the_environment(start: Start) -> None:
    worker = start(WORK, TASKHIVE_LEASE="7").ready()
    assert worker.of("worker.started")[0]["lease"] == 7.0


def test_the_start_says_what_is_served_where_and_by_how_many(start: Start, valkey: Server) -> None:
    said = start(WORK).ready().of("worker.started")[0]
    assert said["queues"] == "work"
    assert said["server"] == str(valkey.socket)
    assert said["concurrency"].startswith("2: ")


def test_process_titles_show_what_each_process_does(start: Start, hive: Hive) -> None:
    worker = start(HEAD + "@hive.handler(timeout=None)\ndef sleep(): time.sleep(600)\n").ready()
    job = hive.queue("sleep").dispatch()

    def titles() -> list[str]:
        family = [psutil.Process(worker.pid), *worker.family()]
        return sorted(" ".join(process.cmdline()).strip() for process in family)

    wanted = [
        "taskhive child: idle",
        f"taskhive child: sleep/{job.id}",
        "taskhive supervisor: sleep",
        "taskhive zygote: sleep",
    ]
    until(lambda: titles() == wanted, f"titles: {titles()}")


def test_on_a_terminal_lines_are_coloured_and_fit_into_eighty_columns(
    tmp_path: Path, valkey: Server, prefix: str
) -> None:
    (tmp_path / "handlers.py").write_text(WORK)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_URL": valkey.url, "COLUMNS": "80"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "taskhive", "handlers.py"],
        cwd=tmp_path,
        env={**environment, "TASKHIVE_PREFIX": prefix},
        stderr=theirs,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    seen = b""
    while b"pid=" not in seen:
        seen += os.read(ours, 4096)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(DEADLINE) == 0
    while b"worker.stopped" not in seen:
        seen += os.read(ours, 4096)
    os.close(ours)
    assert b"\x1b[36mworker.started\x1b[0m" in seen
    plain = re.sub(r"\x1b\[\d+m", "", seen.decode())
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "Traceback" not in plain


def test_a_line_of_output_cannot_pretend_to_be_a_line_of_the_log(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD + '@hive.handler\ndef work(): print(\'a\\x1b[31m\\r{"event": "worker.forged"}\\u202e\')\n'
    ).ready()
    over(hive, hive.queue("work").dispatch())
    worker.until("output")
    assert worker.of("worker.forged") == []


def test_draining_gives_back_what_outlives_the_grace_and_charges_nobody(
    start: Start, hive: Hive
) -> None:
    worker = start(
        HEAD + "@hive.handler(timeout=None)\ndef sleep(): print('begun'); time.sleep(600)\n",
        "--grace",
        "0.3",
    ).ready()
    jobs = [hive.queue("sleep").dispatch() for _ in range(3)]
    worker.until("output", 2)
    assert worker.stop() == 0
    assert [str(job.state()) for job in jobs] == ["ready"] * 3
    assert all(job.info().attempts == 0 for job in jobs)


def test_draining_lets_running_jobs_finish(start: Start, hive: Hive, tmp_path: Path) -> None:
    worker = start(
        HEAD
        + "@hive.handler\ndef work():\n    print('begun')\n"
        + "    while not os.path.exists('go'): time.sleep(0.01)\n    return 1\n"
    ).ready()
    job = hive.queue("work").dispatch()
    worker.until("output")
    worker.process.send_signal(signal.SIGTERM)
    worker.until("worker.draining")
    (tmp_path / "go").touch()
    assert worker.ended() == 0
    assert job.info().result == 1


def test_a_signal_while_the_handlers_are_imported_ends_it_quietly(start: Start, tmp_path: Path) -> None:
    worker = start("import time\nopen('here', 'w').close()\ntime.sleep(600)\n")
    until((tmp_path / "here").exists, "the import has begun")
    assert worker.stop(signal.SIGINT) == 0
    assert worker.noise == []


def test_a_server_that_is_away_is_waited_for(start: Start, tmp_path: Path) -> None:
    worker = start(WORK, "--url", f"unix://{tmp_path}/nobody")
    worker.until("server.away")
    assert worker.stop(signal.SIGTERM) == 0


def test_reload_takes_up_an_edit_and_lets_running_jobs_finish(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    before = (
        HEAD
        + "@hive.handler(timeout=None)\ndef work(flag):\n    print('begun')\n"
        + "    while flag and not os.path.exists(flag): time.sleep(0.01)\n    return 'old'\n"
    )
    worker = start(before, "--reload").ready()
    running = hive.queue("work").dispatch(str(tmp_path / "go"))
    worker.until("output", line="begun")

    (tmp_path / "handlers.py").write_text("def broken(:\n")
    worker.until("worker.not_reloaded")
    job = hive.queue("work").dispatch("")
    over(hive, job)
    assert job.info().result == "old"

    (tmp_path / "handlers.py").write_text(
        HEAD + "@hive.handler\ndef work(flag): return 'new'\n@hive.handler\ndef more(): return 1\n"
    )
    worker.until("worker.reloaded")
    jobs = [hive.queue("work").dispatch(""), hive.queue("more").dispatch()]
    over(hive, *jobs)
    assert [job.info().result for job in jobs] == ["new", 1]

    (tmp_path / "go").touch()
    over(hive, running)
    assert running.info().result == "old"
    until(lambda: len(psutil.Process(worker.pid).children()) == 1, "the old zygote is gone")
    assert worker.stop() == 0
