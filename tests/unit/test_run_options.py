"""What the command line of a worker takes, from words and from the environment, and refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from taskhive.cli import main, run


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


def test_every_option_that_takes_a_value_may_come_from_the_environment() -> None:
    given = {
        "--concurrency": "3",
        "--min": "2",
        "--max": "7",
        "--target-cpu": "0.5",
        "--memory": "1GiB",
        "--queue": "q",
        "--grace": "4.0",
        "--lease": "9.0",
        "--name": "n",
        "--log-format": "json",
    }
    names = {one: f"TASKHIVE_{one.strip('-').upper().replace('-', '_')}" for one in given}
    context = run.make_context("run", ["x.py"], auto_envvar_prefix="TASKHIVE")
    defaults = dict(context.params)
    with pytest.MonkeyPatch.context() as patch:
        for option, value in given.items():
            patch.setenv(names[option], value)
        context = run.make_context("run", ["x.py"], auto_envvar_prefix="TASKHIVE")
    options = {one.opts[0]: str(context.params[str(one.name)]) for one in run.params}
    assert {option: options[option] for option in given} == given
    assert all(context.params[name] == defaults[name] for name in ("url", "calls", "reload"))


def test_the_url_of_the_handlers_comes_before_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASKHIVE_URL", "redis://environment")
    context = run.make_context("run", ["x.py"], auto_envvar_prefix="TASKHIVE")
    assert context.params["url"] is None
