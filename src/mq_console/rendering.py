"""Values as HTML, as lines in SVG, and as JSON. Whatever is text is escaped, and what is not seen in it is shown as an
escape. Lines are drawn of numbers alone: no text from outside is in them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from mq_console.history import STEP_S
from mq_protocol.shown import bytes_text, counted, duration_text, printable, time_text

TEMPLATES: Final = Path(__file__).parent / "templates"

Values = Sequence[float | None]

_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 24
_WIDTH: Final = 720
_HEIGHT: Final = 160
_POINTS_MIN: Final = 36


def environment() -> Environment:
    """Templates with the filters that they use."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=lambda value: "" if value is None else f"{value:,}",
        rate=rate_text,
        bytes=bytes_text,
        duration_us=lambda value: duration_text(value // 1000),
        seconds=lambda value: duration_text(int(value * 1000)),
        time=moment_text,
        moment=lambda value: moment_text(value).replace("T", " ").removesuffix("Z"),
        clock=lambda value: moment_text(value)[11:19],
        metric=metric_text,
        setting=setting_text,
        thing=lambda many: many.removesuffix("s"),
        path=lambda text: quote(text, safe=""),
        exact=lambda text: Markup(escape(text)),  # noqa: S704 - escaped: a value that goes back as it is
        lines=lambda text: Markup(escape(printable(text, "\n\t"))),  # noqa: S704 - escaped
        indented=indented,
    )
    made.globals.update(
        sparkline=sparkline,
        chart=lambda values, label, what: chart(values, _LABELS[label], STEP_S, what),
        counted=counted,
    )
    return made


_LABELS: Final = {
    "rate": lambda value: f"{rate_text(value)}/s",
    "count": lambda value: f"{value:,.0f}",
    "duration_us": lambda value: duration_text(int(value) // 1000),
}


def _shown(value: Any) -> Any:
    """What a template writes: text from outside with nothing that is not seen."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def rate_text(value: float | None) -> str:
    """Per second, with as many digits as say something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}" if value >= 0.1 else "<0.1"


def moment_text(timestamp_us: int) -> str:
    """As `time_text`; a producer may write any time, and Python's calendar has an end."""
    try:
        return time_text(timestamp_us)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_us} µs"


def metric_text(value: float, name: str) -> str:
    """In the unit that a metric's name ends with."""
    if name.removesuffix("_max").endswith("_bytes"):
        return bytes_text(int(value))
    if name.endswith("_seconds"):
        return f"{value:,.3f} s"
    return f"{value:,.0f}"


def setting_text(value: str, name: str) -> str:
    """A topic's setting; a size with its unit too."""
    if "bytes" in name and value.isascii() and value.isdigit():
        return f"{bytes_text(int(value))} ({int(value):,})"
    return value


def indented(text: str) -> str:
    """JSON on several lines, if it is JSON; else the text."""
    if text[:1] in "{[":
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return text


def as_json(data: Any) -> bytes:
    """Dataclasses by the names of their fields. Characters that end a script, were it put into one, are escapes."""
    text = json.dumps(plain(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode()


def plain(value: Any) -> Any:
    """What JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


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
