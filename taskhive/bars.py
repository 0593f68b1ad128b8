"""A bar that shows how many jobs have ended: in a terminal or a notebook; elsewhere there is none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Yields what is to be called for each job that has ended."""
    if not wanted:
        yield lambda: None
    elif _in_notebook():
        with _notebook_bar(total) as advance:
            yield advance
    elif sys.stderr.isatty():
        with _terminal_bar(total) as advance:
            yield advance
    else:
        yield lambda: None  # a log file is no place for a bar


def _in_notebook() -> bool:
    kernel = sys.modules.get("ipykernel")
    return kernel is not None and "IPython" in sys.modules


@contextlib.contextmanager
def _notebook_bar(total: int) -> Iterator[Callable[[], None]]:
    try:
        from tqdm.auto import tqdm
    except ImportError:  # a notebook without it shows no bar, and loses nothing else
        yield lambda: None
        return
    with tqdm(total=total, unit="job") as shown:
        yield lambda: shown.update(1)


@contextlib.contextmanager
def _terminal_bar(total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("jobs", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("jobs", total=total)
        yield lambda: shown.advance(task)
