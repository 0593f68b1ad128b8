"""What the documentation says is run, or held against the code.

A block that opens with ```python run is executed on a private server, the blocks of a page in one
namespace. In it, `expression  # -> text` is a claim: the value must read like the text. A block that
opens with ```python worker is the file of a worker, which runs beside the blocks behind it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import redis

import taskhive
from taskhive import Hive, JobInfo, NotDurable, QueueStats, cli, options, scripts
from taskhive.blackbox import BlackBox
from taskhive.embedded import LINGER
from taskhive.handler_options import HandlerOptions
from tests.servers import Server
from tests.workers import working

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *sorted(ROOT.glob("*.md"))]
MUST_RUN = {
    "index",
    "dispatch",
    "leases",
    "operations",
    "states",
    "errors",
    "from-other-queues",
    "handlers",
    "kills",
}

_FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CLAIM = re.compile(r"# -> (.*?)\s*$")


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    line: int
    text: str
    runs: bool
    works: bool = False


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        if found[1] == "python":
            line = text.count("\n", 0, found.start(3)) + 1
            what = found[2].strip()
            yield Block(path.name, line, found[3], what == "run", what == "worker")


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def run(block: Block, names: dict[str, Any]) -> int:
    """Execute a block as if it stood on its page; the number of claims that were held."""
    claims = 0
    lines = block.text.splitlines()
    tree = ast.parse(block.text, block.page)
    ast.increment_lineno(tree, block.line - 1)
    for node in tree.body:
        assert node.end_lineno is not None
        claim = _CLAIM.search(lines[node.end_lineno - block.line])
        if claim and isinstance(node, ast.Expr):
            value = eval(compile(ast.Expression(node.value), block.page, "eval"), names)
            where = f"{block.page}:{node.lineno}: {ast.unparse(node)}"
            assert claim[1] in (repr(value), str(value)), f"{where} is {value!r}, not {claim[1]}"
            claims += 1
        else:
            assert not claim, f"{block.page}:{node.lineno}: only an expression can be a claim"
            exec(compile(ast.Module([node], []), block.page, "exec"), names)
    return claims


def tables(text: str) -> Iterator[list[list[str]]]:
    """Every table of a page, as rows of cells, without its head."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            yield rows[2:]
            rows = []


def table_of(name: str, first: str) -> dict[str, list[str]]:
    """The table of a page that has a row for `first`: its rows, by the names in their first cell."""
    for rows in tables(page(name)):
        named = {word: row for row in rows for word in re.findall(r"`(\w+)`", row[0])}
        if first in named:
            return named
    raise AssertionError(f"no table of {name}.md has a row for {first}")


# Examples


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_examples_of_a_page_run_and_answer_as_it_says(
    path: Path, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASKHIVE_URL", server.url)
    monkeypatch.setenv("TASKHIVE_PREFIX", prefix)
    names: dict[str, Any] = {"__name__": path.stem}
    ran = []
    with contextlib.ExitStack() as workers:
        for block in blocks(path):
            if block.works:
                file = tmp_path / f"handlers{block.line}.py"
                file.write_text(block.text)
                words = (str(file), "--concurrency", "1", "--grace", "0")
                workers.enter_context(working(server.url, prefix, tmp_path / "log", *words))
            elif block.runs:
                ran.append(run(block, names))
    assert bool(ran) >= (path.stem in MUST_RUN), f"{path.name} lost its examples"
    for value in names.values():
        if isinstance(value, Hive):
            value.close()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_other_examples_are_python_at_least(path: Path) -> None:
    for block in blocks(path):
        ast.parse(block.text, f"{block.page}:{block.line}")


def test_a_wrong_claim_in_an_example_is_noticed() -> None:
    names: dict[str, Any] = {}
    assert run(Block("x", 1, "a = 1\na + 1  # -> 2\n'b'  # -> b\n", True), names) == 2
    with pytest.raises(AssertionError, match="x:3: a is 1, not 2"):
        run(Block("x", 3, "a  # -> 2\n", True), names)
    with pytest.raises(AssertionError, match="only an expression"):
        run(Block("x", 1, "a = 2  # -> 2\n", True), names)


# Links, tests, modules


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    words = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in prose(path).splitlines() if line.startswith("#")}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_test_that_is_named_exists(path: Path) -> None:
    missing = []
    for file, name in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", path.read_text(encoding="utf-8")):
        there = ROOT / file
        text = there.read_text(encoding="utf-8") if there.is_file() else ""
        if not text or (
            name and not re.search(rf"^\s*(def |async def |class )?{name}\b[ (:]", text, re.M)
        ):
            missing.append(f"{file}::{name}")
    assert missing == []


def test_every_sentence_of_the_promise_names_its_proof() -> None:
    rows = [row for rows in tables(page("promise")) for row in rows]
    assert len(rows) >= 10
    assert [row[0] for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row[-1])] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_of_ours_names_a_module_or_file_that_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    modules = re.findall(r"python3? -m ((?:tests|benchmarks)[\w.]*)", text)
    files = re.findall(r"python3? ((?:examples|tests)/[\w/.]+)", text)
    wanted = [ROOT / f"{module.replace('.', '/')}.py" for module in modules] + [ROOT / f for f in files]
    assert [str(one.relative_to(ROOT)) for one in wanted if not one.is_file()] == []


def test_the_map_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", page("index")))
    assert listed == {path.name for path in DOCS} - {"index.md"}


# Tables that mirror code


def test_the_table_of_options_lists_every_option() -> None:
    assert set(table_of("dispatch", "delay")) == {f.name for f in dataclasses.fields(options.JobOptions)}


def test_the_table_of_handler_options_lists_every_option_with_its_default() -> None:
    table = table_of("handlers", "soft_timeout")
    options = {f.name: f.default for f in dataclasses.fields(HandlerOptions)}
    assert set(table) == {"name", "queue", *options}
    said = {name: ast.literal_eval(table[name][1].strip("`")) for name in options}
    assert said == options


def test_the_table_of_the_command_line_lists_every_option_of_run() -> None:
    rows = next(rows for rows in tables(page("worker")) if "`--url`" in rows[0][0])
    said = {row[0].strip("`"): (row[1].strip("`"), row[2].strip("`")) for row in rows}
    wanted = {}
    for option in cli.run.params:
        if isinstance(option, click.Option):
            name = max(option.opts, key=len)
            default = ""
            if not option.is_flag and option.default and isinstance(option.default, (str, int, float)):
                default = str(option.default).removesuffix(".0")
            variable = f"TASKHIVE_{name.strip('-').upper().replace('-', '_')}"
            silent = option.is_flag or not option.allow_from_autoenv
            wanted[name] = (default, "" if silent else variable)
    assert said == wanted


def test_the_table_of_events_lists_every_event_of_the_log() -> None:
    code = "".join(path.read_text() for path in (ROOT / "taskhive").glob("*.py"))
    logged = set(re.findall(r"\.event\(\s*\"([\w.]+)\"", code))
    logged |= set(re.findall(r"\"(attempt\.\w+)\"", code))
    rows = next(rows for rows in tables(page("worker")) if "`worker.started`" in rows[0][0])
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])} == logged


def test_the_table_of_the_black_box_lists_every_field() -> None:
    assert set(table_of("kills", "peak_memory")) == {f.name for f in dataclasses.fields(BlackBox)}


@pytest.mark.parametrize("name", ["handlers", "worker", "kills"])
def test_every_row_of_a_table_of_proofs_names_a_test(name: str) -> None:
    proved = 0
    for table in re.findall(r"(?:^\|.*\n)+", page(name), re.M):
        head, _, *rows = table.splitlines()
        if head.endswith(("| Proof |", "| Test |")):
            proved += len(rows)
            assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row)] == []
    assert proved >= 10


def test_the_table_of_settings_lists_every_argument_of_a_hive() -> None:
    wanted = set(inspect.signature(Hive).parameters)
    assert set(table_of("production", "connect_timeout")) == wanted


def test_the_tables_of_numbers_and_records_list_every_field() -> None:
    assert set(table_of("operations", "oldest_wait")) == {f.name for f in dataclasses.fields(QueueStats)}
    assert set(table_of("operations", "started_at")) == {f.name for f in dataclasses.fields(JobInfo)}


def test_every_exception_is_explained_with_its_attributes() -> None:
    named = table_of("errors", "QueueFull")
    for name in taskhive.__all__:
        kind = getattr(taskhive, name)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            row = " ".join(named[name])
            init = inspect.getsource(kind.__init__) if "__init__" in vars(kind) else ""
            for attribute in re.findall(r"self\.(\w+) =", init):
                assert f"`{attribute}`" in row, f"{name}.{attribute} is not in errors.md"


def test_the_states_page_lists_every_state() -> None:
    assert set(table_of("states", "blocked")) == set(taskhive.JobState)


def test_the_table_of_limits_says_what_the_code_says() -> None:
    code = "\n".join(
        path.read_text()
        for folder in (scripts.lua_directory(), ROOT / "taskhive")
        for path in folder.rglob("*")
        if path.suffix in (".lua", ".py")
    )
    assigned: dict[str, set[str]] = {}
    for names, values in re.findall(r"^(?:local )?([A-Z_]+(?:, [A-Z_]+)*) = (.+)$", code, re.M):
        for name, value in zip(names.split(", "), values.split(", "), strict=False):
            assigned.setdefault(name, set()).add(value)
    claims = re.findall(r"`([A-Z_]+) = ([^`]+)`", page("states"))
    assert len(claims) > 10
    assert [claim for claim in claims if claim[1] not in assigned.get(claim[0], ())] == []
    assert f"{LINGER:.0f} seconds" in page("embedded")


def test_the_design_names_modules_that_exist() -> None:
    named = re.findall(
        r"`(\w+)`", " ".join(row[1] for rows in tables(page("design")) for row in rows if len(row) == 3)
    )
    modules = {path.stem for path in (ROOT / "taskhive").glob("*.py")}
    assert len(set(named) & modules) > 20
    assert {word for word in named if word.islower()} - modules <= {"delayed", "expires"}


# The ACL line


def acl_words() -> list[str]:
    line = re.search(r"^(user taskhive .*)$", page("production"), re.M)
    assert line is not None
    return line[1].split()


def test_the_acl_line_names_every_command_of_the_scripts() -> None:
    called = set()
    for path in scripts.lua_directory().rglob("*.lua"):
        called |= set(re.findall(r"redis\.p?call\('(\w+)'", path.read_text()))
    inside = {f"+{name.lower()}" for name in called}
    allowed = {word for word in acl_words() if word.startswith("+")}
    assert inside - allowed == set()
    outside = {
        "eval",
        "evalsha",
        "hello",
        "ping",
        "info",
        "sadd",
        "srem",
        "smembers",
        "subscribe",
        "unsubscribe",
        "wait",
        "waitaof",
        "xrange",
        "xread",
        "xrevrange",
    }
    assert allowed - inside == {f"+{name}" for name in outside}


def test_a_client_with_the_acl_line_can_do_everything_and_nothing_else(server: Server) -> None:
    admin: Any = server.client()
    name, words = "taskhive", acl_words()[2:]
    password = next(word[1:] for word in words if word.startswith(">"))
    try:
        admin.execute_command("ACL", "SETUSER", name, *words)
        keeps = True
    except redis.ResponseError:  # Redis 7.0 has no WAITAOF, as the page says
        admin.execute_command("ACL", "SETUSER", name, *[w for w in words if w != "+waitaof"])
        keeps = False
    try:
        admin.config_set("appendonly", "yes" if keeps else "no")
        admin.execute_command("ACL", "LOG", "RESET")
        with Hive(f"unix://{name}:{password}@{server.socket}") as hive:
            use_everything(hive, keeps)
        # The client library introduces itself and does not mind a refusal.
        assert {entry["object"] for entry in admin.acl_log()} <= {"client|setinfo"}
        outsider: Any = redis.Redis(
            unix_socket_path=str(server.socket), username=name, password=password
        )
        for command in ("KEYS *", "FLUSHALL", "CONFIG GET *", "GET other", "ACL LIST"):
            with pytest.raises(redis.ResponseError, match="permission"):
                outsider.execute_command(*command.split())
        outsider.close()
    finally:
        admin.config_set("appendonly", "no")
        admin.execute_command("ACL", "DELUSER", name)
        admin.close()


def use_everything(hive: Hive, keeps: bool) -> None:
    q = hive.queue("acl")
    assert q.lease(wait=0.01) is None  # subscribes
    job = q.dispatch(1)
    q.options(id="x", delay=0.001, expires=60).dispatch(2)
    lease = q.lease()
    assert lease is not None
    lease.extend(5)
    q.options(id=lease.id).dispatch(3)
    lease.ack({"a": 1})
    for _ in range(2):
        other = q.lease(wait=5)
        assert other is not None
        other.fail("x", permanent=True)
    assert job.info().error is not None
    assert q.dead.retry("x")
    assert q.stats().ready == 1
    assert len(q.jobs("succeeded")) == 0
    q.sweep()
    q.pause()
    q.resume()
    assert q.cancel("x")
    assert q.purge("cancelled") == 1
    assert job.delete()
    durable = q.options(durable=True)
    if keeps:
        durable.dispatch(1)
    else:  # nothing here keeps it, but the waiting itself is allowed
        with pytest.raises(NotDurable, match="attach a replica"):
            durable.dispatch(1)
    assert "acl" in hive.queues()
    assert q.matching(1)
    assert q.destroy() == 1
