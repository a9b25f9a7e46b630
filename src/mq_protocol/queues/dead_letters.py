"""What a dead letter says of itself: in headers, as text, where it is a record; in one struct column where the topic
has columns of its own. Whoever writes dead letters uses these names."""

from __future__ import annotations

from typing import Final

HEADERS: Final = {
    "error": "tritonmq.error",
    "topic": "tritonmq.topic",
    "partition": "tritonmq.partition",
    "offset": "tritonmq.offset",
    "timestamp": "tritonmq.timestamp",
    "group": "tritonmq.group",
    "reason": "tritonmq.reason",
    "deliveries": "tritonmq.deliveries",
    "failures": "tritonmq.failures",
    "hops": "tritonmq.hops",
}
"""Of a letter that a queue group sends: why it is one, where it was, of which group, and how often it was lent and
failed. `hops`: how often a record was sent as a dead letter, this time included."""

HOPS_MAX: Final = 16
"""A record that was sent so often is parked instead."""

DEAD_COLUMN: Final = "_dead"
"""The struct column of a typed dead-letter topic, with the fields of `HEADERS`."""
