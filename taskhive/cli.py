"""The command line."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click

from taskhive import interrupts, meter, units
from taskhive.errors import ConfigurationError, HandlerError, ServerError
from taskhive.gauge import Gauge
from taskhive.governor import Bounds
from taskhive.guard import Guard
from taskhive.hive import Hive
from taskhive.logs import Log
from taskhive.machine import Machine
from taskhive.regulator import MOST, Regulator, default_most
from taskhive.status import look, portable, text
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
@click.version_option(package_name="taskhive", prog_name="taskhive")
def main() -> None:
    """A runner for CPU-bound Python jobs: `taskhive handlers.py` runs a worker."""


@main.command(
    short_help="Run a worker on FILES; `taskhive FILES` does the same.",
    context_settings={"auto_envvar_prefix": "TASKHIVE"},
)
@click.argument("files", nargs=-1)
@click.option(
    "--url",
    # The variable comes behind what the Hive of the handlers says, so it is not read here.
    allow_from_autoenv=False,
    help="Server; else the Hive's own, TASKHIVE_URL, the embedded one.",
)
@click.option(
    "--concurrency", default="auto", show_default=True, help="Jobs at once: a number, or auto."
)
@click.option(
    "--min",
    "least",
    envvar="TASKHIVE_MIN",
    default=1,
    show_default=True,
    help="The least that auto may choose.",
)
@click.option(
    "--max",
    "most",
    envvar="TASKHIVE_MAX",
    type=int,
    help="The most that auto may choose; else 32 times the cores, at least 64.",
)
@click.option(
    "--target-cpu", default=0.9, show_default=True, help="How much of the cores auto may fill."
)
@click.option("--memory", help='Of all running jobs together, such as "8GiB".')
@click.option("--queue", help="Queue of a module with a bare handle(data, job), or of --calls.")
@click.option("--calls", is_flag=True, help="Serve an Executor, on the queue calls or on --queue.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds for running jobs at the end.")
@click.option("--lease", default=15.0, show_default=True, help="Seconds a job is ours without renewal.")
@click.option("--reload", is_flag=True, help="Take up changes of the project's files.")
@click.option("--name", default="", help="Name of this worker; else the host's.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or for programs.",
)
def run(
    files: tuple[str, ...],
    url: str | None,
    concurrency: str,
    least: int,
    most: int | None,
    target_cpu: float,
    memory: str | None,
    queue: str | None,
    calls: bool,
    grace: float,
    lease: float,
    reload: bool,
    name: str,
    log_format: str,
) -> None:
    """Run the handlers of FILES (handlers.py, pkg.module or pkg.module:hive)."""
    log = Log(as_json=log_format == "json")
    try:
        if calls:
            files = (*files, f"taskhive.called:{units.queue_name(queue or 'calls')}")
        if not files:
            raise ConfigurationError("FILES", "there is none", "Name a file of handlers, or say --calls")
        check_reload(reload)
        options = WorkerOptions(
            files=files,
            url=url,
            concurrency=_concurrency(concurrency),
            least=units.whole(least, "--min", least=1, most=MOST),
            most=None if most is None else units.whole(most, "--max", least=1, most=MOST),
            target_cpu=_target(target_cpu),
            memory=None if memory is None else units.size(memory, "--memory"),
            queue=queue,
            grace=units.seconds(grace, "--grace"),
            lease=units.seconds(lease, "--lease", least=1.0),
            reload=reload,
            name=name,
        )
        code = asyncio.run(_worker(options, log).run())
        interrupts.silence()  # the loop gave back its own answer to signals
    except (ConfigurationError, HandlerError) as error:
        _fail(str(error), USAGE)
    except ServerError as error:
        _fail(str(error), REFUSED)
    except KeyboardInterrupt:
        sys.exit(interrupts.INTERRUPTED)
    sys.exit(code)


@main.command(context_settings={"auto_envvar_prefix": "TASKHIVE"})
@click.option("--url", help="Server; else TASKHIVE_URL, else the embedded one.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(url: str | None, as_json: bool) -> None:
    """Show workers, queues, and what handlers have cost."""
    try:
        with interrupts.raised(), Hive(url) as hive:
            found = look(hive)
    except ConfigurationError as error:
        _fail(str(error), USAGE)
    except ServerError as error:
        _fail(str(error), REFUSED)
    if as_json:
        click.echo(json.dumps(portable(found), indent=1))
    else:
        click.echo(text(found), nl=False)


def _worker(options: WorkerOptions, log: Log) -> Supervisor:
    """A supervisor on this machine."""
    machine = Machine()
    gauge = Gauge(machine, meter.measure)
    cores = gauge.grant.cores
    most = options.most if options.most is not None else max(options.least, default_most(cores))
    if options.least > most:
        raise ConfigurationError(
            "--min", f"{options.least} is above --max {most}", "Make it the smaller one of the two"
        )
    bounds = Bounds(least=options.least, most=most, target_cpu=options.target_cpu)
    regulator = Regulator(gauge, bounds, log, options.concurrency)
    guard = Guard(meter.measure, cores)
    return Supervisor(options, log, RealWorld(), regulator=regulator, guard=guard)


@main.command()
def demo() -> None:
    """Show progress, a kill, a crash and a retry, in under 20 seconds."""
    from rich.console import Console

    from taskhive import demo as demonstration

    try:
        with interrupts.raised():
            sys.exit(demonstration.show(Console()))
    except ServerError as error:
        _fail(str(error), REFUSED)


def _concurrency(text: str) -> int | None:
    """How many jobs at once; None where the machine decides."""
    if text == "auto":
        return None
    if not text.isdigit() or not 1 <= int(text) <= MOST:
        raise ConfigurationError(
            "--concurrency", f"{text!r} is no number of jobs", f"Give 1 to {MOST}, or auto"
        )
    return int(text)


def _target(value: float) -> float:
    if not 0 < value <= 1:
        raise ConfigurationError(
            "--target-cpu", f"{value} is no part of the cores", "Give a number above 0, at most 1"
        )
    return value


def _fail(message: str, code: int) -> None:
    click.echo(f"taskhive: {message}", err=True)
    sys.exit(code)
