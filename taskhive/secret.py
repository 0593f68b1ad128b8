"""Where a program's secret comes from: what it was given, the environment, a file, the embedded server.

A child has none of these: its secret was entrusted to it over the private socket of its worker, so that
nothing in its environment, its arguments or on the server gives it away.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from taskhive.errors import ConfigurationError
from taskhive.signing import PICKLES_ONLY, REMEDY, KeyRing

VARIABLES = ("TASKHIVE_SECRET", "TASKHIVE_SECRET_FILE")
FILE = "secret"
"""Its name in the directory of the embedded server."""

changes = 1
"""How often it became another question where the secret is; what was found before holds no more."""
_entrusted: KeyRing | None = None
_is_child = False


def entrust(ring: KeyRing | None) -> None:
    """From here on this process uses what its worker gave it, and looks nowhere else."""
    global _entrusted, _is_child, changes
    _entrusted, _is_child = ring, True
    changes += 1


def given(value: Any) -> KeyRing | None:
    """A ring from `Hive(secret=...)`: one secret, or several, the first of which signs."""
    if value is None or isinstance(value, KeyRing):
        return value
    if isinstance(value, (str, bytes)):
        return KeyRing([value])
    if isinstance(value, Iterable):
        return KeyRing(list(value))
    raise ConfigurationError("secret", f"{type(value).__name__} is no secret", "Give a str or bytes")


def find(environ: Mapping[str, str], embedded: Callable[[], Path | None]) -> KeyRing | None:
    """The ring of this process, or None; `embedded` tells where its embedded server lives, if any."""
    if _is_child:
        return _entrusted
    if words := environ.get("TASKHIVE_SECRET", "").replace(",", " ").split():
        return KeyRing(words)
    if name := environ.get("TASKHIVE_SECRET_FILE"):
        return _from_file(Path(name))
    directory = embedded()
    return None if directory is None else _own(directory)


def need(ring: KeyRing | None) -> KeyRing:
    """The ring, or the error that says how to have one."""
    if ring is None:
        raise ConfigurationError("secret", "codec='pickle' needs one", REMEDY)
    return ring


def _from_file(path: Path, *more: bytes) -> KeyRing:
    """One secret a line; the first signs."""
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "TASKHIVE_SECRET_FILE", f"cannot be read ({error})", "Name a file with one secret a line"
        ) from error
    return KeyRing([*words, *more])


def _own(directory: Path) -> KeyRing:
    """The embedded server's own secret, made at first use; readable by its user alone."""
    path = directory / FILE
    if not path.exists():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48) + "\n")
        try:
            # A link is made whole or not at all, and never over another's.
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            new.unlink()
    mode = path.stat()
    if mode.st_uid != os.getuid() or stat.S_IMODE(mode.st_mode) & 0o077:
        raise ConfigurationError(
            "secret", f"{path} can be read by others", "chmod 600 it, or delete it: a new one is made"
        )
    # Whoever can write to that server is the user who can read this file: data gains nothing by it.
    return _from_file(path, PICKLES_ONLY)
