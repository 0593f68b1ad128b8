"""How far an attempt says it is: brought by the renewal of its lease, and no longer kept than that."""

from __future__ import annotations

import pytest

from taskhive import Hive
from taskhive.errors import ServerRefused
from taskhive.jobs import Progress
from taskhive.parcels import Renewal, Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import dump, exchange, take


def progress(hive: Hive, id: str, generation: int | None = None) -> Progress | None:
    return hive._run(hive._core.commands.progress("q", id, generation))


def report(hive: Hive, id: str, token: str, words: bytes) -> int:
    (answer,) = exchange(hive, "q", renewals=[Renewal(id, token, True, words)]).renewed
    return answer


def test_what_a_renewal_brings_is_seen_until_the_next(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    assert progress(hive, job.id) is None
    lease = take(hive.queue("q"))
    assert progress(hive, job.id) is None
    assert report(hive, job.id, lease.token, b'{"done": 1, "total": 4, "note": "half"}') == 1
    assert progress(hive, job.id, 0) == Progress(1, 4, "half")
    report(hive, job.id, lease.token, b"")
    assert progress(hive, job.id) == Progress(1, 4, "half")
    report(hive, job.id, lease.token, b'{"done": 2.5, "total": null}')
    assert progress(hive, job.id) == Progress(2.5)


@pytest.mark.parametrize("end", ["done", "fail", "cancelled"])
def test_the_last_one_is_kept_with_the_ended_record(hive: Hive, end: str) -> None:
    job = hive.queue("q").dispatch(1)
    lease = take(hive.queue("q"))
    report(hive, job.id, lease.token, b'{"done": 3}')
    exchange(hive, "q", settles=[Settle(job.id, lease.token, end)])
    assert progress(hive, job.id) == Progress(3)


@pytest.mark.parametrize("stalls", [0, 1])
def test_that_of_an_attempt_that_was_lost_stays_only_if_it_was_the_last(
    hive: Hive, clock: Clock, stalls: int
) -> None:
    q = hive.queue("q")
    job = q.options(max_stalls=stalls).dispatch(1)
    report(hive, job.id, take(q).token, b'{"done": 3}')
    clock.run(q, seconds=31)
    assert q.sweep() == [job.id]
    assert progress(hive, job.id) == (None if stalls else Progress(3))


@pytest.mark.parametrize("back", ["again", "release"])
def test_a_job_that_is_put_back_begins_anew(hive: Hive, back: str) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    lease = take(q)
    report(hive, job.id, lease.token, b'{"done": 3}')
    exchange(hive, "q", settles=[Settle(job.id, lease.token, back, "error")])
    assert progress(hive, job.id) is None
    take(q).ack()
    assert progress(hive, job.id) is None


def test_a_lease_that_is_not_ours_reports_nothing(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    take(hive.queue("q"))
    assert report(hive, job.id, "1.other", b'{"done": 9}') == 0
    assert progress(hive, job.id) is None


def test_a_cancelled_attempt_may_still_report(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    lease = take(hive.queue("q"))
    report(hive, job.id, lease.token, b'{"done": 1}')
    job.cancel()
    assert progress(hive, job.id) == Progress(1)
    assert report(hive, job.id, lease.token, b'{"done": 2}') == 2
    assert progress(hive, job.id) == Progress(2)


def test_one_that_is_too_large_is_refused_before_anything_is_written(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    jobs = q.dispatch_many([1, 2])
    first, second = take(q), take(q)
    with server.client() as client:
        before = dump(client, hive.prefix)
        with pytest.raises(ServerRefused, match="4096 bytes"):
            exchange(
                hive,
                "q",
                settles=[Settle(jobs[0].id, first.token, "done")],
                renewals=[Renewal(jobs[1].id, second.token, True, b"x" * 4097)],
            )
        assert dump(client, hive.prefix) == before
    assert report(hive, jobs[1].id, second.token, b'{"done": 1, "note": "%b"}' % (b"x" * 4000)) == 1


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (b"no JSON", None),
        (b"[1]", None),
        (b'{"done": "1"}', None),
        (b'{"done": true}', None),
        (b'{"done": NaN}', None),
        (b'{"done": 1e999}', None),
        (b'{"done": ' + b"9" * 4000 + b"}", None),
        (b"[" * 4000, None),
        (b"\xff\xfe", None),
        (b'{"done": 1, "total": {}, "note": [1, {"a": null}]}', Progress(1, None, [1, {"a": None}])),
    ],
)
def test_whatever_stands_there_is_read_or_passed_over(
    hive: Hive, words: bytes, read: Progress | None
) -> None:
    job = hive.queue("q").dispatch(1)
    assert report(hive, job.id, take(hive.queue("q")).token, words) == 1
    assert progress(hive, job.id) == read
    assert job.state() == "active"
