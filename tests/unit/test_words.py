"""The pure words: checked values, ids, backoffs, and what an error calls for, as tables of cases."""

from __future__ import annotations

import random
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions

from taskhive import ids, trouble, units
from taskhive.errors import ConfigurationError, QueueFull, ServerRefused
from taskhive.retries import Again, Counts, FailureKind, GiveUp, Limits, backoff, decide
from taskhive.trouble import Reaction

# Units


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (0, 0.0),
        (1, 1.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
        (2**45 / 1000 - 1, 2**45 / 1000 - 1),
    ],
)
def test_a_duration_is_seconds(value: Any, meant: float) -> None:
    assert units.seconds(value, "x") == meant


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (datetime(2030, 1, 1, tzinfo=UTC), 1893456000.0),
        (datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1893456000.0),
    ],
)
def test_a_moment_is_posix_seconds(value: Any, meant: float) -> None:
    assert units.moment(value, "x") == meant


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (1, 1),
        ("1", 1),
        ("1b", 1),
        ("2kB", 2000),
        ("2KiB", 2048),
        (" 1.5 MiB ", 1572864),
        ("2GiB", 2**31),
        ("2g", 2 * 10**9),
        ("1TiB", 2**40),
    ],
)
def test_a_size_is_bytes(value: Any, meant: int) -> None:
    assert units.size(value, "x") == meant


@pytest.mark.parametrize(
    "value", ["", "b", "1 2", "1XB", "0", "-1", "1e3", "0.1", 0, -5, 1.0, True, None]
)
def test_what_is_no_size_is_told_so(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^x: ") as wrong:
        units.size(value, "x")
    assert isinstance(wrong.value, ValueError)


@given(st.text(max_size=30))
def test_an_id_is_one_or_is_refused_by_one_rule(text: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9._:-]{1,200}", text):
        assert units.job_id(text) == text
    else:
        with pytest.raises(ConfigurationError):
            units.job_id(text)


@pytest.mark.parametrize("name", ["q", "q:fail", "x" * 100, "x" * 100 + ":fail", "a:failed", "fail"])
def test_a_queue_name_may_have_the_ending_of_its_lane(name: str) -> None:
    assert units.queue_name(name) == name


@pytest.mark.parametrize("name", [":fail", "q:fail:fail", "x" * 101, "x" * 101 + ":fail", "", "a\n"])
def test_a_queue_name_that_is_none_is_told_so(name: str) -> None:
    with pytest.raises(ConfigurationError):
        units.queue_name(name)


# Ids


def test_ids_are_22_characters_that_are_ids_and_differ() -> None:
    made = [ids.new_id() for _ in range(200)] + ids.new_ids(200)
    assert len(set(made)) == 400
    assert all(len(one) == 22 and one[0] == "V" and units.job_id(one) == one for one in made)


def test_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for ms in sorted(random.Random(1).sample(range(10**12, 4 * 10**12), 100)):
        monkeypatch.setattr(time, "time_ns", lambda ms=ms: ms * 1_000_000)
        made += [ids.new_id(), *ids.new_ids(1)]
    assert [one[:8] for one in made] == sorted(one[:8] for one in made)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
def test_as_many_ids_are_made_as_were_asked_for(count: int) -> None:
    assert len(set(ids.new_ids(count))) == count


def test_nonces_have_no_comma_and_differ() -> None:
    made = {ids.nonce() for _ in range(500)}
    assert len(made) == 500
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{11}", one) for one in made)


# Retries


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (FailureKind.ERROR, 10),
        (FailureKind.PERMANENT, 0),
        (FailureKind.TIMEOUT, 3),
        (FailureKind.CPU, 3),
        (FailureKind.MEMORY, 3),
        (FailureKind.CRASH, 1),
        (FailureKind.STALL, 3),
    ],
)
def test_a_limit_is_how_often_a_job_is_put_back(kind: FailureKind, limit: int) -> None:
    decisions = []
    for n in range(limit + 1):
        counts = Counts(retries=n, timeouts=n, stalls=n, crashes=n)
        decisions.append(decide(kind, counts, Limits(), random.Random(0)))
    assert all(isinstance(one, Again) for one in decisions[:-1])
    assert decisions[-1] == GiveUp()


@pytest.mark.parametrize("kind", list(FailureKind))
def test_no_cause_is_charged_for_another(kind: FailureKind) -> None:
    mine = {FailureKind.ERROR: "retries", FailureKind.CRASH: "crashes", FailureKind.STALL: "stalls"}
    field = mine.get(kind, "timeouts")
    full = dict.fromkeys(("retries", "timeouts", "stalls", "crashes"), 99)
    counts = Counts(**{**full, field: 0})
    wanted = GiveUp if kind is FailureKind.PERMANENT else Again
    assert isinstance(decide(kind, counts, Limits(), random.Random(0)), wanted)


@pytest.mark.parametrize(
    ("count", "seconds"), [(0, 2), (1, 4), (2, 8), (7, 256), (8, 300), (60, 300), (10**9, 300)]
)
def test_a_backoff_doubles_up_to_its_ceiling(count: int, seconds: float) -> None:
    assert backoff(count, Limits(jitter="none"), random.Random(0)) == seconds


@given(st.integers(0, 100), st.randoms(use_true_random=False))
def test_jitter_takes_a_part_of_the_wait_and_never_more(count: int, rng: random.Random) -> None:
    most = backoff(count, Limits(jitter="none"), rng)
    assert 0 <= backoff(count, Limits(), rng) <= most


# Trouble


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (exceptions.ResponseError("NOSCRIPT No matching script"), Reaction.EVAL),
        (exceptions.NoScriptError("No matching script"), Reaction.EVAL),
        (exceptions.ReadOnlyError("You can't write"), Reaction.REROUTE),
        (exceptions.ResponseError("MASTERDOWN Link"), Reaction.REROUTE),
        (exceptions.BusyLoadingError("loading"), Reaction.WAIT),
        (exceptions.ResponseError("BUSY Redis is busy"), Reaction.WAIT),
        (exceptions.ResponseError("TRYAGAIN Multiple keys"), Reaction.WAIT),
        (exceptions.ResponseError("CLUSTERDOWN The cluster"), Reaction.WAIT),
        (exceptions.ResponseError("MISCONF Redis is configured"), Reaction.WAIT),
        (exceptions.ResponseError("NOREPLICAS Not enough"), Reaction.WAIT),
        (exceptions.ResponseError("MOVED 3999 127.0.0.1:6381"), Reaction.MOVED),
        (exceptions.ResponseError("ASK 3999 127.0.0.1:6381"), Reaction.ASK),
        (exceptions.ResponseError("OOM command not allowed"), Reaction.RAISE),
        (exceptions.ResponseError("BADARG no"), Reaction.RAISE),
        (exceptions.ResponseError("ERR something"), Reaction.RAISE),
        (exceptions.AuthenticationError("WRONGPASS"), Reaction.RAISE),
        (exceptions.NoPermissionError("NOPERM"), Reaction.RAISE),
        (exceptions.ConnectionError("reset"), Reaction.RESEND),
        (exceptions.TimeoutError("slow"), Reaction.RESEND),
        (ConnectionResetError(), Reaction.RESEND),
        (BrokenPipeError(), Reaction.RESEND),
        (OSError("no route"), Reaction.RESEND),
        (EOFError(), Reaction.RESEND),
    ],
    ids=lambda one: f"{type(one).__name__} {one}"[:40],
)
def test_each_trouble_has_its_reaction(error: Exception, reaction: Reaction) -> None:
    assert trouble.react(error) is reaction


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (exceptions.ResponseError("FULL 2 jobs wait, its cap is 2"), QueueFull, "2 jobs wait"),
        (exceptions.OutOfMemoryError("command not allowed"), QueueFull, "maxmemory"),
        (exceptions.ResponseError("OOM command not allowed"), QueueFull, "maxmemory"),
        (exceptions.ResponseError("PROTOCOL this queue holds"), ServerRefused, "same version"),
        (exceptions.AuthenticationError("WRONGPASS"), ServerRefused, "password"),
        (exceptions.NoPermissionError("no"), ServerRefused, "ACL"),
        (exceptions.ResponseError("ERR odd"), ServerRefused, "ERR odd"),
    ],
    ids=lambda one: f"{one}"[:30],
)
def test_what_no_repetition_helps_is_told_with_advice(
    error: Exception, kind: type[Exception], said: str
) -> None:
    assert isinstance(found := trouble.translate(error, "q"), kind)
    assert said in str(found)
