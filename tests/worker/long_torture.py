"""The torture at length: every misdeed twenty times, forked and in fresh interpreters.

python -m tests.worker.long_torture [--repetitions 20]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from taskhive import Hive
from taskhive.embedded import binary
from tests.servers import running
from tests.worker.torture import CHILDREN, Torture, mark
from tests.worker.torture_rows import FRESH, ROWS, handlers
from tests.worker.workers import Worker


def torture(url: str, start: str, repetitions: int) -> Torture:
    word = mark()
    with tempfile.TemporaryDirectory() as folder, Hive(url, prefix=word) as hive:
        temporary = Path(folder, "temporary")
        temporary.mkdir()
        Path(folder, "handlers.py").write_text(handlers(start))
        words = ("handlers.py", "--concurrency", str(CHILDREN))
        env = {"TORTURE_MARK": word, "TMPDIR": str(temporary)}
        worker = Worker(Path(folder), url, *words, prefix=word, **env)
        try:
            run = Torture(hive, worker.ready(), word, temporary)
            for done in range(0, repetitions, 2):
                run.run(2)
                print(f"{done + 2} of {repetitions} repetitions", file=sys.stderr, flush=True)
            return run
        finally:
            worker.clean_up()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worker.long_torture", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    asked = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(binary().path, Path(directory)) as server,
    ):
        for name, start in (("forked", ""), ("fresh interpreters", FRESH)):
            figures = torture(server.url, start, asked.repetitions).figures
            shown = ", ".join(f"{word} {n}" for word, n in figures.items())
            print(f"{name}: {len(ROWS)} rows x {asked.repetitions}: {shown}; all as tabled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
