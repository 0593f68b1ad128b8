"""`python -m taskhive FILE...`, and the command `taskhive`."""

from __future__ import annotations

from taskhive import interrupts


def main() -> None:
    """Listen to Ctrl-C first; the command line is a fifth of a second away."""
    interrupts.silence()
    from taskhive.cli import main as command

    command()


if __name__ == "__main__":
    main()
