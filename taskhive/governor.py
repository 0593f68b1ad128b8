"""How many slots may be busy: a pure function of samples, with its reason in words.

The target is computed, not searched for: cores we may use, divided by the cores an attempt wants.
What it wants is the CPU time it got plus the time it waited for a core. What it merely *uses* falls
when the machine is full, and would push the target up just when it must come down.

The neighbours' wants cannot be asked; but where the cores are shared fairly they wait as we do, so
what they use is stretched by as much as our own attempts are. A neighbour that is polite (`nice`)
makes nobody wait and is not stretched: nobody gives way to it.

Damped three ways: samples are smoothed; a change must be wanted for a while; and after a turn it
takes a plain difference, not a hair's breadth, to turn again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

GIB = 1 << 30

LONGEST_SPAN = 5.0
"""A sample over a longer time is of a machine that slept, or of a loop that could not turn."""
TAU_LOAD = 0.7
TAU_WANT = 2.0
FALL_AFTER = 1.0
RISE_AFTER = 1.5
"""Seconds for which a change must have been wanted, without a break."""
RISE_OVER = 0.3
"""Slots by which a rise must be worth it; a fall needs no more than to be right."""
TURN_MEMORY = 60.0
RISE_OVER_AFTER_TURN = 0.5
FALL_UNDER_AFTER_TURN = 0.15
"""Cores, for so many seconds after a turn: half of what a neighbour takes that burns one."""
ONE_THREAD = 1.1
"""An attempt that wants more cores than this has several threads; below it is noise."""
MEMORY_RESERVE = 0.05
"""Part of the memory that no new attempt is counted into."""
MEMORY_PRESSED = 0.1
MEMORY_CRUSHED = 0.4
"""Parts of the time in which something waits for memory: no more attempts, fewer attempts."""
THROTTLED = 0.25
THROTTLED_HARD = 0.6
LEAST_WANT = 0.02
FULL_AT, CROWDED_AT = 0.97, 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the command line says."""

    least: int = 1
    most: int = 64
    target_cpu: float = 0.9


@dataclass(frozen=True, slots=True)
class Load:
    """What the attempts of one handler did during a sample."""

    slots: float
    """Mean slots they held: attempts times weight."""
    cpu: float
    """Mean cores they used."""
    wait: float
    """Mean cores they would have used besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What happened in the `span` seconds up to `at`."""

    at: float
    span: float
    cores: float
    busy: float
    """Cores in use by anybody, of those granted to us."""
    loads: Mapping[str, Load] = field(default_factory=dict)
    memory: int = 0
    available: int = 0
    per_slot: int = 0
    """Bytes that a busy slot takes, as measured lately; 0: not known."""
    memory_pressure: float = 0.0
    """Part of the time in which something waited for memory."""
    throttled: float = 0.0
    """Part of the quota's periods in which it was used up."""

    @property
    def running(self) -> float:
        """Slots held at the time."""
        return sum(load.slots for load in self.loads.values())


@dataclass(frozen=True, slots=True)
class State:
    """What the governor remembers from one sample to the next."""

    target: int
    reason: str
    others: float | None = None
    """Cores that everybody but our attempts wants, smoothed."""
    wants: Mapping[str, float] = field(default_factory=dict)
    """Cores that a slot wants, by handler, smoothed."""
    mix: float = 1.0
    """The same for what ran last: an attempt is taken for CPU-bound until it shows otherwise."""
    rising: bool = False
    turned_at: float = -math.inf
    falls_since: float | None = None
    rises_since: float | None = None


def begin(bounds: Bounds, cores: float) -> State:
    """Before the first sample: one slot for each core granted."""
    target = max(bounds.least, min(bounds.most, math.ceil(cores - 0.05)))
    return State(target, f"{target}: {cores:g} cores granted, nothing measured yet")


def decide(bounds: Bounds, state: State, sample: Sample) -> State:
    """The state after a sample; its target and reason are the decision."""
    if not 0 < sample.span <= LONGEST_SPAN:
        return replace(state, falls_since=None, rises_since=None)
    state = _learn(state, sample)
    ideal = _ideal(bounds, state, sample)
    wanted, words = _wanted(bounds, state, sample, ideal)
    return _move(bounds, state, sample, wanted, words, firm=wanted < ideal)


# What is learned


def _learn(state: State, sample: Sample) -> State:
    cpu = sum(load.cpu for load in sample.loads.values())
    wait = sum(load.wait for load in sample.loads.values())
    full = min(1.0, max(0.0, (sample.busy / sample.cores - CROWDED_AT) / (FULL_AT - CROWDED_AT)))
    # While cores stand idle nobody waits long, whatever our short wake-ups may say.
    stretch = 1.0 + full * min(wait / cpu, 9.0) if cpu > 0.05 else 1.0
    others = min(max(0.0, sample.busy - cpu) * stretch, 4.0 * sample.cores)
    wants = dict(state.wants)
    for name, load in sample.loads.items():
        if load.slots < 0.05:
            continue
        # Weighed by how much of it ran: one attempt in a corner of the sample proves little.
        share = 1 - math.exp(-sample.span * min(1.0, load.slots) / TAU_WANT)
        now = max(LEAST_WANT, (load.cpu + load.wait) / load.slots)
        before = wants.get(name)
        wants[name] = now if before is None else before + share * (now - before)
    running = sample.running
    mix = state.mix
    if running >= 0.05:
        known = {name: load.slots for name, load in sample.loads.items() if name in wants}
        if known:
            mix = sum(slots * wants[name] for name, slots in known.items()) / sum(known.values())
    return replace(
        state,
        others=_smooth(state.others, others, sample.span, TAU_LOAD),
        wants=wants,
        mix=mix,
    )


def _smooth(before: float | None, now: float, span: float, tau: float) -> float:
    return now if before is None else before + (1 - math.exp(-span / tau)) * (now - before)


# What would be right


def _ideal(bounds: Bounds, state: State, sample: Sample) -> float:
    """Slots, not yet rounded."""
    others = state.others or 0.0
    want = max(LEAST_WANT, state.mix)
    by_target = (bounds.target_cpu * sample.cores - others) / want
    if bounds.target_cpu < 0.9:
        return by_target
    # As many attempts as there are free cores do no harm if none can want more than one: the
    # tenth that is kept free is there for those that want now little, now much. A lower target
    # is a request to leave cores alone, and is kept.
    each = want if want > ONE_THREAD else 1.0
    return max(by_target, (sample.cores - others) / each - 0.5)


def _wanted(bounds: Bounds, state: State, sample: Sample, ideal: float) -> tuple[float, str]:
    """What CPU, memory and quota leave of it, and which of them it was."""
    others = state.others or 0.0
    free = max(0.0, bounds.target_cpu * sample.cores - others)
    words = f"{free:.1f} of {sample.cores:g} cores free, attempts use {state.mix:.2g}"
    wanted = ideal
    if sample.throttled > THROTTLED and wanted > state.target:
        wanted = float(state.target)
        words = f"held, the quota is used up in {sample.throttled:.0%} of its periods"
    if sample.throttled > THROTTLED_HARD and state.target > math.ceil(sample.cores):
        # Throttled threads are no longer queued, so their waiting does not show in what they want.
        wanted = min(wanted, max(math.ceil(sample.cores), 0.8 * state.target - 1))
        words = (
            f"the quota of {sample.cores:g} cores is used up in {sample.throttled:.0%} of its periods"
        )
    room = _room_in_memory(sample)
    shown = f"{sample.available / GIB:.1f} of {sample.memory / GIB:.1f} GiB free"
    if room is not None and room < wanted:
        wanted = room
        words = f"{shown}, attempts use {sample.per_slot / GIB:.2g} GiB"
    if sample.memory_pressure > MEMORY_CRUSHED and wanted > state.target - 1:
        wanted = state.target - 1.0
        words = f"memory is waited for {sample.memory_pressure:.0%} of the time, {shown}"
    elif sample.memory_pressure > MEMORY_PRESSED and wanted > state.target:
        wanted = float(state.target)
        words = f"held, memory is waited for {sample.memory_pressure:.0%} of the time, {shown}"
    return wanted, words


def _room_in_memory(sample: Sample) -> float | None:
    """Slots that fit, those that run included; None where nothing is known."""
    if not sample.memory or not sample.per_slot:
        return None
    spare = sample.available - MEMORY_RESERVE * sample.memory
    return math.floor(sample.running + spare / sample.per_slot)


# Whether to go there


def _move(
    bounds: Bounds, state: State, sample: Sample, wanted: float, words: str, *, firm: bool
) -> State:
    at, target = sample.at, state.target
    # Where a slot is a small part of a core, one more or less is no plain difference.
    small = min(1.0, max(LEAST_WANT, state.mix))
    slack = 0.1 * target * (1.0 - small)
    over, under = max(RISE_OVER, slack), slack
    if at - state.turned_at < TURN_MEMORY:
        if state.rising:
            under = max(under, (FALL_UNDER_AFTER_TURN + 0.3 * (1.0 - small)) / small)
        else:
            over = max(over, RISE_OVER_AFTER_TURN / small)
    if firm:  # memory and quota are counted, not estimated
        under = 0.0
    # Above the cores only if those that there are, are in use: idle slots prove nothing.
    used = sample.running >= 0.75 * target or target < math.ceil(sample.cores)
    rise = min(bounds.most, math.ceil(wanted - over))
    fall = max(bounds.least, math.ceil(wanted + under))
    if rise > target and used:
        since = state.rises_since if state.rises_since is not None else at - sample.span
        if at - since < RISE_AFTER:
            return replace(state, rises_since=since, falls_since=None)
        # In steps: what the new ones do to the others must show before more are let in.
        to = min(rise, target + max(1, math.ceil(target * 0.5)))
        return _changed(bounds, state, at, to, True, words)
    if fall < target:
        since = state.falls_since if state.falls_since is not None else at - sample.span
        if at - since < FALL_AFTER:
            return replace(state, falls_since=since, rises_since=None)
        return _changed(bounds, state, at, fall, False, words)
    reason = f"{target}{_bound(bounds, target, wanted)}: {words}"
    return replace(state, falls_since=None, rises_since=None, reason=reason)


def _changed(bounds: Bounds, state: State, at: float, to: int, rising: bool, words: str) -> State:
    turn = rising != state.rising
    return replace(
        state,
        target=to,
        reason=f"{to}{_bound(bounds, to, to)}: {words}",
        rising=rising,
        turned_at=at if turn else state.turned_at,
        falls_since=None,
        rises_since=None,
    )


def _bound(bounds: Bounds, target: int, wanted: float) -> str:
    if target == bounds.most and wanted >= target:
        return " (the most allowed)"
    return " (the least allowed)" if target == bounds.least > 1 and wanted <= target else ""
