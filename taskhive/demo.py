"""`python -m taskhive demo`: a worker of its own, a mix of jobs, and what becomes of them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from taskhive import Hive, Job, JobInfo
from taskhive.errors import ServerError
from taskhive.jobs import ENDED, JobState

HANDLERS = Path(__file__).with_name("demo_handlers.py")
PATIENCE = 18.0
_BAR = 14
_COLOURS = {
    "active": "cyan",
    "succeeded": "green",
    "failed": "red",
    "delayed": "yellow",
    "ready": "default",
}


@dataclass(slots=True)
class Row:
    """One job of the demo, as last seen."""

    title: str
    job: Job[Any]
    info: JobInfo | None = None
    progress: float | None = None
    black_box: dict[str, Any] | None = None

    def look(self) -> None:
        """See how it stands."""
        self.info = self.job.info()
        hive, name = self.job._hive, (self.job.queue, self.job.id, None)
        if self.info.state is JobState.FAILED:
            attempts = hive._run(hive._core.commands.attempts(*name))
            self.black_box = dict(attempts[-1].black_box or {})
        if self.info.state is JobState.ACTIVE:
            seen = hive._run(hive._core.commands.progress(*name))
            self.progress = seen.done / seen.total if seen and seen.total else None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.info is not None and self.info.state in ENDED


def show(console: Console) -> int:
    """Run the demo; the exit code."""
    prefix = f"demo-{secrets.token_hex(4)}"
    hive = Hive(prefix=prefix)
    started = time.monotonic()
    hive.ping(wait=10)
    console.print(
        f"TaskHive demo on {hive.settings.server}: a worker with two children, seven jobs, two of "
        "which no thread pool would survive.",
        soft_wrap=False,
    )
    with hive:
        try:
            with _worker(prefix) as worker:
                rows = _dispatch(hive)
                _watch(console, rows, worker, started + PATIENCE)
        finally:
            # When the worker is gone: it would write down once more what its handlers have cost.
            for queue in hive.queues():
                if not queue.endswith(":fail"):
                    hive.queue(queue).destroy()
    _explain(console, rows)
    missing = [row.title for row in rows if not row.is_over]
    if missing:
        console.print(f"[red]not over in {PATIENCE:.0f} s:[/] {', '.join(missing)}")
        return 1
    console.print(f"Done in {time.monotonic() - started:.1f} s. Next: docs/index.md, or your own:")
    console.print("    python -m taskhive handlers.py", style="bold")
    return 0


@contextlib.contextmanager
def _worker(prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as a user starts it, but for its log, which would be in the way."""
    words = [sys.executable, "-m", "taskhive", "run", str(HANDLERS), "--concurrency", "2"]
    # A Ctrl-C in the middle of starting it would leave a worker that nobody knows.
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    worker = subprocess.Popen(
        words,
        env={**os.environ, "TASKHIVE_PREFIX": prefix},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is ours to answer, and the worker is told in its turn.
        start_new_session=True,
    )
    try:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt
        yield worker
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            worker.send_signal(signal.SIGTERM)
            worker.wait()


def _dispatch(hive: Hive) -> list[Row]:
    def row(title: str, queue: str, *args: Any) -> Row:
        return Row(title, hive.queue(queue).dispatch(*args))

    return [
        row("primes below 150,000", "primes", 150_000),
        row("runaway regular expression", "runaway", "a" * 40),
        row("segfault in C code", "broken", 0),
        row("flaky service", "flaky", "the service"),
        row("primes below 100,000", "primes", 100_000),
        row("primes below 80,000", "primes", 80_000),
        row("primes below 50,000", "primes", 50_000),
    ]


def _watch(console: Console, rows: list[Row], worker: subprocess.Popen[bytes], deadline: float) -> None:
    """Look a few times a second until all is over."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            for row in rows:
                if not row.is_over:
                    row.look()
            if console.is_terminal:
                live.update(_table(rows), refresh=True)
            if all(row.is_over for row in rows) or time.monotonic() > deadline:
                return
            if worker.poll() is not None:
                raise ServerError(
                    f"the demo's worker ended with {worker.returncode}; to see why: "
                    f"python -m taskhive {HANDLERS}"
                )
            time.sleep(0.1)


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("job", "state", "tries"):
        table.add_column(name, no_wrap=True, justify="right" if name == "tries" else "left")
    table.add_column("", overflow="fold")
    for row in rows:
        info = row.info
        state = str(info.state) if info else "ready"
        tries = str(info.attempts or "") if info else ""
        table.add_row(row.title, Text(state, _COLOURS.get(state, "")), tries, _detail(row))
    return table


def _detail(row: Row) -> Text:
    info = row.info
    if info is None or info.state is JobState.READY:
        return Text("")
    if info.state is JobState.SUCCEEDED:
        return Text(f"{info.result}", "green")
    if info.state is JobState.ACTIVE and row.progress is not None:
        full = round(row.progress * _BAR)
        return (
            Text("━" * full, "cyan") + Text("━" * (_BAR - full), "dim") + Text(f" {row.progress:4.0%}")
        )
    if info.error is not None:
        return Text(f"{info.error.kind}: {info.error.message}", "red" if row.is_over else "yellow")
    return Text("")


def _explain(console: Console, rows: list[Row]) -> None:
    """The last table, and the black box of the job that was killed."""
    console.print(_table(rows))
    for row in rows:
        if row.job.queue == "runaway" and row.black_box:
            _show_box(console, row.black_box)


def _show_box(console: Console, box: dict[str, Any]) -> None:
    facts = (
        f"verdict {box.get('verdict')} by {box.get('signal')} after {box.get('wall', 0):.2f} s "
        f"({box.get('cpu', 0):.2f} s of CPU, {box.get('peak_memory', 0) / 2**20:.0f} MiB); "
        f"it had said: {' / '.join(box.get('output') or ['nothing'])}"
    )
    stack = Syntax(str(box.get("stack", "")).strip(), "text", word_wrap=True, background_color="default")
    console.print(
        Panel(stack, title="black box of the runaway", subtitle_align="left", title_align="left")
    )
    console.print(facts)
