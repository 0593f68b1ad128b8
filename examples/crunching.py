"""Number crunching with progress: the Mandelbrot set, one job for each band of rows.

python -m taskhive examples/crunching.py        # a worker, in one terminal
python examples/crunching.py                    # in another one: dispatch, wait, draw
"""

from __future__ import annotations

from taskhive import Hive, current_job

hive = Hive()
WIDTH, HEIGHT, BANDS = 78, 24, 4
SHADES = " .:-=+*#%@"


@hive.handler(timeout=60, memory="256MiB")
def mandelbrot(top: int, rows: int, depth: int = 1000) -> list[str]:
    """Some rows of the picture, as text."""
    # track() tells whoever asks how many rows are done; it costs next to nothing.
    return [row(y, depth) for y in current_job().track(range(top, top + rows), note="rows")]


def row(y: int, depth: int) -> str:
    return "".join(
        shade(complex(3.2 * x / WIDTH - 2.3, 2.4 * y / HEIGHT - 1.2), depth) for x in range(WIDTH)
    )


def shade(c: complex, depth: int) -> str:
    """How long a point takes to run away."""
    z = 0j
    for step in range(depth):
        z = z * z + c
        if abs(z) > 2:
            return SHADES[min(step // 2, len(SHADES) - 2)]
    return SHADES[-1]


def main() -> None:
    rows = HEIGHT // BANDS
    jobs = [mandelbrot.dispatch(top, rows) for top in range(0, HEIGHT, rows)]
    # A bar in a terminal; the bands come as they are done, in any order.
    for job in hive.as_completed(jobs, timeout=60, progress=True):
        progress = job.progress()
        assert progress is not None
        print(f"{job.id}: {progress.done:.0f} of {progress.total:.0f} {progress.note}")
    for band in hive.gather(jobs):
        print("\n".join(band))


if __name__ == "__main__":
    with hive:
        main()
