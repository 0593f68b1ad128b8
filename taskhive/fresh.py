"""A child in an interpreter of its own, for handlers that no fork survives."""

from __future__ import annotations

import json
import os
import sys

from taskhive import linux, secret
from taskhive.loader import load
from taskhive.output import Lines
from taskhive.signing import KeyRing
from taskhive.zygote import serve


def main() -> None:
    """Run as `python -m taskhive.fresh [DESCRIPTORS, FILES, SETTINGS]`."""
    mine, words, settings = json.loads(sys.argv[1])
    linux.die_with_parent(os.getppid())
    for descriptor in mine:
        os.set_inheritable(descriptor, False)
    sys.argv = ["taskhive", *words]
    sys.stdout, sys.stderr = Lines(1), Lines(2)
    keys = json.load(sys.stdin)
    secret.entrust(None if keys is None else KeyRing.from_portable(keys))
    serve(mine, load(words, settings.get("queue")), settings)


if __name__ == "__main__":
    main()
