"""`python -m taskhive FILE...`."""

from __future__ import annotations

from taskhive.cli import main

if __name__ == "__main__":
    main()
