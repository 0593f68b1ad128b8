"""How many slots may be busy: a pure function of samples, with its reason in words.

The target is computed, not searched for: cores we may use, divided by the cores an attempt wants.
What it wants is what it would use if it never had to wait for a core: its CPU time, by the time it ran
less the time it waited. What it merely *uses* falls when the machine is full, and would push the target
up just when it must come down; and what it uses *and* waits grows with every attempt beside it, since
those that sleep wake when they like, and meet while cores stand idle a moment later.

For the same reason attempts that want a tenth of a core do not fill it by ten. How many want one at a
time swings by the root of its variance; by some three times that more are let in, or cores would be idle
for want of anybody awake. Attempts that compute do not swing, and there are no more of them than cores.

The neighbours' wants cannot be asked; but where the cores are shared fairly they wait as we do, so
what they use is stretched by as much as our own attempts are, up to as many cores as they have threads
that could run. A neighbour that is polite (`nice`) makes nobody wait and is not stretched: nobody gives
way to it.

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
TAU_LOAD = 1.0
TAU_MIX = 2.0
SEEN = 6.0
"""Seconds of a slot that count for what its handler wants; those before fade."""
LOOKS = 5
"""Samples by which others have as many threads that could run as they had in all but one of them."""
FALL_AFTER = 1.0
RISE_AFTER = 1.5
"""Seconds for which a change must have been wanted, without a break."""
RISE_OVER = 0.4
"""Slots by which a rise must be worth it; a fall needs no more than to be right."""
TURN_MEMORY = 60.0
RISE_OVER_AFTER_TURN = 0.5
FALL_UNDER_AFTER_TURN = 0.25
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
FILLED_FROM = 0.9
"""A lower CPU target is a request to leave cores alone, and is kept; from here on they are filled."""
SWING = 3.0
"""Standard deviations of those that want a core at a time, by which they are more than the cores.
With 2 of them attempts that sleep for 90 % of their time reached 0.93 of the best fixed number."""
INDIFFERENT = 0.7
"""So many more still make little difference, and are left alone."""
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
    attempts: float | None = None
    """How many they were on average; None: one for each slot."""

    @property
    def want(self) -> float:
        """Cores that a slot of them would use if nobody ever had to wait."""
        attempts = self.slots if self.attempts is None else self.attempts
        asked = self.cpu + self.wait
        if asked < attempts:
            # One thread each: without the waiting they would have been done so much sooner.
            asked = self.cpu / (attempts - self.wait) * attempts
        return max(LEAST_WANT, asked / self.slots)

    def swing(self, want: float) -> float:
        """Variance of how many of them want a core at a time, for each slot, if a slot wants so much."""
        per_slot = 1.0 if self.attempts is None else self.attempts / self.slots
        part = min(1.0, want / per_slot)
        return part * (1.0 - part) * (1.0 - part * part) ** 2 * per_slot


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
    rivals: int | None = None
    """Threads of others that had a core or waited for one, at the moment of the sample."""

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
    rivals: tuple[int, ...] = ()
    """Threads of others that wanted a core at the last few samples."""
    wants: Mapping[str, float] = field(default_factory=dict)
    """Cores that a slot wants, by handler: the mean of the last seconds."""
    seen: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a slot from which that is known."""
    mix: float = 1.0
    """The same for what ran last: an attempt is taken for CPU-bound until it shows otherwise."""
    swing: float = 0.0
    """Variance of how many of those want a core at a time, for each slot."""
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
    return _move(bounds, state, sample, _within(state, sample, _right(bounds, state, sample)))


@dataclass(frozen=True, slots=True)
class Right:
    """Slots, not yet rounded: fewer than `least` are too few, more than `most` too many."""

    least: float
    most: float
    free: float
    """Cores they may use."""
    plain: float
    """Those that would use them if all wanted the mean all the time."""
    swing: float = 0.0
    """How far the number of those that want a core at a time swings, in slots."""
    limit: str = ""
    """What holds it there, in words, if it is counted instead of estimated from what attempts want."""


# What is learned


def _learn(state: State, sample: Sample) -> State:
    cpu = sum(load.cpu for load in sample.loads.values())
    wait = sum(load.wait for load in sample.loads.values())
    full = min(1.0, max(0.0, (sample.busy / sample.cores - CROWDED_AT) / (FULL_AT - CROWDED_AT)))
    # While cores stand idle nobody waits long, whatever our short wake-ups may say.
    stretch = 1.0 + full * min(wait / cpu, 9.0) if cpu > 0.05 else 1.0
    used = max(0.0, sample.busy - cpu)
    others = min(used * stretch, 4.0 * sample.cores)
    rivals = state.rivals
    if sample.rivals is not None:
        rivals = (*rivals, sample.rivals)[-LOOKS:]
        # Attempts that sleep wait for each other when they wake: that makes nobody else want more. Those
        # that compute wait for the neighbours as the neighbours do for them.
        awake = min(1.0, state.mix)
        others = awake * others + (1.0 - awake) * min(others, max(used, sorted(rivals)[:2][-1]))
    wants, seen = dict(state.wants), dict(state.seen)
    for name, load in sample.loads.items():
        if load.slots < 0.05:
            continue
        # Weighed by how much of it ran: one attempt in a corner of the sample proves little.
        weight = sample.span * min(1.0, load.slots)
        before = min(SEEN, seen.get(name, 0.0))
        seen[name] = before + weight
        wants[name] = (before * wants.get(name, 0.0) + weight * load.want) / (before + weight)
    mix, swing = state.mix, state.swing
    known = {name: load for name, load in sample.loads.items() if name in wants}
    slots = sum(load.slots for load in known.values())
    if slots >= 0.05:
        # Whose turn it is changes with every attempt; of two kinds one often has a slot more.
        tau = TAU_MIX if state.wants else 0.0
        now = sum(load.slots * wants[name] for name, load in known.items()) / slots
        mix = _smooth(mix, now, sample.span, tau)
        now = sum(load.slots * load.swing(wants[name]) for name, load in known.items()) / slots
        swing = _smooth(swing, now, sample.span, tau)
    return replace(
        state,
        others=_smooth(state.others, others, sample.span, TAU_LOAD),
        rivals=rivals,
        wants=wants,
        seen=seen,
        mix=mix,
        swing=swing,
    )


def _smooth(before: float | None, now: float, span: float, tau: float) -> float:
    if before is None or tau <= 0:
        return now
    return before + (1 - math.exp(-span / tau)) * (now - before)


# What would be right


def _right(bounds: Bounds, state: State, sample: Sample) -> Right:
    """By the cores alone."""
    others = state.others or 0.0
    want = max(LEAST_WANT, state.mix)
    free = max(0.0, bounds.target_cpu * sample.cores - others)
    plain = free / want
    if bounds.target_cpu < FILLED_FROM:
        return Right(plain, plain, free, plain)
    swing = math.sqrt(max(1.0, plain) * state.swing) / want
    # As many attempts as there are free cores do no harm if none can want more than one.
    each = want if want > ONE_THREAD else 1.0
    floor = (sample.cores - others) / each - RISE_OVER
    # Where others have cores, they fill the gaps.
    filled = plain + SWING * swing * free / (bounds.target_cpu * sample.cores)
    least = max(filled, floor)
    most = max(filled + INDIFFERENT * swing, floor)
    return Right(least, most, free, plain, swing)


def _within(state: State, sample: Sample, right: Right) -> Right:
    """What quota and memory leave of it."""

    def limit(slots: float, why: str) -> None:
        nonlocal right
        if slots < right.most:
            right = replace(right, least=min(right.least, slots), most=slots, limit=why)

    if sample.throttled > THROTTLED:
        limit(state.target, f"held, the quota is used up in {sample.throttled:.0%} of its periods")
    if sample.throttled > THROTTLED_HARD and state.target > math.ceil(sample.cores):
        # Throttled threads are no longer queued, so their waiting does not show in what they want.
        limit(
            max(math.ceil(sample.cores), 0.8 * state.target - 1),
            f"the quota of {sample.cores:g} cores is used up in {sample.throttled:.0%} of its periods",
        )
    shown = f"{sample.available / GIB:.1f} of {sample.memory / GIB:.1f} GiB free"
    room = _room_in_memory(sample)
    if room is not None:
        limit(room, f"{shown}, attempts use {sample.per_slot / GIB:.2g} GiB")
    pressed = f"memory is waited for {sample.memory_pressure:.0%} of the time, {shown}"
    if sample.memory_pressure > MEMORY_CRUSHED:
        limit(state.target - 1, pressed)
    elif sample.memory_pressure > MEMORY_PRESSED:
        limit(state.target, f"held, {pressed}")
    return right


def _room_in_memory(sample: Sample) -> float | None:
    """Slots that fit, those that run included; None where nothing is known."""
    if not sample.memory or not sample.per_slot:
        return None
    spare = sample.available - MEMORY_RESERVE * sample.memory
    return math.floor(sample.running + spare / sample.per_slot)


# Whether to go there


def _move(bounds: Bounds, state: State, sample: Sample, right: Right) -> State:
    at, target = sample.at, state.target
    small = min(1.0, max(LEAST_WANT, state.mix))
    # Where a slot is a small part of a core, one more or less is no plain difference.
    over, under = RISE_OVER, 0.1 * target * (1.0 - small)
    if at - state.turned_at < TURN_MEMORY:
        slack = INDIFFERENT * right.swing
        if state.rising:
            under = max(under, FALL_UNDER_AFTER_TURN / small + slack)
        else:
            over = max(over, RISE_OVER_AFTER_TURN / small + slack)
    if right.limit:
        under = 0.0
    # Above the cores only if those that there are, are in use: idle slots prove nothing.
    used = sample.running >= 0.75 * target or target < math.ceil(sample.cores)
    rise = min(bounds.most, math.ceil(right.least - over))
    fall = max(bounds.least, math.ceil(right.most + under))
    if rise > target and used:
        since = state.rises_since if state.rises_since is not None else at - sample.span
        if at - since < RISE_AFTER:
            return replace(state, rises_since=since, falls_since=None)
        # In steps: what the new ones do to the others must show before more are let in.
        to = min(rise, target + max(1, math.ceil(target * 0.5)))
        return _changed(bounds, state, sample, right, to)
    if fall < target:
        since = state.falls_since if state.falls_since is not None else at - sample.span
        if at - since < FALL_AFTER:
            return replace(state, falls_since=since, rises_since=None)
        return _changed(bounds, state, sample, right, fall)
    reason = _reason(bounds, state, sample, right, target)
    return replace(state, falls_since=None, rises_since=None, reason=reason)


def _changed(bounds: Bounds, state: State, sample: Sample, right: Right, to: int) -> State:
    rising = to > state.target
    return replace(
        state,
        target=to,
        reason=_reason(bounds, state, sample, right, to),
        rising=rising,
        turned_at=sample.at if rising != state.rising else state.turned_at,
        falls_since=None,
        rises_since=None,
    )


def _reason(bounds: Bounds, state: State, sample: Sample, right: Right, target: int) -> str:
    """What is free by what is wanted is the number, and how many more there are to fill the gaps."""
    bound = ""
    if target == bounds.most and right.least >= target:
        bound = " (the most allowed)"
    elif target == bounds.least > 1 and right.most <= target:
        bound = " (the least allowed)"
    if right.limit and right.most <= max(target, right.least):
        return f"{target}{bound}: {right.limit}"
    words = f"{right.free:.1f} of {sample.cores:g} cores free, attempts use {state.mix:.2g}"
    more = target - math.ceil(right.plain)
    gaps = f"; {more} more fill their gaps" if more > 0 and right.swing >= 0.5 else ""
    return f"{target}{bound}: {words}{gaps}"
