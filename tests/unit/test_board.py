"""Which records a listener reads, and when: no end is missed, and nothing is read in vain."""

from __future__ import annotations

import pytest

from taskhive.board import Board, Watch
from taskhive.jobs import Fetched, Standing


def watch(job_id: str, unsent: bool = False) -> Watch:
    return Watch("q", job_id, None, lambda *told: None, unsent=unsent)


def confirmed() -> Board:
    board = Board(str.encode)
    board.watch([watch("first")])
    confirm(board)
    assert board.due() == [("q", [("first", None)])]
    return board


def confirm(board: Board) -> None:
    assert board.wanted() == [b"q"]
    board.heard([b"subscribe", b"q", 1])


def test_a_job_that_was_there_already_is_read_behind_the_subscription() -> None:
    board = confirmed()
    board.watch([watch("a")])
    assert board.due() == [("q", [("a", None)])]
    assert board.due() == []


def test_a_job_that_is_sent_later_is_read_when_it_is_told_of_and_not_before() -> None:
    board = confirmed()
    one = watch("a", unsent=True)
    board.watch([one])
    assert not board.has_work()
    board.sent([one])
    assert board.due() == []
    board.heard([b"message", b"q", b"x a"])
    assert board.due() == [("q", [("a", None)])]


def test_an_end_that_is_told_before_the_dispatch_is_answered_is_not_lost() -> None:
    board = confirmed()
    one = watch("a", unsent=True)
    board.watch([one])
    board.heard([b"message", b"q", b"a"])
    runs = board.due()[0][1]
    board.sent([one])
    end = Fetched("a", Standing.ENDED)
    assert board.found("q", runs, [end]) == [(one, end)]


@pytest.mark.parametrize("what", ["a new subscription", "the first subscription", "all may have ended"])
def test_a_job_is_read_once_it_is_sent_if_its_end_may_have_been_missed(what: str) -> None:
    board = Board(str.encode) if what == "the first subscription" else confirmed()
    one = watch("a", unsent=True)
    board.watch([one])
    if what == "all may have ended":
        board.heard([b"message", b"q", b"*"])
    else:
        board.lost()
        confirm(board)
    # What is not sent has no record, and would be taken for a job that is gone.
    assert ("a", None) not in [run for _, runs in board.due() for run in runs]
    board.sent([one])
    assert board.due() == [("q", [("a", None)])]
