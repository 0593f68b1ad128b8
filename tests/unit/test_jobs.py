"""What is known of jobs, on its way to a handler: by pickle, and as frozen as before."""

from __future__ import annotations

import pickle

import pytest

from taskhive import JobInfo, JobState
from taskhive.jobs import ErrorInfo, Page, when


def test_a_record_is_the_same_behind_a_pickle_and_still_read_only() -> None:
    sent = JobInfo(
        "x",
        "q",
        JobState.FAILED,
        (1, [2]),
        {"a": 1},
        when(1000),
        error=ErrorInfo("error", "E", "why"),
        options={"timeout": 5},
    )
    got = pickle.loads(pickle.dumps(sent))
    assert got == sent
    assert (got.kwargs["a"], got.options["timeout"]) == (1, 5)
    with pytest.raises(TypeError, match="item assignment"):
        got.kwargs["a"] = 2
    page = pickle.loads(pickle.dumps(Page((sent,), "5/x")))
    assert page[0] == sent
