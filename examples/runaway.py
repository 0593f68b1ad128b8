"""A handler that never ends, killed from outside, and the black box that says where it was.

python -m taskhive examples/runaway.py          # a worker, in one terminal
python examples/runaway.py                      # in another one
"""

from __future__ import annotations

import re

from taskhive import Hive, JobTimeout

hive = Hive()


@hive.handler(timeout=1, max_timeouts=0)
def is_valid(text: str) -> bool:
    """Takes longer than the universe will last for forty letters, and holds the GIL meanwhile."""
    print(f"looking at {len(text)} letters")
    return re.fullmatch(r"(\w+\s?)+!", text) is not None


def main() -> None:
    print("a short text:", is_valid.dispatch("good morning!").result(timeout=60))
    try:
        is_valid.dispatch("a" * 40).result(timeout=60)
    except JobTimeout as error:
        box = error.black_box or {}
        print(f"a long one: {error.message}")
        print(f"verdict {box['verdict']} by {box['signal']} after {box['wall']:.1f} s")
        print(f"it had said: {box['output']}")
        print(box["stack"])
    print("the next one:", is_valid.dispatch("good night!").result(timeout=60))


if __name__ == "__main__":
    with hive:
        main()
