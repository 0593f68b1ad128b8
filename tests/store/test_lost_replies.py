"""A network that loses requests and replies: everything is sent again, nothing happens twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskhive import Hive, LeaseLost, RedisUnavailable
from taskhive.broker import Broker
from tests.proxy import Fault, Proxy, proxied
from tests.servers import Server, until
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import key, take

BREAKS = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.RESET]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server.socket) as made:
        yield made


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[Hive]:
    """A hive behind the proxy, connected and known to the server."""
    with Hive(proxy.url, prefix=prefix) as hive:
        hive.queue("q").pause()
        hive.queue("q").resume()
        yield hive


def impatient(hive: Hive, io_timeout: float) -> Hive:
    """The same hive, for which a connection is dead after a shorter silence."""
    core = hive._core
    hive._broker = Broker(core.target, core.directory, io_timeout)
    return hive


@pytest.mark.parametrize("fault", [*BREAKS, Fault.MIX_REPLY], ids=lambda fault: fault.name.lower())
def test_whatever_happens_to_a_request_it_takes_effect_once(
    far: Hive, proxy: Proxy, fault: Fault
) -> None:
    q = far.queue("q")
    proxy.plan.append(fault)
    job = q.dispatch("plain")
    proxy.plan.append(fault)
    named = q.options(id="named").dispatch(1)
    proxy.plan.append(fault)
    q.dispatch_many(range(10))
    assert job.created
    assert named.created
    assert (q.stats().created, q.stats().ready) == (12, 12)

    proxy.plan.append(fault)
    lease = q.lease(visibility=60)
    assert lease is not None
    assert lease.id == job.id
    assert q.stats().active == 1  # the reply that was lost had a job in it: the same one came again
    proxy.plan.append(fault)
    lease.extend(30)
    proxy.plan.append(fault)
    lease.ack({"n": 1})  # told apart from a second ack: no LeaseLost
    assert job.info().result == {"n": 1}

    lease = q.lease()
    assert lease is not None
    proxy.plan.append(fault)
    lease.fail("again")
    proxy.plan.append(fault)
    q.cancel("named")
    assert named.state() == "cancelled"
    stats = q.stats()
    assert (stats.succeeded, stats.cancelled, stats.failed) == (1, 1, 0)
    assert stats.ready + stats.delayed == 10
    assert proxy.happened[fault] == 8


OPERATIONS: dict[str, tuple[Callable[[Hive], object], object]] = {
    "cancel": (lambda hive: hive.queue("q").cancel("waits"), True),
    "cancel what runs": (lambda hive: hive.queue("q").cancel("runs"), True),
    "remove": (lambda hive: hive.job("q", "waits").delete(), True),
    "remove what ended": (lambda hive: hive.job("q", "dead").delete(), True),
    "revive": (lambda hive: hive.queue("q").dead.retry("dead"), True),
    "purge": (lambda hive: hive.queue("q").purge("ready"), 3),
    "destroy": (lambda hive: hive.queue("q").destroy(), 4),
    "cancel nothing": (lambda hive: hive.queue("q").cancel("nobody"), False),
    "purge nothing": (lambda hive: hive.queue("q").purge("delayed"), 0),
}
"""What an operator asks of the queue below, and what is answered."""


def stand(hive: Hive) -> None:
    """One job that is dead, one that runs, three that wait."""
    q = hive.queue("q")
    q.options(id="dead").dispatch(1)
    take(q).fail("why", permanent=True)
    q.options(id="runs").dispatch(1)
    take(q, visibility=60)
    q.dispatch_many([1, 2])
    q.options(id="waits").dispatch(3)


@pytest.mark.parametrize("fault", [*BREAKS, Fault.MIX_REPLY], ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operator_whose_reply_is_lost_is_told_what_was_done(
    far: Hive, proxy: Proxy, name: str, fault: Fault
) -> None:
    ask, answer = OPERATIONS[name]
    ask(far)  # so that the server knows its script: the reply that is lost is not that it does not
    stand(far)
    proxy.plan.append(fault)
    assert ask(far) == answer
    assert proxy.happened[fault] == 1


def sent_twice(server: Server, hive: Hive, ask: Callable[[Hive], object]) -> object:
    """What `ask` is told whose first reply is lost, with a new job `waits` before it is sent again."""
    sendings = 0

    def lose_the_first() -> Fault | None:
        nonlocal sendings
        sendings += 1
        if sendings == 1:
            return Fault.LOSE_REPLY
        hive.queue("q").options(id="waits", update_data=True).dispatch("new")
        return None

    ask(hive)  # so that the server knows its script
    stand(hive)
    with proxied(server.socket) as proxy, Hive(proxy.url, prefix=hive.prefix) as far:
        far.queue("q").pause()
        far.queue("q").resume()
        proxy.choose = lose_the_first
        told = ask(far)
    assert sendings == 2
    return told


@pytest.mark.parametrize("name", ["cancel", "remove", "purge"])
def test_an_operators_call_that_comes_again_spares_what_was_dispatched_meanwhile(
    server: Server, hive: Hive, name: str
) -> None:
    ask, answer = OPERATIONS[name]
    assert sent_twice(server, hive, ask) == answer
    info = hive.job("q", "waits").info()
    assert (info.state, info.args) == ("ready", ("new",))


def test_a_pause_that_comes_again_holds_nobody_back_who_was_resumed(
    server: Server, hive: Hive, far: Hive, proxy: Proxy
) -> None:
    faults = iter([Fault.LOSE_REPLY])

    def resume_in_between() -> Fault | None:
        fault = next(faults, None)
        if fault is None:
            hive.queue("q").resume()
        return fault

    proxy.choose = resume_in_between
    far.queue("q").pause()
    assert not hive.queue("q").stats().paused


def test_a_destroy_that_comes_again_spares_what_was_dispatched_meanwhile(
    server: Server, hive: Hive
) -> None:
    assert sent_twice(server, hive, lambda far: far.queue("q").destroy()) == 4
    assert hive.job("q", "waits").state() == "ready"
    assert hive.queues() == ["q"]


def test_the_answers_that_are_kept_go_by_themselves(hive: Hive, server: Server, clock: Clock) -> None:
    q = hive.queue("q")
    for number in range(100):
        q.options(id=f"j{number}", result_ttl=0).dispatch(1)
        assert q.cancel(f"j{number}")
        assert not q.cancel(f"j{number}")  # it found nothing, and is not kept
    with server.client() as client:
        kept = [one for n in range(3) for one in client.hkeys(key(hive, "q", f"memory{n}"))]
        assert sum(one.startswith(b"=") for one in kept) == 100
        for _ in range(3):
            clock.jump(30)
            q.dispatch(1)
            q.cancel(q.jobs("ready")[0].id)
        kept = [one for n in range(3) for one in client.hkeys(key(hive, "q", f"memory{n}"))]
        assert sum(one.startswith(b"=") for one in kept) == 3
        q.destroy()
        assert 0 < client.pttl(key(hive, "q", "destroyed")) <= 60_000


def test_a_reply_that_does_not_come_is_asked_for_again_on_a_new_connection(
    far: Hive, proxy: Proxy
) -> None:
    q = impatient(far, 0.3).queue("q")
    proxy.plan.append(Fault.HOLD_REPLY)
    job = q.options(id="slow").dispatch(1)
    assert proxy.requests == 4  # two while connecting, this one twice
    proxy.let_go.set()  # the late reply meets nobody
    assert (job.state(), q.stats().created) == ("ready", 1)


def test_the_reply_of_another_request_is_never_taken(far: Hive, proxy: Proxy) -> None:
    q = far.queue("q")
    first = q.dispatch("first")
    assert (first.state(), q.stats().ready) == ("ready", 1)
    for _ in range(3):
        proxy.plan.append(Fault.MIX_REPLY)
        assert first.info().args == ("first",)
        proxy.plan.append(Fault.MIX_REPLY)
        assert q.stats().ready == 1


def test_a_resend_is_known_even_when_the_job_has_ended_meanwhile(
    far: Hive, proxy: Proxy, hive: Hive
) -> None:
    """The producer's reply is held back; a consumer takes the job and finishes it."""
    q = impatient(far, 0.5).queue("q")
    proxy.plan.append(Fault.HOLD_REPLY)
    done = threading.Event()

    def consume() -> None:
        lease = hive.queue("q").lease(wait=20)
        assert lease is not None
        lease.ack()
        done.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    q.options(id="once").dispatch(1)
    consumer.join(30)
    assert done.is_set()
    assert hive.queue("q").lease() is None
    assert hive.queue("q").stats().created == 1


def test_a_settle_whose_replies_are_all_lost_ends_with_an_error_that_may_be_repeated(
    far: Hive, proxy: Proxy, prefix: str
) -> None:
    far.queue("q").dispatch(1)
    with Hive(proxy.url, prefix=prefix, connect_timeout=0.2) as hasty:
        lease = hasty.queue("q").lease(visibility=60)
        assert lease is not None
        proxy.choose = lambda: Fault.LOSE_REPLY
        with pytest.raises(RedisUnavailable, match=r"did not answer within 0\.2 s"):
            lease.ack("kept")
        proxy.choose = lambda: None
        lease.ack("kept")
    assert far.job("q", lease.id).info().result == "kept"


def test_a_network_that_loses_a_third_of_everything_loses_no_job_and_runs_none_twice(
    far: Hive, proxy: Proxy, prefix: str
) -> None:
    rng = random.Random(7)
    jobs, crew = 120, 4
    taken: Counter[str] = Counter()
    sent: list[str] = []
    lost: list[str] = []

    def any_fault() -> Fault | None:
        return rng.choice([*BREAKS, Fault.MIX_REPLY]) if rng.random() < 0.33 else None

    def produce(number: int) -> None:
        for n in range(jobs // crew):
            q = far.queue("q")
            sent.append(q.options(id=f"{number}.{n}").dispatch(n).id if n % 2 else q.dispatch(n).id)

    def consume() -> None:
        while sum(taken.values()) < jobs:
            lease = far.queue("q").lease(visibility=60, wait=0.5)
            if lease is None:
                continue
            taken[lease.id] += 1
            try:
                lease.ack()
            except LeaseLost as error:
                lost.append(error.job_id)

    proxy.choose = any_fault
    work: list[tuple[Callable[..., None], tuple[int, ...]]] = [(produce, (n,)) for n in range(crew)]
    threads = [threading.Thread(target=f, args=a) for f, a in [*work, (consume, ()), (consume, ())]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    proxy.choose = lambda: None
    assert not lost
    assert sorted(taken.elements()) == sorted(sent)
    stats = far.queue("q").stats()
    assert (stats.created, stats.succeeded) == (jobs, jobs)
    assert stats.ready + stats.delayed + stats.active + stats.blocked == 0
    assert min(proxy.happened[fault] for fault in [*BREAKS, Fault.MIX_REPLY]) >= 8


def test_whoever_waits_for_a_job_survives_the_loss_of_its_ear(
    server: Server, proxy: Proxy, far: Hive, hive: Hive
) -> None:
    """The connection that listens is cut; the waiter listens on a new one and hears the next bell."""
    got: list[object] = []
    admin = server.client()

    def listeners() -> int:
        return sum(1 for one in admin.client_list() if one["sub"] == "1" and one["cmd"] == "subscribe")

    waiter = threading.Thread(target=lambda: got.append(far.queue("q").lease(wait=30)))
    waiter.start()
    until(lambda: listeners() >= 1, "it listens")
    before = {one["id"] for one in admin.client_list()}
    admin.client_kill_filter(_type="pubsub")
    until(
        lambda: any(one["sub"] == "1" and one["id"] not in before for one in admin.client_list()),
        "it listens again",
    )
    job = hive.queue("q").dispatch(1)
    waiter.join(20)
    admin.close()
    assert [getattr(lease, "id", None) for lease in got] == [job.id]


def test_the_proxy_fails_as_it_is_told(server: Server) -> None:
    """Otherwise the tests above would prove nothing."""
    with proxied(Path(server.socket)) as proxy:
        port = int(proxy.url.rsplit(":", 1)[1].split("/")[0])
        for fault, ran in ((Fault.LOSE_REQUEST, 0), (Fault.LOSE_REPLY, 1), (Fault.RESET, None)):
            admin = server.client()
            admin.delete("told")
            plain = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
            plain.ping()
            proxy.plan.append(fault)
            with pytest.raises(redis.ConnectionError):
                plain.eval("return redis.call('INCR', KEYS[1])", 1, "told")
            if ran is not None:
                assert int(admin.get("told") or 0) == ran
            admin.delete("told")
            plain.close()
            admin.close()
