"""The options of a handler that say what its attempts may take."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive.errors import ConfigurationError
from taskhive.handler_options import FAILURE_HANDLER, HandlerOptions
from taskhive.jobs import LimitHits

MIB = 1 << 20


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("weight", 0, "above 0"),
        ("weight", -1.5, "above 0"),
        ("weight", float("nan"), "above 0"),
        ("weight", "2", "above 0"),
        ("weight", True, "above 0"),
        ("memory", "2 apples", "2GiB"),
        ("memory", 0, "2GiB"),
        ("memory", 2.5, "2GiB"),
        ("memory", [], "each is larger"),
        ("memory", ["4GiB", "2GiB"], "each is larger"),
        ("memory", ["2GiB", "2GiB"], "each is larger"),
        ("memory", ["2GiB", "many"], "2GiB"),
        ("timeout", [300, 60], "each is larger"),
        ("timeout", [60, None], "seconds"),
        ("timeout", 0, "0.001"),
        ("cpu_timeout", 0, "0.001"),
        ("cpu_timeout", "long", "seconds"),
        ("max_concurrency", 0, "from 1"),
        ("global_concurrency", 1.5, "from 1"),
        ("max_memory_per_child", "lots", "2GiB"),
        ("max_jobs_per_child", 0, "from 1"),
    ],
)
def test_a_wrong_limit_is_refused_with_the_remedy(option: str, value: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        HandlerOptions(**{option: value})
    assert raised.value.field == option
    assert remedy in str(raised.value)


def test_sizes_and_numbers_are_read() -> None:
    options = HandlerOptions(
        memory="100MiB", weight=2, cpu_timeout=5, max_concurrency=3, max_memory_per_child="1GiB"
    )
    assert options.memory == 100 * MIB
    assert options.weight == 2.0
    assert options.max_memory_per_child == 1024 * MIB


def test_the_next_budget_is_for_the_limit_that_was_passed() -> None:
    options = HandlerOptions(memory=["100MiB", "200MiB", "400MiB"], timeout=[60, 300], cpu_timeout=30)
    first = options.at(LimitHits())
    assert (first.memory, first.timeout, first.cpu_timeout) == (100 * MIB, 60.0, 30.0)
    second = options.at(LimitHits(memory=1))
    assert (second.memory, second.timeout) == (200 * MIB, 60.0)
    third = options.at(LimitHits(1, 1, 1))
    assert (third.memory, third.timeout, third.cpu_timeout) == (200 * MIB, 300.0, 30.0)


def test_the_last_budget_stays() -> None:
    assert HandlerOptions(timeout=[60, 300]).at(LimitHits(timeout=7)).timeout == 300.0


def test_a_ladder_travels_to_the_supervisor_as_it_is() -> None:
    options = HandlerOptions(memory=["1MiB", "2MiB"], weight=0.5)
    assert HandlerOptions(**options.portable()) == options


def test_a_failure_handler_is_retried_for_days() -> None:
    limits = FAILURE_HANDLER.limits()
    longest = [min(limits.max_backoff, limits.min_backoff * 2.0**n) for n in range(limits.max_retries)]
    assert sum(longest) / 2 > 2 * 86400  # a random part of each, so half on average
