"""A worker that ends with the program beside it: run as `python -m taskhive.beside WORDS...`.

Its standard input is a pipe that the program holds open. It is closed when the program stops it, and by
the kernel when the program dies in whatever way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from taskhive.cli import main


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    main(sys.argv[1:])
