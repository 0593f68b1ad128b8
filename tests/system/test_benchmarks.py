"""The measurements themselves: they run, and say what they found beside what was wanted."""

from __future__ import annotations

import dataclasses
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import client, concurrency, measure, servers, store, worker
from benchmarks.concurrency_runs import Run
from benchmarks.plot import Drawn, plot


def test_the_quick_run_measures_everything_and_says_pass_or_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = store.Scale(rounds=4, calls=5, exchanges=1, kept=200, deep=600, shallow=300)
    monkeypatch.setattr(store, "QUICK", tiny)
    file = tmp_path / "figures.json"
    words = ["store", "--quick", "--server", "valkey", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    assert store.main() == 0
    said = capsys.readouterr().out
    (rows,) = json.loads(file.read_text())["servers"].values()
    with_target = [row for row in rows if row["target"]]
    assert len(with_target) >= 7
    for row in rows:
        low, high = row["quartiles"]
        assert low <= row["median"] <= high
        assert row["what"] in said
    assert said.count("pass") + said.count("MISS") == len(with_target)
    for floor in ("<= 1.60", ">= 80,000", ">= 5.00", ">= 50,000", "<= 325", "<= 1.30"):
        assert floor in said


def test_a_missed_target_fails_a_run_that_is_asked_to_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = measure.Row("too slow", measure.Series((2.0, 3.0, 4.0)), measure.Target(1.0))
    good = measure.Row("fast", measure.Series((9.0,)), measure.Target(1.0, at_least=True))
    for part in ("dispatching", "exchanging", "deepening"):
        monkeypatch.setattr(store, part, lambda *_: iter(()))
    monkeypatch.setattr(store, "remembering", lambda *_: iter([slow, good]))
    monkeypatch.setattr(sys, "argv", ["store", "--server", "valkey", "--check"])
    assert store.main() == 1
    assert "MISS" in capsys.readouterr().out
    assert (slow.missed, good.missed) == (True, False)


def test_a_ratio_is_taken_round_by_round() -> None:
    """What slows both down in one round must not change it."""
    got = measure.alternate({"one": iter([9.0, 1.0, 2.0, 30.0]).__next__, "two": lambda: 2.0}, 3)
    assert got["one"].values == (1.0, 2.0, 30.0)
    assert got["one"].by(got["two"]).median == 1.0


def test_what_a_waiting_program_sees_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = client.Scale(rounds=1, trips=3, calls=130, waiters=20)
    monkeypatch.setattr(client, "QUICK", tiny)
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["client", "--quick", "--json", str(file)])
    assert client.main() == 0
    said = capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert all(row["what"] in said for row in rows)
    assert said.count("pass") + said.count("MISS") == sum(bool(row["target"]) for row in rows) == 5


def test_what_a_script_calls_inside_is_no_call_of_a_client() -> None:
    with servers.running(servers.programs()["valkey"]) as server, server.client() as redis:
        redis.ping()
        with server.listened() as calls:
            for _ in range(3):
                redis.eval("for n = 1, 50 do redis.call('INCR', KEYS[1]) end", 1, "n")
            assert calls() == 3


def test_the_successor_of_a_killed_c_loop_is_measured_behind_the_kill() -> None:
    """One that ran in another slot before it would be early, and say nothing of the kill."""
    scale = dataclasses.replace(worker.QUICK, kills=2)
    with servers.running(servers.programs()["valkey"]) as server:
        (row,) = worker.kills(server, scale)
    assert len(row.series.values) == 2
    assert min(row.series.values) > 0
    assert row.target == measure.Target(30)


def test_a_plot_shows_each_target_at_its_time_and_the_cores_in_use(tmp_path: Path) -> None:
    used = [(0.5, 0.2), (1.0, 0.9), (9.5, 1.2)]
    one = Drawn("a < b", [(0.0, 2), (4.0, 1), (8.0, 3)], 10.0, [(3.0, 7.0)], used)
    plot(tmp_path / "plot.svg", [one, Drawn("alone", [(0.0, 1)], 10.0)])
    tree = ET.parse(tmp_path / "plot.svg")
    space = {"svg": "http://www.w3.org/2000/svg"}
    cores, targets, alone = (
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in tree.iterfind("svg:polyline", space)
    )
    assert len(cores) == 3
    assert cores[1][1] < cores[0][1]  # more is higher
    assert [x for x, _ in targets] == [40.0, 264.0, 264.0, 488.0, 488.0, 600.0]
    assert targets[4][1] < targets[0][1] < targets[2][1]
    assert len(alone) == 2
    assert next(text.text for text in tree.iterfind("svg:text", space)) == "a < b"


def test_turns_are_changes_of_direction() -> None:
    run = object.__new__(Run)
    run.targets = [(float(at), target, "") for at, target in enumerate((2, 3, 5, 4, 4, 6))]
    assert run.turns() == 2
    assert run.target_at(2.5) == 5


def test_how_quick_jobs_wait_beside_slow_ones_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert concurrency.main(["--quick", "--json", "beside", "memory"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["target"] for row in rows] == ["<= 1,178", "<= 1.00"]
    assert rows[0]["median"] > 1024
