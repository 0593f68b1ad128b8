"""Targets over time as an SVG, by hand: a plot in the documentation is no reason for a library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 150, 40, 40, 24, 22


@dataclass
class Drawn:
    """One panel of the plot."""

    title: str
    targets: list[tuple[float, int]]
    until: float
    burning: list[tuple[float, float]] = field(default_factory=list)
    """When a neighbour burns a core."""
    used: list[tuple[float, float]] = field(default_factory=list)
    """Which part of the granted cores was in use, by anybody."""


def plot(path: Path, runs: list[Drawn]) -> None:
    """One panel a run: the target, the cores in use behind it, grey where a neighbour burns."""
    panels = [_panel(run, number * HEIGHT) for number, run in enumerate(runs)]
    size = f'width="{WIDTH}" height="{HEIGHT * len(runs)}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n'
    )
    path.write_text(head + "".join(panels) + "</svg>\n", encoding="utf-8")


def _panel(run: Drawn, top: int) -> str:
    most = max(target for _, target in run.targets) + 1
    high, low = top + TOP, top + HEIGHT - BOTTOM

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, at / run.until)

    def y(part: float) -> float:
        return low - (low - high) * min(1.0, part)

    parts = [_text(LEFT, top + 16, run.title)]
    for left, right in run.burning:
        parts.append(
            f'<rect x="{x(left):.1f}" y="{high}" width="{x(right) - x(left):.1f}" '
            f'height="{low - high}" fill="#ddd"/>'
        )
    if run.used:
        line = " ".join(f"{x(at):.1f},{y(part):.1f}" for at, part in run.used)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#e3a35a" stroke-width="1"/>')
        parts.append(_text(WIDTH - RIGHT + 4, high + 4, "100 %", "#b5702a"))
    steps = []
    for (at, target), (end, _) in zip(run.targets, [*run.targets[1:], (run.until, 0)], strict=True):
        height = y(target / most)
        steps += [f"{x(at):.1f},{height:.1f}", f"{x(end):.1f},{height:.1f}"]
    parts.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    parts.append(f'<path d="M{LEFT} {high}V{low}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>')
    named = sorted({0, run.targets[-1][1], max(target for _, target in run.targets)})
    parts += [_text(LEFT - 24, y(target / most) + 4, str(target)) for target in named]
    parts.append(_text(WIDTH - RIGHT - 24, low + 14, f"{run.until:.0f} s"))
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, words: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(words)}</text>'
