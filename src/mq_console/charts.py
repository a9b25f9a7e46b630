"""Lines drawn as SVG, of numbers alone: no text from outside is in them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from markupsafe import Markup

Values = Sequence[float | None]

_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 24
_WIDTH: Final = 720
_HEIGHT: Final = 160
_POINTS_MIN: Final = 36


def sparkline(values: Values) -> Markup:
    """A small line without axes; a flat one if there is nothing."""
    values = _from_the_first(values)
    path = _path(values, _SPARK_WIDTH, _SPARK_HEIGHT, top_of(values))
    return Markup(  # noqa: S704 - numbers
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path d="{path or f"M0 {_SPARK_HEIGHT - 1}H{_SPARK_WIDTH}"}"/></svg>'
    )


def chart(values: Values, label: Callable[[float], str], step_s: int, what: str) -> Markup:
    """A line with a scale. `label` writes a value; `what` is said to who cannot see it. The page's script shows the
    value below the pointer, which it reads from `data-labels`."""
    values = _from_the_first(values)
    top = top_of(values)
    area = _path(values, _WIDTH, _HEIGHT, top, closed=True)
    line = _path(values, _WIDTH, _HEIGHT, top)
    grid = "".join(f'<path class="grid" d="M0 {_y(share, 1, _HEIGHT):.1f}H{_WIDTH}"/>' for share in (0, 0.5, 1))
    minutes = round(len(values) * step_s / 60)
    labels = Markup("|").join("" if value is None else label(value) for value in values)
    last = next((value for value in reversed(values) if value is not None), None)
    said = f"{what}: {label(last)} now, at most {label(max(_known(values)))}" if last is not None else f"{what}: none"
    svg = Markup(  # noqa: S704 - numbers
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{grid}'
        f'<path class="area" d="{area}"/><path class="line" d="{line}"/><path class="cross" d=""/></svg>'
    )
    return Markup(
        '<figure class="chart" role="img" aria-label="{}" data-labels="{}" data-step="{}">'
        '<div class="scale"><span>{}</span><span>{}</span><span>0</span></div><div class="plot">{}<output></output>'
        "</div><figcaption><span>{}</span><span>now</span></figcaption></figure>"
    ).format(said, labels, step_s, label(top), label(top / 2), svg, f"{minutes} min ago" if minutes else "")


def top_of(values: Values) -> float:
    """The end of the scale: 1, 2 or 5 times a power of ten, not below the greatest value."""
    greatest = max(_known(values), default=0.0)
    if greatest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(greatest))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= greatest * 0.999999)


def _from_the_first(values: Values) -> Values:
    """Without what was before anything was known, but for a few minutes: the line of a young console is no dot."""
    first = next((at for at, value in enumerate(values) if value is not None), len(values))
    return values[min(first, max(0, len(values) - _POINTS_MIN)) :]


def _known(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def _y(value: float, top: float, height: int) -> float:
    return height - 1 - (height - 2) * min(value / top, 1.0)


def _path(values: Values, width: int, height: int, top: float, *, closed: bool = False) -> str:
    """Lines through the values; where one is missing there is a gap."""
    across = width / max(len(values) - 1, 1)
    return "".join(_run(run, across, height, top, closed=closed) for run in _runs(values))


def _run(run: Sequence[tuple[int, float]], across: float, height: int, top: float, *, closed: bool) -> str:
    points = [f"{at * across:.1f} {_y(value, top, height):.1f}" for at, value in run]
    if len(points) == 1:
        points.append(f"{run[0][0] * across + 0.5:.1f} {_y(run[0][1], top, height):.1f}")
    path = "M" + "L".join(points)
    if closed:
        path += f"L{run[-1][0] * across:.1f} {height}L{run[0][0] * across:.1f} {height}Z"
    return path


def _runs(values: Values) -> Iterator[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for at, value in enumerate(values):
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []
    if run:
        yield run
