"""Text from outside, made harmless for a terminal and for a log: what is not seen is written as an escape.

Control characters move the cursor, change colours and titles, and forge lines; format characters turn the direction of
text round.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from types import TracebackType
from typing import Final

from mq_process.logs import JsonLines
from mq_protocol.shown import printable as printable

LINES: Final = "\n\t"
"""What a text of several lines may keep."""

_BEFORE_A_LINE: Final = "  | "

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def printable_bytes(data: bytes) -> bytes:
    """As `printable`, of what should be UTF-8; bytes that are none are escapes as well. Line ends and tabs stay."""
    return printable(data.decode("utf-8", "backslashreplace"), LINES).encode()


def printable_json(document: str) -> str:
    """The document on one line, its text escaped as JSON does it: it means what it meant."""
    if document.isprintable():
        return document
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in document)


class OneLine(logging.Formatter):
    """Each record is one line, whatever text from outside is in it. A traceback's lines begin with a bar, as no record
    does."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging names it so
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802 - logging names it so
        return _behind_a_bar(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging names it so
        return _behind_a_bar(super().formatStack(stack_info))


def _behind_a_bar(text: str) -> str:
    return "\n".join(_BEFORE_A_LINE + printable(line) for line in re.split("\r\n|[\n\r]", text))


def log_to_stderr(level: str, *, as_json: bool = False, **always: object) -> None:
    """For a process of ours: what it logs goes to standard error, a line a record, with its date and time in UTC.
    `always`: what each JSON line has beside."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = OneLine("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime  # UTC, so that logs of several machines can be read together
    handler.setFormatter(JsonLines(always) if as_json else formatter)
    logging.basicConfig(handlers=[handler], level=level.upper())
