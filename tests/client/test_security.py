"""Signatures through a real worker, and what somebody who can write to the server achieves."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskhive import Hive, RemoteError, TaskHiveError
from taskhive.codec import BadPayload
from taskhive.ids import new_id
from taskhive.parcels import Item
from taskhive.signing import BadSignature, KeyRing
from tests.client.conftest import PREFIX, SECRET
from tests.servers import Server
from tests.workers import Worker, working


class Bomb(Exception):
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "canary"
    yield path
    assert not path.exists()


def forge(hive: Hive, queue: str, payload: bytes, spec: bytes = b"") -> str:
    """A job as somebody writes it who has the server, but not the secret."""
    item = Item(new_id(), payload, spec)
    hive._run(hive._core.commands.dispatch(queue, [item]))
    return item.id


def test_pickles_travel_to_a_handler_that_takes_them_and_back(hive: Hive) -> None:
    job = hive.queue("doubled").options(codec="pickle").dispatch({1, 2})
    assert job.result(timeout=30) == {2, 4}
    assert job.info().sealed
    assert not job.info().corrupt


def test_the_exception_object_itself_comes_back_signed(hive: Hive) -> None:
    job = hive.queue("doubled").options(codec="pickle").dispatch(set())
    with pytest.raises(Exception, match="code 9") as caught:
        job.result(timeout=30)
    assert caught.traceback[-1].name == "doubled"
    if not isinstance(caught.value, RemoteError):  # where this process can import its class
        assert caught.value.code == 9  # type: ignore[attr-defined]


def test_a_failure_handler_is_given_the_arguments_as_they_were_signed(hive: Hive) -> None:
    failing = hive.queue("doubled").options(codec="pickle").dispatch(set())
    with pytest.raises(Exception, match="code 9"):
        failing.result(timeout=30)
    lease = None
    while lease is None or lease.id != f"failed-{failing.id}":
        lease = hive.queue("marks").lease(wait=30)
        assert lease is not None
        lease.ack()
    assert lease.args == ([], "OwnError")


def variants(bomb: bytes) -> list[bytes]:
    """Pickles dressed up as everything a payload or a result can be."""
    stranger = KeyRing(["a secret of somebody else, long enough"])
    heads = [b"", b"p", b"p1", b"p0", b"p1" + b"\0" * 48, b"j", b"k", b"r", b"P", b"\x80", b"\0"]
    dressed = [head + bomb for head in heads]
    dressed += [stranger.seal(purpose, "doubled", "x", bomb) for purpose in ("call", "result")]
    text = base64.b64encode(bomb).decode()
    for value in (
        {"py/object": "os.system"},
        {"__reduce__": ["os.system", [text]]},
        {"pickle": text},
        ["os.system", "true"],
        "builtins.eval",
        "../../etc/passwd",
        "__class__",
    ):
        dressed += [b"j" + json.dumps([value]).encode(), b"k" + json.dumps([[], {"x": value}]).encode()]
    return dressed


def test_forged_pickles_are_never_read_by_a_worker(hive: Hive, canary: Path) -> None:
    bomb = pickle.dumps(Bomb(canary))
    ids = []
    for payload in variants(bomb):
        ids += [(queue, forge(hive, queue, payload)) for queue in ("doubled", "calls")]
        ids.append(("echo", forge(hive, "echo", payload)))
    assert len(ids) >= 50
    for queue, job_id in ids:
        with pytest.raises(BadSignature):
            hive.job(queue, job_id).result(timeout=30)


def test_data_that_nobody_signed_is_given_to_no_handler(hive: Hive, place: Server) -> None:
    with Hive(place.url, prefix=PREFIX, secret="a secret of somebody else, long enough") as stranger:
        for program in (stranger, Hive(place.url, prefix=PREFIX)):
            job = program.queue("marked").dispatch("forged")
            with pytest.raises(BadSignature):
                hive.job("marked", job.id).result(timeout=30)
            assert job.info().state == "failed"
            with pytest.raises(BadSignature):
                program.queue("marked").options(codec="raw").dispatch(b"forged").result(timeout=30)
    hive.queue("marked").dispatch("signed").result(timeout=30)
    lease = hive.queue("words").lease(wait=30)
    assert lease is not None
    lease.ack()
    assert lease.args == ("signed",)  # it was the first


def test_signed_data_of_another_queue_or_job_is_refused(hive: Hive) -> None:
    good = hive.queue("echo").bind(1)._bound().item
    for queue, job_id in (("add", good.id), ("echo", new_id())):
        hive._run(hive._core.commands.dispatch(queue, [Item(job_id, good.payload, b"")]))
        with pytest.raises(BadSignature):
            hive.job(queue, job_id).result(timeout=30)


def test_a_lease_by_hand_brings_no_forged_job_and_takes_no_forged_result(
    idle: Hive, place: Server
) -> None:
    with Hive(place.url, prefix=idle.prefix, secret=SECRET) as hive:
        q = hive.queue("q")
        forged = [
            idle.queue("q").dispatch("forged"),
            idle.queue("q").options(codec="raw").dispatch(b"f"),
        ]
        good = q.options(max_retries=0).dispatch("good")
        lease = q.lease(wait=30)
        assert lease is not None
        assert lease.args == ("good",)
        assert [job.info().state for job in forged] == ["failed", "failed"]
        assert "not signed" in str(forged[0].info().error)
        lease.fail("no")
        failure = hive.queue("q:fail").lease(wait=30)  # it has the call as it was signed for the first
        assert failure is not None
        assert failure.args == ("good",)
        failure.ack()
        with pytest.raises(TaskHiveError):
            good.result(timeout=30)
        for result in (None, 5, b"bytes"):
            job = q.dispatch()
            lease = q.lease(wait=30)
            assert lease is not None
            lease.ack(result)
            assert job.result(timeout=30) == result
            assert idle.job("q", job.id).result(timeout=30) == result  # without a secret: as it stands
            unsigned = idle.queue("q").dispatch()
            with idle.queue("q").lease(wait=30) as other:  # type: ignore[union-attr]
                other.ack(result)
            with pytest.raises(BadSignature):
                hive.job("q", unsigned.id).result(timeout=30)


def test_a_secret_is_introduced_and_changed_with_jobs_under_way(
    place: Server, prefix: str, tmp_path: Path
) -> None:
    old, new = "the-old-secret-of-this-very-test-alone", "the-new-secret-of-this-very-test-alone"
    handlers = tmp_path / "twice.py"
    handlers.write_text(
        "from taskhive import Hive\nhive = Hive()\n@hive.handler\ndef twice(n): return 2 * n\n"
    )
    steps = [
        (None, f"{old} accept-unsigned"),
        (f"{old} accept-unsigned", f"{old}"),
        (f"{old}", f"{old} {new}"),
        (f"{old} {new}", f"{new} {old}"),
        (f"{new} {old}", f"{new}"),
    ]
    for number, (before, after) in enumerate(steps):
        # Programs are deployed one after the other: either is met by a worker of before and of after.
        programs = [
            Hive(place.url, prefix=prefix, secret=words and words.split()) for words in (before, after)
        ]
        for words in (before, after):
            jobs = [program.queue("twice").dispatch(3) for program in programs]
            environment = {} if words is None else {"TASKHIVE_SECRET": words}
            log = tmp_path / f"{number}.log"
            with working(place.url, prefix, log, str(handlers), environment=environment):
                assert [job.result(timeout=30) for job in jobs] == [6, 6], (before, after, words)
        for program in programs:
            program.close()


def test_a_signed_call_of_another_queue_or_job_is_refused(hive: Hive, canary: Path) -> None:
    ring = KeyRing([SECRET])
    body = pickle.dumps((({1},), {}))
    for place in (("doubled", "another-job"), ("other-queue", None)):
        job_id = new_id()
        payload = ring.seal("call", place[0], place[1] or job_id, body)
        hive._run(hive._core.commands.dispatch("doubled", [Item(job_id, payload, b"")]))
        with pytest.raises(BadSignature):
            hive.job("doubled", job_id).result(timeout=30)


def test_forged_results_and_errors_are_never_read_by_a_producer(idle: Hive, canary: Path) -> None:
    bomb = pickle.dumps(Bomb(canary))
    q = idle.queue("q")
    idle._core._secret = KeyRing([SECRET])
    for result in variants(bomb):
        job = q.dispatch()
        lease = q.lease(wait=30)
        assert lease is not None
        settle = lease._core.acked("q", lease._job, None)
        body = {"id": settle.id, "token": settle.token, "outcome": "done", "body": result}
        lease._settle(type(settle)(**body))  # type: ignore[arg-type]
        try:
            value = job.result(timeout=30)
        except BadPayload:
            continue
        assert result[:1] in b"jr"
        assert value is None or isinstance(value, (bytes, str, list, dict))
    text = base64.b64encode(bomb).decode()
    records: list[Any] = [
        {"type": "x", "message": "y", "exception": {"class": "builtins.ValueError", "pickle": text}},
        {"type": "os.system", "message": f"mkdir {canary}", "exception": {"class": "os.system"}},
        {"type": "x", "message": "y", "exception": {"class": f"{__name__}.Bomb", "args": [str(canary)]}},
        {"type": "x", "message": "y", "exception": [text]},
        [text],
        text,
    ]
    for record in records:
        job = q.dispatch()
        lease = q.lease(wait=30)
        assert lease is not None
        settle = lease._core.failed(lease._job, "x", True, None)
        body = {"id": settle.id, "token": settle.token, "outcome": "fail", "kind": "permanent"}
        lease._settle(type(settle)(**body, body=json.dumps(record).encode()))  # type: ignore[arg-type]
        with pytest.raises((RemoteError, ValueError)):
            job.result(timeout=30)


def test_names_that_mean_something_to_python_mean_nothing_here(hive: Hive, worker: Worker) -> None:
    for name in ("os.system", "builtins.eval", "__import__", "taskhive.called"):
        job = hive.queue(name).dispatch("true")
        assert job.state() == "ready"  # no handler: nobody takes it
        hive.queue(name).options(id=name).dispatch(name)
        hive.queue(name).destroy()
    for name in ("../../x", "a/b", "{x}"):
        with pytest.raises(TaskHiveError):
            hive.queue(name)
    assert hive.queue("echo").options(id="os.system").dispatch("rm -rf").result(timeout=30) == "rm -rf"
    assert worker.process.poll() is None


def test_the_secret_is_nowhere_a_handler_a_log_or_the_server_shows_it(
    hive: Hive, worker: Worker, place: Server
) -> None:
    hive.queue("doubled").options(codec="pickle").dispatch({1}).result(timeout=30)
    assert SECRET not in hive.queue("surroundings").dispatch().result(timeout=30)
    assert SECRET not in worker.said()
    with place.client() as client:
        kept = [client.dump(key) or b"" for key in client.scan_iter(f"{PREFIX}:*")]
    assert kept
    assert not [dump for dump in kept if SECRET.encode() in dump]


def test_a_worker_of_pickles_without_a_secret_does_not_start(place: Server, tmp_path: Path) -> None:
    handlers = tmp_path / "no_secret.py"
    handlers.write_text("from taskhive import Hive\nhive = Hive()\nhive.accept_calls()\n")
    with (
        pytest.raises(AssertionError, match="TASKHIVE_SECRET"),
        working(place.url, PREFIX, tmp_path / "log", str(handlers)),
    ):
        pass
