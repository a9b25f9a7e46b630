"""Which span something belongs to, as the W3C's trace context has it (https://www.w3.org/TR/trace-context/).

In the header of a batch it is 25 bytes: 16 of the trace, 8 of the span, and the flags. In a record it is the text of
the header `traceparent`. Both come from strangers: a batch with other bytes is refused, and a text that is none counts
as none, as the standard demands.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mq_protocol.errors import InvalidRequest

HEADER: Final = "traceparent"
"""The record's header."""

BYTES: Final = 25
_SAMPLED: Final = 1
_TEXT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]{0,200})?")


class TraceParent(NamedTuple):
    """A span of a trace. Neither id is 0."""

    trace_id: int
    span_id: int
    flags: int = _SAMPLED

    @property
    def sampled(self) -> bool:
        """Whether its spans are recorded."""
        return bool(self.flags & _SAMPLED)

    def __bytes__(self) -> bytes:
        return self.trace_id.to_bytes(16) + self.span_id.to_bytes(8) + self.flags.to_bytes(1)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def from_bytes(data: bytes) -> TraceParent:
    """Raises `InvalidRequest`."""
    if len(data) != BYTES:
        raise InvalidRequest(f"`traceparent` has {BYTES} bytes, or none; this one has {len(data)}")
    trace_id, span_id = int.from_bytes(data[:16]), int.from_bytes(data[16:24])
    if not trace_id or not span_id:
        raise InvalidRequest("`traceparent` names no trace or no span: its bytes are all zero")
    return TraceParent(trace_id, span_id, data[24])


def from_text(text: bytes | None) -> TraceParent | None:
    """None for what is no `traceparent`. Of a later version than 00 more may follow, which is not looked at."""
    found = _TEXT.fullmatch(text) if text else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5] is not None):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return TraceParent(trace_id, span_id, int(found[4], 16)) if trace_id and span_id else None
