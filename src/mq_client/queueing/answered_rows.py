"""Rows that came with a lease: then nothing needs to be fetched. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mq_client.cluster.connection import TopicView
from mq_client.consuming.slices import StoredSlice, cut, wanted_of
from mq_client.errors import TritonMQError
from mq_client.queueing.leases import HeldLease
from mq_client.queueing.shelf import Rows, rows_of
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_nodes
from mq_protocol.ipc_message import node_count


def slices_in(
    answer: pb.LeaseResponse, payloads: Sequence[memoryview], view: TopicView | None
) -> Sequence[StoredSlice]:
    """The batches of a lease, whose payloads came beside it. None if it has none, or what cannot be read: it is fetched
    then, and whoever fetches it finds out what is wrong. `view`: the topic as it is known."""
    if not answer.batches or view is None:
        return ()
    wanted = wanted_of(view, None, "")
    slices, decoded = [], 0
    try:
        for stored, payload in zip(answer.batches, payloads, strict=True):
            if view.typed and node_count(payload) > schema_nodes(view.schema):
                return ()  # columns were added that are not known here yet
            end = stored.base_offset + stored.record_count
            piece = cut(stored, payload, stored.base_offset, end, wanted)
            decoded += piece.batch.nbytes
            if not piece.batch.num_rows or decoded > limits.BATCH_DECODED_BYTES_CEILING:
                return ()
            slices.append(piece)
    except (TritonMQError, ValueError):
        return ()
    return slices


def rows_in(slices: Sequence[StoredSlice], lease: HeldLease, topic: str, *, typed: bool) -> list[Rows]:
    """All rows of the lease; none unless all are there."""
    found = []
    upto = 0
    for piece in slices:
        if piece.offsets is None:
            first, batch = rows_of(lease, piece.base_offset, piece.batch)
        else:
            first, batch = upto, piece.batch
            if not np.array_equal(lease.offsets[first : first + batch.num_rows], piece.offsets):
                return []
        if first != upto or not batch.num_rows:
            return []
        upto += batch.num_rows
        found.append(Rows(lease, first, batch, piece.timestamp_us, topic, typed))
    return found if upto == len(lease.offsets) else []
