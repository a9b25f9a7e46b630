"""Rows that go with the answer to who was lent them, so that a member that is lent few need not ask once more.

A batch of which most was lent goes as it is stored. Of others the lent rows are taken out, which decodes the batch: so
much of it, at most, that this broker's loop may do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_broker.broker.data.pushdown import stored
from mq_broker.broker.host.partition import Partition
from mq_broker.core.messages import Published
from mq_broker.core.work.ranges import Range, joined
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch, schema_nodes
from mq_protocol.errors import CorruptBatch, TritonMQError
from mq_protocol.wire.envelope import Buffer
from mq_protocol.wire.ipc_message import node_count

ROWS_BYTES_MAX: Final = 1 << 20
"""Of rows in one answer, and of what is decoded for it."""

BATCHES_MAX: Final = 64
RANGES_MAX: Final = 1_000

Rows: TypeAlias = list[tuple[pb.StoredBatch, Buffer]]
_Places: TypeAlias = NDArray[np.int64]


def lent_rows(partition: Partition, ranges: Sequence[Range], bytes_max: int) -> Rows:
    """All rows of these records, which ascend, by batch; nothing if they take more than `bytes_max`, or cost this
    broker too much. Then the member fetches them, and is told what is wrong with those that cannot be read."""
    if not bytes_max or len(ranges) > RANGES_MAX or partition.closed:
        return []
    try:
        chosen = _chosen(partition, joined(ranges), min(bytes_max, ROWS_BYTES_MAX))
        return [_rows(partition, batch, places) for batch, places in chosen]
    except (TritonMQError, pa.ArrowException):
        return []


def _chosen(partition: Partition, ranges: Sequence[Range], bytes_max: int) -> list[tuple[Published, _Places]]:
    """The batches that have these records, each with the places of its records among them. None of them is read yet."""
    chosen: list[tuple[Published, list[_Places]]] = []
    for first, end in ranges:
        at = first
        while at < end:
            if not chosen or chosen[-1][0].base_offset + chosen[-1][0].record_count <= at:
                if len(chosen) == BATCHES_MAX:
                    return []
                chosen.append((partition.index.find(at), []))
            batch, parts = chosen[-1]
            upto = min(end, batch.base_offset + batch.record_count)
            parts.append(np.arange(at - batch.base_offset, upto - batch.base_offset))
            at = upto
    found = [(batch, np.concatenate(parts)) for batch, parts in chosen]
    decoded = sum(batch.decoded_bytes for batch, places in found if not _whole(batch, places))
    sent = sum(
        batch.payload_bytes if _whole(batch, places) else batch.decoded_bytes * len(places) // batch.record_count
        for batch, places in found
    )
    return found if decoded <= ROWS_BYTES_MAX and sent <= bytes_max else []


def _whole(batch: Published, places: _Places) -> bool:
    return 2 * len(places) >= batch.record_count


def _rows(partition: Partition, batch: Published, places: _Places) -> tuple[pb.StoredBatch, Buffer]:
    [(_, payload)] = partition.read(batch.base_offset, batch.base_offset + 1, 1)
    described = stored(batch)
    if _whole(batch, places):
        return described, payload
    schema = partition.topic.schema
    if node_count(payload) > schema_nodes(schema):
        raise CorruptBatch("this broker has not heard yet of columns that were added")
    rows, first, count = decode_batch(payload, schema), int(places[0]), len(places)
    if places[-1] - first == count - 1:  # they are a batch of their own, and a view
        sent = memoryview(encode_batch(rows.slice(first, count)))
        described.base_offset += first
        described.record_count = count
    else:
        sent = memoryview(encode_batch(rows.take(pa.array(places))))
        kept = np.zeros(batch.record_count, dtype=np.bool_)
        kept[places] = True
        described.kept = np.packbits(kept, bitorder="little").tobytes()
    described.payload_bytes = len(sent)
    return described, sent
