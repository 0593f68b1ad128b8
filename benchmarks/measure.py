"""Medians with their spread, and the table that shows them beside their targets."""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

WIDTHS = (36, 11, 17, 9, 4)
"""Columns of the table: with the spaces between them not more than 80."""


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of all rounds of one variant."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of all rounds lie between these two."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def by(self, other: Series, combine: Callable[[float, float], float] = operator.truediv) -> Series:
        """Round by round, so that what slows both down in one round does not change the figure."""
        return Series(tuple(map(combine, self.values, other.values)))

    def each(self, change: Callable[[float], float]) -> Series:
        return Series(tuple(map(change, self.values)))


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be at most, or at least."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {shown(self.limit)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    series: Series
    target: Target | None = None

    @property
    def missed(self) -> bool:
        return self.target is not None and not self.target.met(self.series.median)

    def facts(self) -> dict[str, Any]:
        low, high = self.series.quartiles
        return {
            "what": self.what,
            "median": self.series.median,
            "quartiles": [low, high],
            "rounds": len(self.series.values),
            "target": str(self.target) if self.target else None,
            "met": None if self.target is None else not self.missed,
        }


def alternate(
    variants: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, Series]:
    """Run each variant once per round, for as many rounds; each answers its own figure.

    Every other round runs backwards: nobody always comes behind the same neighbour, whose leavings
    (a warm cache, a table that is being resized) would be measured with it.
    """
    figures: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(-warm_up, rounds):
        for name in names if number % 2 else reversed(names):
            figure = variants[name]()
            if number >= 0:
                figures[name].append(figure)
    return {name: Series(tuple(values)) for name, values in figures.items()}


def repeated(action: Callable[[], object], times: int) -> Callable[[], float]:
    """A variant for `alternate`: microseconds per call."""

    def one_round() -> float:
        started = time.perf_counter()
        for _ in range(times):
            action()
        return (time.perf_counter() - started) / times * 1e6

    return one_round


def shown(value: float) -> str:
    """Three figures are all that a shared machine can tell."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(title: str, rows: Iterable[Row]) -> str:
    """The rows as text, 80 columns wide."""
    lines = [title, _line("", "median", "quartiles", "target", ""), "-" * (sum(WIDTHS) + 3)]
    for row in rows:
        low, high = row.series.quartiles
        spread = f"{shown(low)}..{shown(high)}" if len(row.series.values) > 1 else ""
        verdict = "" if row.target is None else "MISS" if row.missed else "pass"
        target = str(row.target) if row.target else ""
        lines.append(_line(row.what, shown(row.series.median), spread, target, verdict))
    return "\n".join(lines)


def _line(what: str, *cells: str) -> str:
    return what.ljust(WIDTHS[0]) + " ".join(
        cell.rjust(width) for cell, width in zip(cells, WIDTHS[1:], strict=True)
    )
