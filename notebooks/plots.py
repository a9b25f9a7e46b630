"""Two kinds of plot as SVG, drawn by hand: enough for these notebooks, so that nothing has to be installed for them.

A notebook shows what `bars` and `lines` return. Not for anything else: whoever has matplotlib or Altair uses that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 40
COLOURS = ("#1f6feb", "#d1242f", "#2da44e", "#8250df", "#bf8700", "#57606a")


class Plot:
    """Owns the SVG text; the notebook asks for it."""

    def __init__(self, title: str, parts: Sequence[str], height: int = HEIGHT) -> None:
        head = f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>'
        frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        self.svg = f'{frame} font-family="sans-serif" font-size="12">{head}{"".join(parts)}</svg>'

    def _repr_svg_(self) -> str:
        return self.svg


def bars(values: Mapping[str, float], title: str, unit: str = "") -> Plot:
    """A horizontal bar for each name, in the order given."""
    longest = max([*values.values(), 1e-9])
    parts = []
    for row, (name, value) in enumerate(values.items()):
        y = TOP + 22 * row
        width = (WIDTH - 320) * max(0.0, value) / longest
        parts.append(f'<text x="190" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="200" y="{y + 2}" width="{width:.1f}" height="15" fill="{COLOURS[0]}"/>')
        parts.append(f'<text x="{206 + width:.1f}" y="{y + 13}">{value:,.4g} {escape(unit)}</text>')
    return Plot(title, parts, TOP + 22 * len(values) + 8)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, x: str, y: str, marks: Mapping[str, float] | None = None
) -> Plot:
    """A line for each name through its points `(x, y)`; `marks` are upright lines with a name at an x."""
    points = [point for line in series.values() for point in line]
    marks = marks or {}
    xs = [point[0] for point in points] + list(marks.values())
    low, high, top = math.floor(min(xs)), math.ceil(max(xs)), _round_up(max(point[1] for point in points))
    across = (WIDTH - LEFT - RIGHT) / ((high - low) or 1.0)

    def at(px: float, py: float) -> tuple[float, float]:
        return LEFT + (px - low) * across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * py / top

    parts = []
    for share in (0.0, 0.5, 1.0):
        _, level = at(low, top * share)
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{top * share:,.4g}</text>')
        place = low + (high - low) * share
        parts.append(f'<text x="{at(place, 0)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{place:,.4g}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>')
    parts.append(f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">{escape(y)}</text>')
    for name, place in marks.items():
        px, _ = at(place, 0)
        parts.append(f'<path d="M{px:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#57606a" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{px + 4:.1f}" y="{TOP + 10}" fill="#57606a">{escape(name)}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "L".join("{:.1f} {:.1f}".format(*at(*point)) for point in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<text x="{WIDTH - RIGHT - 110 * (len(series) - number) + 20}" y="20" fill="{colour}">{escape(name)}</text>')
    return Plot(title, parts)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, … at or above."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value)
