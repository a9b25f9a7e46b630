"""What partitions, or brokers, tell of one topic or group, put together."""

from __future__ import annotations

from mq_protocol import mq_pb2 as pb


def add_topic(total: pb.ObservedTopic, row: pb.ObservedTopic) -> None:
    """Count `row` in."""
    total.led += row.led
    total.records += row.records
    total.bytes += row.bytes
    total.staged_batches += row.staged_batches
    if row.oldest_staged_us:
        total.oldest_staged_us = min(total.oldest_staged_us or row.oldest_staged_us, row.oldest_staged_us)


def add_group(total: pb.ObservedGroup, row: pb.ObservedGroup) -> None:
    """Count `row` in. A member usually is one of several leaders' at once: the most that one knows are not too many."""
    if row.label and not (total.label and total.moved_us >= row.moved_us):
        total.label = row.label
    total.members = max(total.members, row.members)
    total.lag += row.lag
    total.lag_bytes += row.lag_bytes
    total.lag_us = max(total.lag_us, row.lag_us)
    total.moved_us = max(total.moved_us, row.moved_us)
