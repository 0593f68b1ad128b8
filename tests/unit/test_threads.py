"""Threads of numeric libraries, by the share of an attempt."""

from __future__ import annotations

import sys

import numpy  # noqa: F401 -- so that there is a library with threads
import pytest
import threadpoolctl

from taskhive.threads import Threads


def threads() -> set[int]:
    return {one["num_threads"] for one in threadpoolctl.threadpool_info()}


def test_an_attempt_has_as_many_threads_as_cores() -> None:
    with threadpoolctl.threadpool_limits(1):
        mine = Threads(most=4)
        assert mine.grant(3) == 3
        assert threads() == {3}
        assert mine.grant(2.5) == 2
        assert threads() == {2}
        assert mine.grant(0.25) == 1
        assert threads() == {1}


def test_no_attempt_has_more_threads_than_the_machine_has_cores() -> None:
    with threadpoolctl.threadpool_limits(1):
        assert Threads(most=2).grant(16) == 2


def test_without_the_library_every_attempt_keeps_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert Threads(most=4).grant(4) == 1
