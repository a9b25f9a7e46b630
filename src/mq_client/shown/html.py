"""Tables for notebooks. Names and values are strangers' text: all of it is escaped, and cut short. Pure."""

from __future__ import annotations

import html
import reprlib
from collections.abc import Iterable, Sequence
from typing import Final

CELL_CHARACTERS_MAX: Final = 200

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = CELL_CHARACTERS_MAX
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 10


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], remark: str = "") -> str:
    """A table with a line above it, and one below if there is a remark."""
    head = "".join(f"<th>{_escaped(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(value)}</td>' for value in row)}</tr>" for row in rows)
    below = f"<p>{_escaped(remark, None)}</p>" if remark else ""
    return (
        f"<div><p>{_escaped(title, None)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{below}</div>"
    )


def numbers(values: Iterable[int]) -> str:
    """Numbers of brokers or partitions, as text."""
    return ", ".join(map(str, values))


def _escaped(value: object, characters_max: int | None = CELL_CHARACTERS_MAX) -> str:
    text = as_text(value)
    if characters_max is not None and len(text) > characters_max:
        text = text[:characters_max] + "…"
    return html.escape(text)


def as_text(value: object) -> str:
    """A value as a person reads it: bytes as text if they are UTF-8, long ones cut before they are looked at."""
    match value:
        case None:
            return "null"
        case str():
            return value
        case bytes():
            start = value[: 4 * CELL_CHARACTERS_MAX]
            try:
                return start.decode()
            except UnicodeDecodeError as error:
                # One that was cut within a character is text all the same.
                cut = len(value) > len(start) and error.start >= len(start) - 3
                return start[: error.start].decode() + "…" if cut else f"0x{start.hex()}"
        case list() | tuple() | dict():
            return _SHORT.repr(value)
        case _:
            return str(value)
