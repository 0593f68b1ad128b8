"""The command line."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from taskhive import linux, units
from taskhive.errors import ConfigurationError, HandlerError, ServerError
from taskhive.logs import Log
from taskhive.supervisor import Supervisor
from taskhive.worker_options import WorkerOptions
from taskhive.world import RealWorld, check_reload

USAGE, REFUSED = 2, 3


class _RunByDefault(click.Group):
    """`python -m taskhive FILE` means `taskhive run FILE`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="taskhive")
def main() -> None:
    """A runner for CPU-bound Python jobs. `taskhive FILE...` runs a worker."""


@main.command(context_settings={"auto_envvar_prefix": "TASKHIVE"})
@click.argument("files", nargs=-1, required=True)
@click.option("--url", help="Server; else the Hive's own, TASKHIVE_URL, the embedded one.")
@click.option("--concurrency", default="auto", show_default=True, help="Children: a number, or auto.")
@click.option("--queue", help="Queue of a module with a bare handle(data, job).")
@click.option("--grace", default=30.0, show_default=True, help="Seconds for running jobs at the end.")
@click.option("--lease", default=15.0, show_default=True, help="Seconds a job is ours without renewal.")
@click.option("--reload", is_flag=True, help="Take up changes of the project's files.")
@click.option("--name", default="", help="Name of this worker; else the host's.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def run(
    files: tuple[str, ...],
    url: str | None,
    concurrency: str,
    queue: str | None,
    grace: float,
    lease: float,
    reload: bool,
    name: str,
    log_format: str,
) -> None:
    """Run the handlers of FILES (handlers.py, pkg.module or pkg.module:hive)."""
    log = Log(as_json=log_format == "json")
    try:
        check_reload(reload)
        children, why = _concurrency(concurrency)
        options = WorkerOptions(
            files=files,
            url=url,
            concurrency=children,
            why=why,
            queue=queue,
            grace=units.seconds(grace, "--grace"),
            lease=units.seconds(lease, "--lease", least=1.0),
            reload=reload,
            name=name,
        )
        code = asyncio.run(Supervisor(options, log, RealWorld()).run())
    except (ConfigurationError, HandlerError) as error:
        _fail(str(error), USAGE)
    except ServerError as error:
        _fail(str(error), REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code)


def _concurrency(text: str) -> tuple[int, str]:
    """How many children, and why."""
    if text == "auto":
        return linux.cores(), "as many as there are cores"
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise ConfigurationError("--concurrency", f"{text!r} is no number", "Give 1 to 1024, or auto")
    return int(text), "asked for"


def _fail(message: str, code: int) -> None:
    click.echo(f"taskhive: {message}", err=True)
    sys.exit(code)
