"""What a dispatch asks for: checked when written, and turned into the script's own words."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskhive.errors import ConfigurationError
from taskhive.options import PLAIN, UNSET, JobOptions, read_stored, spec


def words(request: str | None = None, **options: Any) -> dict[str, Any]:
    text = spec(JobOptions(**options), request)
    return json.loads(text) if text else {}


def test_nothing_asked_for_is_nothing_sent() -> None:
    assert spec(PLAIN, None) == ""
    assert PLAIN.given() == {}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"delay": 1.5}, {"delay": 1500}),
        ({"delay": 0}, {}),
        ({"delay": 0.0001}, {"delay": 1}),
        ({"delay": timedelta(seconds=2)}, {"delay": 2000}),
        ({"run_at": 0}, {"at": 0}),
        ({"run_at": 1.0001}, {"at": 1001}),
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC)}, {"at": 1893456000000}),
        ({"expires": 5}, {"lasts": 5000}),
        ({"expires": 1_893_456_000}, {"x": 1893456000000}),
        ({"expires": timedelta(days=1)}, {"lasts": 86400000}),
        ({"priority": 7}, {"p": 7}),
        ({"durable": True}, {}),
        ({"max_stalls": 2}, {"o": '{"max_stalls":2}', "m": 2}),
        ({"result_ttl": 0}, {"o": '{"result_ttl":0.0}', "y": 0}),
        ({"result_ttl": None}, {"o": '{"result_ttl":null}', "y": -1}),
        ({"failure_ttl": 2}, {"o": '{"failure_ttl":2.0}', "f": 2000}),
        ({"timeout": None}, {"o": '{"timeout":null}'}),
        ({"memory": "1KiB"}, {"o": '{"memory":1024}'}),
    ],
    ids=str,
)
def test_an_option_is_sent_in_the_scripts_words(options: dict[str, Any], sent: dict[str, Any]) -> None:
    assert words(**options) == sent


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {"ur": "keep", "ud": True, "rs": True, "uo": True}),
        ({"delay": 0}, {"ur": "set", "ud": True, "rs": True, "uo": True}),
        ({"update_data": False}, {"ur": "keep"}),
        ({"update_data": False, "reset_counts": True}, {"ur": "keep", "rs": True}),
        ({"reset_counts": False}, {"ur": "keep", "ud": True, "uo": True}),
        ({"update_options": False}, {"ur": "keep", "ud": True, "rs": True}),
        ({"update_run_at": "if_later"}, {"ur": "later", "ud": True, "rs": True, "uo": True}),
        ({"update_run_at": "if_earlier"}, {"ur": "earlier", "ud": True, "rs": True, "uo": True}),
        ({"update_run_at": True}, {"ur": "set", "ud": True, "rs": True, "uo": True}),
        ({"delay": 1, "update_run_at": False, "update_data": False}, {"ur": "keep", "delay": 1000}),
        ({"on_conflict": "join"}, {"join": True}),
        ({"unique": True}, {"join": True}),
    ],
    ids=str,
)
def test_what_a_dispatch_does_to_a_run_that_waits(options: dict[str, Any], sent: dict[str, Any]) -> None:
    assert words("n", **options) == {"q": "n", **sent}


def test_a_later_option_beats_an_earlier_one_and_the_two_times_each_other() -> None:
    first = JobOptions(delay=5, priority=1)
    second = first.but(run_at=7, priority=2)
    assert second.given() == {"run_at": 7.0, "priority": 2}
    assert second.but(delay=1).given() == {"delay": 1.0, "priority": 2}
    assert first.given() == {"delay": 5.0, "priority": 1}


def test_an_option_that_there_is_not_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="priority") as wrong:
        PLAIN.but(priorty=1)
    assert wrong.value.field == "priorty"


def test_options_can_be_copied_and_pickled() -> None:
    options = JobOptions(delay=1)
    for one in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert one == options
        assert one.id is UNSET
    assert repr(options) == "JobOptions(delay=1.0)"


@given(st.floats(0, 10**9, exclude_max=True))
def test_a_time_is_never_rounded_to_an_earlier_one(seconds: float) -> None:
    assert words(run_at=seconds).get("at", 0) >= seconds * 1000


STORED: dict[str, Any] = {
    "timeout": 1.5,
    "memory": 10,
    "max_retries": 3,
    "jitter": "none",
    "result_ttl": None,
    "strict": True,
}


def test_what_is_stored_with_a_job_is_read_back() -> None:
    assert read_stored(words(**STORED)["o"]) == STORED


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"timeout":-1}', '{"max_retries":"x"}', '{"memory":NaN}', "[" * 10**5]
)
def test_stored_options_that_cannot_be_read_are_none(text: str) -> None:
    assert read_stored(text) == {}


def test_stored_words_that_are_no_options_are_left_out() -> None:
    assert read_stored('{"id":"x","zz":1,"max_crashes":2}') == {"max_crashes": 2}
