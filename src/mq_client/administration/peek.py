"""The next records of a group, read by offset: nothing is moved, and nobody else is given less for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import ask_offsets
from mq_client.consuming.record_queue import ConsumerRecord, batch_to_records
from mq_client.consuming.slices import up_to_bytes
from mq_client.reader import Reader
from mq_protocol import limits

PEEK_RECORDS_MAX: Final = 10_000
PEEK_BYTES_MAX: Final = 16 << 20
"""Of what brokers send: an answer that is held in memory at once."""

_ROOM_BYTES: Final = limits.BATCH_DECODED_BYTES_CEILING
"""Of what that decompresses to."""


def peek(
    connection: Connection, topic: str, places: Mapping[int, int], count: int, timeout_ms: float
) -> list[ConsumerRecord]:
    """The first `count` records at or after `places[partition]`, from the partitions in turn.

    A partition without a place is read from its first record.
    """
    found = ask_offsets(connection, topic, Deadline(timeout_ms), or_replicas=True)
    starts = {number: max(places.get(number, 0), asked.log_start_offset) for number, asked in found.items()}
    shares = shared_out(count, {number: asked.log_end_offset - starts[number] for number, asked in found.items()})
    typed = connection.topic(topic, Deadline(timeout_ms)).typed
    reader, records, left, room = Reader(connection, timeout_ms), list[ConsumerRecord](), PEEK_BYTES_MAX, _ROOM_BYTES
    for number, share in sorted(shares.items()):
        start, chunk = starts[number], max(1, left // len(shares))
        pieces = reader.read_stored(topic, number, start, start + share, chunk_bytes_max=chunk, timeout_ms=timeout_ms)
        for piece in up_to_bytes(pieces, left):
            left -= piece.sent_bytes
            room -= piece.batch.nbytes
            records += batch_to_records(piece.batch, topic, number, piece.base_offset, piece.timestamp_us, typed=typed)
            if room <= 0:
                return records
        if left <= 0:
            break
    return records


def shared_out(count: int, behind: Mapping[int, int]) -> dict[int, int]:
    """How many records each partition gives: one each in turn, by number, until there are `count` or no more."""
    shares = dict.fromkeys((number for number in sorted(behind) if behind[number] > 0), 0)
    open_, left = list(shares), count
    while open_ and left:
        each = max(1, min(left // len(open_), min(behind[number] - shares[number] for number in open_)))
        for number in open_[:left]:
            shares[number] += each
        left -= each * len(open_[:left])
        open_ = [number for number in open_ if shares[number] < behind[number]]
    return {number: share for number, share in shares.items() if share}
