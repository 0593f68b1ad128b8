"""The store as its users see it, through the blocking and the asyncio client alike."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import taskhive
from taskhive import (
    AsyncHive,
    ConfigurationError,
    Hive,
    JobActive,
    LeaseLost,
    LockLost,
    NotDurable,
    NotEncodable,
    PartialDispatch,
    PayloadTooLarge,
    QueueFull,
    aio,
)
from taskhive import hive as blocking
from taskhive.locks import AsyncLock, Lock
from tests.faces import Face, Loop
from tests.servers import Server, until

Make = Callable[..., Any]


@pytest.fixture(params=["Hive", "AsyncHive"])
def make(request: pytest.FixtureRequest, server: Server, prefix: str) -> Iterator[Make]:
    """Makes clients of one kind, all on the same keys."""
    loop = Loop() if request.param == "AsyncHive" else None
    made: list[Any] = []

    def one(**settings: Any) -> Any:
        where = {"url": server.url, "prefix": prefix, **settings}
        made.append(Hive(**where) if loop is None else Face(loop, AsyncHive(**where)))
        return made[-1]

    yield one
    for client in made:
        client.close()
    if loop is not None:
        loop.close()


@pytest.fixture
def h(make: Make) -> Any:
    return make()


@pytest.fixture
def q(h: Any) -> Any:
    return h.queue("q")


# The same methods


PAIRS = [
    (Hive, AsyncHive),
    (blocking.Queue, aio.AsyncQueue),
    (blocking.Job, aio.AsyncJob),
    (blocking.Lease, aio.AsyncLease),
    (blocking.BoundCall, aio.AsyncBoundCall),
    (blocking.DeadLetters, aio.AsyncDeadLetters),
    (Lock, AsyncLock),
]


def methods(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_clients_have_the_same_methods_with_the_same_parameters(pair: tuple[type, type]) -> None:
    plain, awaited = map(methods, pair)
    assert plain.keys() == awaited.keys()
    for name, method in plain.items():
        if not callable(method):
            assert type(method) is type(awaited[name]), name
            continue
        one, other = inspect.signature(method), inspect.signature(awaited[name])
        assert list(one.parameters) == list(other.parameters), name
        assert [(p.kind, p.default) for p in one.parameters.values()] == [
            (p.kind, p.default) for p in other.parameters.values()
        ], name


def test_every_class_that_hands_out_jobs_is_compared() -> None:
    named = {kind.__name__ for pair in PAIRS for kind in pair}
    for module in (blocking, aio):
        own = {
            name
            for name, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__ == module.__name__ and not name.startswith("_")
        }
        assert own - named == set()


def test_the_package_exports_what_it_says_in_order() -> None:
    names = taskhive.__all__
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert all(getattr(taskhive, name).__name__ == name for name in names)
    public = {
        name
        for name in dir(taskhive)
        if not name.startswith("_") and not inspect.ismodule(getattr(taskhive, name))
    }
    assert public - {"annotations", "TYPE_CHECKING"} == set(names)


# Dispatch


def test_a_job_is_dispatched_leased_and_acknowledged(q: Any, h: Any) -> None:
    job = q.dispatch("a.png", width=64)
    assert (job.queue, job.created, job.state(), len(job.id)) == ("q", True, "ready", 22)
    info = job.info()
    assert (info.args, dict(info.kwargs), info.attempts) == (("a.png",), {"width": 64}, 0)
    lease = q.lease(visibility=30)
    assert (lease.id, lease.args, lease.kwargs, lease.tries) == (job.id, ("a.png",), {"width": 64}, 1)
    assert job.state() == "active"
    assert job.info().token == lease.token
    lease.ack({"bytes": 3})
    assert (job.state(), job.info().result) == ("succeeded", {"bytes": 3})
    assert h.job("q", job.id).info().result == {"bytes": 3}
    assert h.queues() == ["q"]
    assert q.lease() is None


def test_many_are_dispatched_in_order_and_in_few_trips(q: Any, h: Any, server: Server) -> None:
    with server.client() as admin:
        before = admin.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        jobs = q.dispatch_many(range(2500))
        after = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after - before <= 4  # three chunks, and one that the server did not know yet
    assert len({job.id for job in jobs}) == 2500
    assert [job.args[0] for job in q.jobs("ready", limit=1000)] == list(range(1000))
    assert q.dispatch_many([]) == []


def test_calls_are_bound_first_and_dispatched_together(q: Any, h: Any) -> None:
    call = q.options(id="one").bind("a", b=2)
    assert q.stats().created == 0
    jobs = h.dispatch_many([call, h.queue("other").bind(3), call])
    assert [(job.queue, job.created) for job in jobs] == [("q", True), ("other", True), ("q", False)]
    assert not call.dispatch().created
    with pytest.raises(NotEncodable):
        q.bind(object())
    with pytest.raises(ConfigurationError, match="no bound call"):
        h.dispatch_many(["a"])


def test_a_bulk_dispatch_that_stops_midway_says_what_is_there(q: Any, h: Any) -> None:
    h.queue("full").configure(max_depth=1)
    calls = [q.bind(1), h.queue("full").bind(2), h.queue("full").bind(3), q.bind(4)]
    with pytest.raises(PartialDispatch) as told:
        h.dispatch_many(calls)
    assert len(told.value.jobs) == 2
    assert sorted(told.value.errors) == [1, 2]
    assert isinstance(told.value.errors[1], QueueFull)
    assert (q.stats().ready, h.queue("full").stats().ready) == (2, 0)
    with pytest.raises(NotEncodable, match=r"items\[1\]\['x'\]"):
        q.dispatch_many([1, {"x": {2}}])
    assert q.stats().ready == 2


def test_options_are_chained_kept_and_checked_where_they_are_written(q: Any) -> None:
    slow = q.options(timeout=600, delay=15).options(max_retries=2)
    job = slow.dispatch(1)
    assert dict(job.info().options) == {"timeout": 600.0, "max_retries": 2}
    assert job.state() == "delayed"
    assert slow.options(delay=0).dispatch(1).state() == "ready"
    with pytest.raises(ConfigurationError, match="no such option"):
        q.options(tiemout=3)
    with pytest.raises(ConfigurationError, match="run_at"):
        q.options(delay=1, run_at=5)


def test_what_is_too_large_or_not_json_is_refused_before_it_is_sent(make: Make) -> None:
    small = make(max_payload=100).queue("q")
    with pytest.raises(PayloadTooLarge):
        small.dispatch("x" * 100)
    with pytest.raises(NotEncodable, match=r"args\[0\]\['when'\]"):
        small.dispatch({"when": datetime.now(UTC)})
    assert small.stats().created == 0
    assert small.options(codec="raw").dispatch(b"\x00\xff").info().args == (b"\x00\xff",)


def test_ids_of_a_scheme_of_ones_own(make: Make) -> None:
    ids = iter(["a-1", "a-2", "a-1"])
    q = make(id_factory=lambda: next(ids)).queue("q")
    assert [q.dispatch(n).created for n in range(3)] == [True, True, False]
    assert [job.id for job in q.jobs("ready")] == ["a-1", "a-2"]


# Ids and updates


def test_an_id_that_waits_is_updated_and_one_that_runs_is_followed(q: Any, h: Any) -> None:
    first = q.options(id="u").dispatch(1)
    assert not q.options(id="u").dispatch(2).created
    lease = q.lease()
    assert lease.args == (2,)
    second = q.options(id="u").dispatch(3)
    assert (first.state(), second.state(), second.created) == ("active", "blocked", True)
    assert q.lease() is None
    assert not q.options(id="u").dispatch(4).created
    lease.ack()
    assert (first.state(), second.state(), second.info().args) == ("succeeded", "ready", (4,))
    assert h.job("q", "u").state() == "ready"


def test_each_update_flag_does_what_it_says(q: Any) -> None:
    far = q.options(id="u", delay=600, timeout=5).dispatch(1)
    assert far.info().options["timeout"] == 5
    q.options(id="u", update_data=False).dispatch(2)
    assert (far.info().args, far.info().options["timeout"]) == ((1,), 5)
    q.options(id="u", update_data=False, update_options=True, timeout=7).dispatch(2)
    assert far.info().options["timeout"] == 7
    due = far.info().run_at
    q.options(id="u", delay=10, update_run_at=False).dispatch(2)
    q.options(id="u", delay=10, update_run_at="if_later").dispatch(2)
    assert far.info().run_at == due
    q.options(id="u", delay=300, update_run_at="if_earlier").dispatch(2)
    assert far.info().run_at < due
    q.options(id="u", on_conflict="join").dispatch(9)
    assert far.info().args == (2,)
    q.options(id="u", delay=0).dispatch(3)
    assert far.state() == "ready"
    q.lease().fail("once")
    q.options(id="u", reset_counts=False).dispatch(4)
    assert (far.info().counts.retries, far.state()) == (1, "delayed")  # its backoff is kept
    q.options(id="u").dispatch(5)
    assert far.info().counts.retries == 0


def test_equal_arguments_are_one_job_while_it_waits_or_runs(q: Any) -> None:
    unique = q.options(unique=True)
    assert unique.dispatch("a", x=1, y=2).created
    assert not unique.dispatch("a", y=2, x=1).created
    assert unique.dispatch("b").created
    lease = q.lease()
    assert not unique.dispatch("a", x=1, y=2).created
    lease.ack()
    assert unique.dispatch("a", x=1, y=2).created


# Time and order


def test_a_delayed_job_starts_at_its_time_and_an_expired_one_never(q: Any) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.05)
    gone = q.options(expires=0.001).dispatch("gone")
    until(lambda: q.sweep() == [] and gone.state() == "cancelled", "it expires")
    assert gone.info().reason == "expired"
    later = q.options(run_at=soon).dispatch("later")
    lease = q.lease(wait=20)
    assert (lease.id, lease.data) == (later.id, "later")
    assert later.info().started_at >= soon.replace(microsecond=soon.microsecond // 1000 * 1000)


def test_jobs_are_taken_by_priority_and_by_arrival_within_one(q: Any) -> None:
    for priority, name in ((1, "low"), (255, "first"), (100, "a"), (255, "second"), (100, "b")):
        q.options(priority=priority).dispatch(name)
    assert [q.lease().data for _ in range(5)] == ["first", "second", "a", "b", "low"]


def test_a_full_queue_refuses_what_would_add_to_it(q: Any) -> None:
    q.configure(max_depth=2)
    q.options(id="a").dispatch(1)
    q.dispatch(2)
    with pytest.raises(QueueFull, match="its cap is 2"):
        q.dispatch(3)
    q.options(id="a").dispatch(4)
    assert (q.stats().ready, q.stats().max_depth) == (2, 2)
    q.configure(max_depth=None)
    q.dispatch(3)


def test_a_durable_dispatch_is_confirmed_or_says_that_it_was_not(q: Any, server: Server) -> None:
    with server.client() as admin:
        keeps = "valkey_version" in admin.info("server")
        admin.config_set("appendonly", "yes" if keeps else "no")
        try:
            if keeps:
                assert q.options(durable=True).dispatch(1).state() == "ready"
                assert len(q.options(durable=True).dispatch_many(range(5))) == 5
            admin.config_set("appendonly", "no")
            with pytest.raises(NotDurable, match="attach a replica") as told:
                q.options(durable=True).dispatch(2)
            assert [job.id for job in told.value.jobs] == [q.jobs("ready")[-1].id]
        finally:
            admin.config_set("appendonly", "no")


# Leases


def test_a_lease_ends_in_each_way_it_can(q: Any, h: Any) -> None:
    job = q.options(min_backoff=0, max_backoff=0, max_retries=1).dispatch("x")
    q.lease().release()
    assert (job.state(), job.info().counts.retries) == ("ready", 0)
    q.lease().release(delay=600)
    assert job.state() == "delayed"
    assert h.job("q", job.id).delete()

    job = q.options(min_backoff=0, max_backoff=0, max_retries=1).dispatch("x")
    q.lease().fail("first")
    lease = q.lease(wait=5)
    assert (lease.tries, lease.counts.retries) == (2, 1)
    lease.extend(30)
    lease.fail(ValueError("second"))
    info = job.info()
    assert (info.state, info.error.type, info.error.message) == ("failed", "ValueError", "second")
    failure = h.queue("q:fail").lease()
    assert (failure.args, h.job("q:fail", failure.id).info().failed_job) == (("x",), job.id)
    failure.ack()
    for method, args in (("ack", ()), ("extend", (5,)), ("release", ())):
        with pytest.raises(LeaseLost):
            getattr(lease, method)(*args)


def test_a_block_settles_its_lease_by_how_it_ends(q: Any) -> None:
    done, bad, own = q.dispatch_many(["done", "bad", "own"])
    with q.lease() as lease:
        assert lease.data == "done"
    with pytest.raises(ZeroDivisionError), q.lease():
        1 / 0  # noqa: B018
    with q.lease() as lease:
        lease.fail("by hand", permanent=True)
    assert [job.state() for job in (done, bad, own)] == ["succeeded", "delayed", "failed"]
    assert bad.info().error.type == "ZeroDivisionError"
    stopped = q.dispatch("stopped")
    with pytest.raises(KeyboardInterrupt), q.lease():
        raise KeyboardInterrupt
    assert (stopped.state(), stopped.info().attempts) == ("ready", 0)


def test_the_queue_has_a_length_of_leases_of_its_own(h: Any) -> None:
    q = h.queue("q", visibility=0.001)
    q.dispatch(1)
    lease = q.lease()
    until(lambda: lease.id in q.sweep(), "it lapses")
    with pytest.raises(LeaseLost):
        lease.ack()
    assert q.stats().swept == 1


def test_whoever_waits_is_woken_without_polling(q: Any, make: Make, server: Server) -> None:
    """The server counts: a wait costs a look, an ear, a look; then one more when the bell rings."""
    got: list[Any] = []
    with server.client() as admin:

        def calls() -> int:
            facts = admin.info("commandstats")
            return sum(int(facts.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in LOOKS)

        def ears() -> int:
            return sum(int(one["sub"]) for one in admin.client_list())

        waiter = make().queue("q")
        waiter.stats()  # connected, its scripts known
        q.lease()
        before, others = calls(), ears()
        thread = threading.Thread(target=lambda: got.append(waiter.lease(wait=30)))
        thread.start()
        until(lambda: ears() == others + 1 and calls() >= before + 2, "it waits")
        assert calls() == before + 2
        job = q.dispatch(1)
        thread.join(20)
        assert [lease.id for lease in got] == [job.id]
        assert calls() <= before + 2 + 1 + 2  # the dispatch, perhaps sent whole, and one look more


LOOKS = ("eval", "evalsha")


# Looking and acting


def test_cancel_reaches_what_waits_and_what_runs(q: Any) -> None:
    waits, runs = q.dispatch_many([1, 2])[::-1]
    lease = q.lease()
    assert waits.cancel()
    assert not waits.cancel()
    assert q.cancel(runs.id)
    lease.extend(5)
    assert lease.cancelled
    lease.ack("too late")
    assert [waits.state(), runs.state()] == ["cancelled", "cancelled"]
    assert runs.info().result is None
    assert not q.cancel("nobody")


def test_the_numbers_are_exact_and_add_up(q: Any) -> None:
    q.options(id="b").dispatch(1)
    q.dispatch_many(range(6))
    q.options(delay=60).dispatch(1)
    q.lease()
    q.options(id="b").dispatch(2)
    q.lease().ack()
    q.lease().fail("x", permanent=True)
    q.jobs("ready")[0]
    q.cancel(q.jobs("ready")[0].id)
    s = q.stats()
    assert (s.ready, s.delayed, s.blocked, s.active, s.dead) == (3, 1, 1, 1, 1)
    assert (s.succeeded, s.failed, s.cancelled, s.merged) == (1, 1, 1, 0)
    now = s.ready + s.delayed + s.blocked + s.active
    assert s.created == now + s.succeeded + s.failed + s.cancelled + s.merged == 9
    assert s.oldest_wait >= 0
    assert (s.paused, s.stale, s.anomalies) == (False, 0, 0)


def test_a_paused_queue_gives_nothing_and_takes_everything(q: Any) -> None:
    q.pause()
    job = q.dispatch(1)
    assert (q.lease(wait=0.01), q.stats().paused, job.state()) == (None, True, "ready")
    q.resume()
    assert q.lease(wait=5).id == job.id


def fill(q: Any, h: Any, state: str, count: int, start: int) -> None:
    """Bring about so many jobs in one state."""
    for number in range(start, start + count):
        one = q.options(id=f"{state}-{number}", priority=200)
        match state:
            case "delayed":
                one.options(delay=600 + number).dispatch(number)
            case "ready":
                one.dispatch(number)
            case _:
                one.dispatch(number)
                lease = q.lease(visibility=600 + number)
                assert lease.id == f"{state}-{number}"
                match state:
                    case "blocked":
                        one.dispatch(number)
                    case "succeeded":
                        lease.ack(number)
                    case "failed":
                        lease.fail("x", permanent=True)
                    case "cancelled":
                        h.job("q", lease.id).cancel()
                        lease.ack()


STATES = ["ready", "delayed", "blocked", "active", "succeeded", "failed", "cancelled"]


@pytest.mark.parametrize("state", STATES)
def test_pages_show_what_stays_once_whatever_comes_and_goes(q: Any, h: Any, state: str) -> None:
    fill(q, h, state, 20, 0)
    stay = {f"{state}-{number}" for number in range(20)} - {f"{state}-{n}" for n in (1, 2, 9, 15)}
    seen: list[str] = []
    cursor, number = None, 0
    while True:
        page = q.jobs(state, limit=6, cursor=cursor)
        seen += [job.id for job in page]
        assert {job.state for job in page} <= {state}
        cursor = page.cursor
        if cursor is None:
            break
        fill(q, h, state, 2, 100 + 2 * number)  # these come,
        for gone in {0: [1, 2], 1: [9, 15]}.get(number, []):  # and these go
            job = h.job("q", f"{state}-{gone}")
            if state in ("active", "blocked"):
                job.cancel()
            else:
                assert job.delete()
        number += 1
        assert number < 20
    assert stay - set(seen) == set()
    assert max(seen.count(one) for one in stay) == 1


def test_a_page_of_a_wrong_state_or_cursor_is_refused(q: Any) -> None:
    for wrong in ({"state": "runing"}, {"cursor": "x"}, {"limit": 0}, {"limit": 1001}):
        with pytest.raises(ConfigurationError):
            q.jobs(**wrong)
    with pytest.raises(ConfigurationError, match="active"):
        q.purge("active")


def test_jobs_are_found_by_their_arguments(q: Any) -> None:
    wanted = [q.dispatch("a", w=1), q.options(delay=60).dispatch("a", w=1)]
    q.dispatch("a", w=2)
    q.lease()
    assert {job.id for job in q.matching("a", w=1)} == {job.id for job in wanted}
    assert [job.cancel() for job in q.matching("a", w=1)] == [True, True]


def test_what_is_kept_is_purged_deleted_and_destroyed(q: Any, h: Any) -> None:
    jobs = q.dispatch_many(range(4))
    lease = q.lease()
    with pytest.raises(JobActive):
        jobs[0].delete()
    assert q.purge("ready", older_than=600) == 0
    assert jobs[1].delete()
    assert not jobs[1].delete()
    assert q.purge("ready") == 2
    lease.ack()
    assert q.purge("succeeded") == 1
    assert jobs[0].state() == "unknown"
    q.dispatch_many(range(3))
    assert q.destroy() == 3
    assert (q.stats().created, h.queues()) == (0, [])


def test_dead_letters_are_listed_tried_again_and_dropped(q: Any, h: Any) -> None:
    job = q.options(max_retries=0).dispatch("x")
    q.lease().fail("why")
    (dead,) = q.dead.jobs()
    assert (dead.id, dead.args, dead.error.message) == (job.id, ("x",), "why")
    assert (q.stats().dead, h.queue("q:fail").stats().ready) == (1, 1)
    assert q.dead.retry(job.id)
    assert (job.state(), h.queue("q:fail").stats().ready, q.stats().dead) == ("ready", 0, 0)
    assert not q.dead.retry(job.id)
    q.lease().fail("again", permanent=True)
    assert q.dead.purge(older_than=600) == 0
    assert q.dead.purge() == 1


# Locks


def test_a_lock_has_one_holder_and_only_it_gives_it_back(make: Make) -> None:
    here, there = make(), make()
    with here.lock("report", ttl=30) as lock:
        assert lock.held
        other = there.lock("report", ttl=30)
        assert not other.acquire(wait=0)
        assert not other.acquire(wait=0.02)
        with pytest.raises(LockLost, match="not held through this object"):
            other.release()
        with pytest.raises(ConfigurationError, match="Release it"):
            lock.acquire()
        with there.lock("another"):
            assert lock.held
    assert not lock.held
    assert other.acquire(wait=0)
    other.release()


def test_whoever_waits_for_a_lock_gets_it_the_moment_it_is_given_back(make: Make) -> None:
    here, there = make().lock("l", ttl=600), make().lock("l", ttl=600)
    got: list[bool] = []
    assert here.acquire()
    thread = threading.Thread(target=lambda: got.append(there.acquire(wait=60)))
    thread.start()
    here.release()
    thread.join(20)  # it would wait for ten minutes if it only waited for the lock to lapse
    assert got == [True]
    there.release()


def test_a_lock_is_renewed_while_it_is_held_and_lapses_with_its_holder(
    make: Make, server: Server, prefix: str
) -> None:
    key = f"{prefix}:{{l}}:lock"
    lock = make().lock("l", ttl=0.3)
    lock.acquire()
    with server.client() as admin:
        admin.pexpire(key, 60_000)
        until(lambda: admin.pttl(key) <= 300, "it is renewed")
        assert lock.held
        admin.delete(key)  # as if its program had been away for too long
        with make().lock("l"), pytest.raises(LockLost, match="lapsed"):
            lock.release()


def test_a_lock_is_given_back_when_its_block_fails(h: Any) -> None:
    with pytest.raises(ZeroDivisionError), h.lock("l"):
        1 / 0  # noqa: B018
    with h.lock("l") as lock:
        assert lock.held


def test_ping_and_settings(h: Any, prefix: str) -> None:
    assert 0 < h.ping() < 60
    assert 0 < h.ping(wait=1) < 60
    assert (h.prefix, h.settings.prefix, h.settings.connect_timeout) == (prefix, prefix, 10.0)
    with pytest.raises(AttributeError):
        h.settings.prefix = "x"
    h.close()
    assert h.queue("q").dispatch(1).created  # closed is not over
