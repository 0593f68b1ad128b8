"""Faults of earlier job queues with more than one queue, or with keys; none may come back."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from taskhive import Hive, scripts
from taskhive.keys import QueueKeys
from tests.store.hands import take


def test_one_id_in_two_queues_is_two_jobs(hive: Hive) -> None:
    first, second = hive.queue("one"), hive.queue("two")
    first.options(id="J").dispatch(1)
    second.options(id="J").dispatch(2)
    a, b = take(first), take(second)
    assert (a.data, b.data) == (1, 2)
    a.ack("one")
    assert hive.job("two", "J").state() == "active"
    b.fail("why", permanent=True)
    assert hive.job("one", "J").state() == "succeeded"


def test_equal_arguments_are_unique_within_their_queue_and_while_one_waits_or_runs(hive: Hive) -> None:
    first, second = (hive.queue(name).options(unique=True) for name in ("one", "two"))
    assert first.dispatch("x").created
    assert second.dispatch("x").created
    assert first.dispatch("y").created
    take(first).ack()
    assert first.dispatch("x").created, "its equal has ended"
    assert not first.dispatch("y").created, "the end of another one must not free it"
    assert not second.dispatch("x").created, "nor must an end in another queue"


def test_all_keys_of_a_queue_and_its_fail_lane_lie_in_one_slot() -> None:
    for name in ("q", "a.b:c", "x" * 100):
        keys, lane = QueueKeys("th", name), QueueKeys("th", f"{name}:fail")
        found = {
            key_slot(one)
            for verb in scripts.names()
            for one in (*keys.of(verb), *lane.of(verb))
            if one  # each is named by its script
        }
        assert len(found) == 1


@pytest.mark.parametrize("verb", scripts.names())
def test_the_client_names_the_keys_of_a_script_from_the_scripts_own_line(verb: str) -> None:
    text = scripts.source(verb)
    declared = scripts.script(verb).keys
    assert f"KEYS[{len(declared)}]}}" in text
    assert len(QueueKeys("th", "q").of(verb)) == len(declared)
    assert len(set(QueueKeys("th", "q").of(verb))) == len(declared), "two names for one key"


@pytest.mark.parametrize("verb", scripts.names())
def test_no_script_looks_for_keys_by_a_pattern(verb: str) -> None:
    text = scripts.source(verb)
    assert not any(f"redis.call('{word}'" in text for word in ("KEYS", "SCAN", "RANDOMKEY"))
