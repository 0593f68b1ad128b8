"""What the command line of a worker refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from taskhive.cli import main


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--min", "5", "--max", "2"], "Make it the smaller one"),
        (["--min", "0"], "from 1"),
        (["--max", "2000"], "from 1 to 1024"),
        (["--target-cpu", "1.5"], "at most 1"),
        (["--target-cpu", "0"], "above 0"),
        (["--memory", "2 apples"], "2GiB"),
        (["--concurrency", "0"], "or auto"),
        (["--concurrency", "many"], "or auto"),
    ],
)
def test_a_wrong_option_is_refused_with_the_remedy(words: list[str], remedy: str) -> None:
    result = CliRunner().invoke(main, ["run", "handlers.py", *words])
    assert result.exit_code == 2
    assert remedy in result.output
