"""A pushed batch that several consumers of a process hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from mq_client.consuming.slices import rows_sent
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.ipc_message import node_count

if TYPE_CHECKING:
    from mq_client.consuming.record_queue import ConsumerRecord


class SharedBatch:
    """Owns one batch. Whoever needs it first decodes it for all; each has its own place in it.

    What is decoded takes several times the payload, so it is kept only for a while (`keep_no_more`): a consumer that
    comes late decodes for itself. Records whose values are columns are made for each consumer, since it may change
    them.
    """

    def __init__(self, stored: pb.StoredBatch, payload: memoryview) -> None:
        self.topic: str = stored.topic
        self.partition: int = stored.partition
        self.base_offset: int = stored.base_offset
        self.record_count: int = stored.record_count
        self.timestamp_us: int = stored.timestamp_us
        self.payload = payload
        self._stored = stored
        self._lock = threading.Lock()
        self._is_kept = True
        # Of the schema with that fingerprint: a consumer may have heard of columns that another has not heard of
        self._rows: tuple[int, pa.RecordBatch] | None = None
        self._records: tuple[int, Sequence[ConsumerRecord]] | None = None
        self._nodes = -1

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count

    @property
    def nodes(self) -> int:
        """As `node_count` of its payload."""
        if self._nodes < 0:
            self._nodes = node_count(self.payload)
        return self._nodes

    def rows(self, schema: pa.Schema, fingerprint: int) -> pa.RecordBatch:
        """Its rows, for whoever knows the topic with this schema."""
        with self._lock:
            return self._decode(schema, fingerprint)

    def records(
        self, schema: pa.Schema, fingerprint: int, make: Callable[[pa.RecordBatch], Sequence[ConsumerRecord]]
    ) -> Sequence[ConsumerRecord]:
        """What `make` makes of its rows, for whoever changes nothing in it."""
        with self._lock:
            if self._records is not None and self._records[0] == fingerprint:
                return self._records[1]
            made = make(self._decode(schema, fingerprint))
            if self._is_kept:
                self._records = fingerprint, made
            return made

    def keep_no_more(self) -> None:
        """Who comes from now on decodes for itself."""
        with self._lock:
            self._is_kept = False
            self._rows = self._records = None

    def _decode(self, schema: pa.Schema, fingerprint: int) -> pa.RecordBatch:
        if self._rows is not None and self._rows[0] == fingerprint:
            return self._rows[1]
        batch = rows_sent(self._stored, self.payload, schema)
        if self._is_kept:
            self._rows = fingerprint, batch
        return batch
