"""The package as users get it: a wheel, an editable install, a bare checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskhive import embedded, scripts

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import taskhive
from taskhive import Hive, scripts

with Hive() as hive:
    q = hive.queue("q")
    job = q.dispatch("a.png", width=64)
    with q.lease(visibility=30, wait=5) as lease:
        assert (lease.args, lease.kwargs) == (("a.png",), {"width": 64})
    assert job.state() == "succeeded"
    q.destroy()
print(taskhive.__file__)
print(scripts.lua_directory())
"""


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="th-") as directory:
        words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", directory, str(ROOT)]
        run(sys.executable, *words)
        (made,) = Path(directory).glob("*.whl")
        yield made


@pytest.fixture
def python() -> Iterator[Path]:
    """A fresh environment that has what TaskHive needs, and not TaskHive itself."""
    with tempfile.TemporaryDirectory(prefix="th-") as directory:
        venv.create(directory, symlinks=True)
        (packages,) = Path(directory).glob("lib/python*/site-packages")
        # Its `.pth` files are not read this way: an editable install in here is not found from there.
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        yield Path(directory, "bin", "python")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="th-") as directory:
        yield Path(directory)
        embedded.stop(Path(directory, "hive"))


def run(*words: str, cwd: Path | None = None, **environ: str) -> str:
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TASKHIVE_", "PIP_"))}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**outside, **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(python: Path, *words: str) -> None:
    # What the borrowed packages have is neither good enough nor to be touched.
    quiet = ("--quiet", "--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", str(python), "install", *quiet, *words)


def used(python: Path, place: Path, cwd: Path) -> list[Path]:
    """Run the program there; where it found the package, and where its scripts."""
    said = run(str(python), "-c", PROGRAM, cwd=cwd, TASKHIVE_DIR=str(place / "hive"))
    return [Path(line) for line in said.splitlines()]


def test_the_wheel_has_every_script_and_module_and_says_that_it_is_typed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    lua = {f"taskhive/lua/{p.relative_to(ROOT / 'lua')}" for p in (ROOT / "lua").rglob("*.lua")}
    modules = {f"taskhive/{p.relative_to(ROOT / 'taskhive')}" for p in (ROOT / "taskhive").rglob("*.py")}
    assert lua | modules | {"taskhive/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def test_the_wheel_in_a_fresh_environment_dispatches_leases_and_settles(
    wheel: Path, python: Path, place: Path
) -> None:
    install(python, str(wheel))
    package, lua = used(python, place, place)
    inside = python.parents[1].resolve()
    assert package.resolve().is_relative_to(inside)
    assert lua == package.parent / "lua"


def test_an_editable_install_finds_the_scripts_of_the_checkout(python: Path, place: Path) -> None:
    install(python, "--no-build-isolation", "--editable", str(ROOT))
    assert used(python, place, place) == [ROOT / "taskhive" / "__init__.py", ROOT / "lua"]


def test_a_bare_checkout_works_without_being_installed(python: Path, place: Path) -> None:
    assert used(python, place, ROOT) == [ROOT / "taskhive" / "__init__.py", ROOT / "lua"]


def test_an_installation_without_its_scripts_says_so(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(scripts, "__file__", str(place / "taskhive" / "scripts.py"))
    with pytest.raises(FileNotFoundError, match="the installation is incomplete, install it again"):
        scripts.lua_directory()
