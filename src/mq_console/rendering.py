"""Values as HTML and as JSON. Whatever is text is escaped, and what is not seen in it is shown as an escape."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from mq_console.charts import chart, sparkline
from mq_console.history import STEP_S
from mq_protocol.shown import bytes_text, counted, duration_text, printable, time_text

TEMPLATES: Final = Path(__file__).parent / "templates"


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
