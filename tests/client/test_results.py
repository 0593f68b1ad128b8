"""What a program that waits for a job gets: the value, or an exception that tells why there is none."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from taskhive import (
    Hive,
    JobCancelled,
    JobCrashed,
    JobFailed,
    JobTimeout,
    PermanentError,
    RemoteError,
    ResultGone,
    ResultTimeout,
)
from tests.client.handlers import OwnError


def failure(hive: Hive, queue: str, *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        hive.queue(queue).dispatch(*args).result(timeout=30)
    return caught.value


def test_a_result_is_the_value_the_handler_returned(hive: Hive) -> None:
    assert hive.queue("add").dispatch(2, b=3).result(timeout=30) == 5
    assert hive.queue("echo").dispatch().result(timeout=30) is None
    assert hive.queue("echo").dispatch({"a": [1, None]}).result(timeout=30) == {"a": [1, None]}


def test_a_result_can_be_had_again_and_by_its_id(hive: Hive) -> None:
    job = hive.queue("add").dispatch(1, 1)
    assert [job.result(timeout=30), job.result(timeout=30)] == [2, 2]
    assert hive.job("add", job.id).result(timeout=30) == 2


def test_an_exception_comes_back_with_the_place_it_was_raised_at(hive: Hive) -> None:
    error = failure(hive, "fails", "built-in")
    assert type(error) is ValueError
    assert str(error) == "bad number 3"
    assert error.__notes__ == ["seen in a test"]
    assert repr(error.__cause__) == "KeyError('missing')"
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["fails", "inner"]
    assert frames[-1].filename.endswith("handlers.py")
    assert frames[-1].line == "raise made from error"
    assert not [frame for frame in frames if frame.filename.endswith("child.py")]


def test_a_class_of_the_users_own_comes_back_where_it_is_registered(hive: Hive) -> None:
    error = failure(hive, "fails", "own")
    assert isinstance(error, RemoteError)
    assert error.type_name == "handlers.OwnError"
    assert error.text == "code 7"

    class Same(OwnError):
        pass

    Same.__module__, Same.__qualname__ = "handlers", "OwnError"  # as the worker calls it
    assert hive.register_exception(Same) is Same
    again = failure(hive, "fails", "own")
    assert isinstance(again, Same)
    assert again.code == 7


def test_groups_and_permanent_errors_come_back_as_they_were(hive: Hive) -> None:
    error = failure(hive, "fails", "group")
    assert isinstance(error, ExceptionGroup)
    assert [repr(one) for one in error.exceptions] == ["ValueError('a')", "KeyError('b')"]
    assert isinstance(failure(hive, "fails", "permanent"), PermanentError)
    assert isinstance(failure(hive, "fails", "not-json"), TypeError)


def test_a_kill_for_time_is_told_with_its_black_box(hive: Hive) -> None:
    error = failure(hive, "hangs")
    assert isinstance(error, JobTimeout)
    assert isinstance(error, JobFailed)
    assert (error.kind, error.queue) == ("timeout", "hangs")
    assert error.black_box is not None
    assert error.black_box["verdict"] == "timeout"
    assert "in hangs" in error.black_box["stack"]


def test_a_crash_is_told_with_its_last_words(hive: Hive) -> None:
    error = failure(hive, "crashes")
    assert isinstance(error, JobCrashed)
    assert error.kind == "crash"
    assert error.black_box is not None
    assert error.black_box["exit_code"] == 3
    assert error.black_box["output"] == ["last words"]


def test_a_cancelled_job_raises_that(idle: Hive) -> None:
    job = idle.queue("q").dispatch()
    assert job.cancel()
    with pytest.raises(JobCancelled, match="it was cancelled"):
        job.result(timeout=30)


def test_waiting_too_long_is_a_timeout_and_the_job_goes_on(idle: Hive) -> None:
    job = idle.queue("q").dispatch()
    for timeout in (0, 0.05):
        with pytest.raises(ResultTimeout) as caught:
            job.result(timeout=timeout)
        assert isinstance(caught.value, TimeoutError)
    assert job.state() == "ready"


def test_a_result_whose_time_has_passed_is_gone_not_pending(hive: Hive, idle: Hive) -> None:
    job = hive.queue("add").options(result_ttl=0).dispatch(1)
    with pytest.raises(ResultGone, match="time to live"):
        job.result(timeout=30)
    with pytest.raises(ResultGone):
        idle.job("q", "never").result(timeout=30)


def test_a_deleted_or_destroyed_job_is_gone_for_who_waits(idle: Hive) -> None:
    job = idle.queue("q").dispatch()
    idle.queue("q").destroy()
    with pytest.raises(ResultGone):
        job.result(timeout=30)


def test_a_handler_cannot_wait_for_a_job(hive: Hive) -> None:
    assert hive.queue("waits").dispatch().result(timeout=30) == "refused"
