"""Reads a partition's log by offset. Touches no group; survives changes of leader by going on where it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

import grpc
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_client.channels import error_of, open_fetch
from mq_client.connection import Connection, TopicView
from mq_client.deadline import Backoff, Deadline, positive_ms
from mq_client.errors import (
    CorruptBatch,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    TritonMQError,
    UnknownTopic,
)
from mq_client.leaders import ask_offsets, topic_with
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch
from mq_protocol.envelope import split
from mq_protocol.errors import from_wire
from mq_protocol.row_filter import parse_filter

_ALL_COLUMNS_AGE_S = 1.0
"""Who reads all columns is to be given those just added: after so long it is asked again which there are."""


class StoredSlice(NamedTuple):
    """Rows of one stored batch, of the offsets `base_offset .. end_offset - 1`, in order. `timestamp_us`: the broker's clock when
    it was appended. `offsets`: of each row, if a filter has kept only some of them (perhaps none); None: all are there.
    """

    base_offset: int
    end_offset: int
    timestamp_us: int
    batch: pa.RecordBatch
    offsets: NDArray[np.int64] | None = None


class _Wanted(NamedTuple):
    """What the broker is asked to send of each row, and what is kept of that: None is everything. `schema`: of what comes."""

    columns: tuple[str, ...] | None
    filter: str
    schema: pa.Schema
    kept: tuple[str, ...] | None


class Reader:
    """Reads by offset. Thread-safe; each `read` is a stream of its own.

    `timeout_ms`: how long it goes on trying while nothing comes. `payload_bytes`: how much has come so far, as a measure of what
    `columns` and `filter` save.
    """

    def __init__(self, bootstrap: str | Sequence[str] | Connection, timeout_ms: float = limits.REQUEST_TIMEOUT_MS) -> None:
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._connection = bootstrap if isinstance(bootstrap, Connection) else Connection(bootstrap)
        self.payload_bytes = 0

    def read(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str = "",  # noqa: A002 - the word that SQL has for it
        chunk_bytes_max: int = limits.FETCH_CHUNK_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """The records `start .. end - 1` as they are stored, cut to exactly these offsets.

        All batches of a read have the same columns, those that the topic has when it begins; what was stored before a column was
        added has nulls there. `start` None: from the first that is kept; `end` None: to the end as it is now. `columns`: only
        these, in this order; `filter`: only rows for which it holds (mq_protocol/row_filter.py has its grammar); the rest never
        leaves the broker, unless leaving it out is not worth the work. Raises `OffsetOutOfRange` for what is no longer kept,
        `UnknownTopic`, `UnknownPartition`, `SchemaMismatch` for a column that the topic lacks, `InvalidSetting` for a filter that
        is not understood, `OutcomeUnknown` or `Unreachable` when nothing has come for `timeout_ms`.
        """
        for piece in self.read_stored(
            topic, partition, start, end, columns=columns, filter=filter, chunk_bytes_max=chunk_bytes_max
        ):
            if piece.batch.num_rows:
                yield piece.batch

    def read_stored(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str = "",  # noqa: A002
        chunk_bytes_max: int = limits.FETCH_CHUNK_BYTES,
    ) -> Iterator[StoredSlice]:
        """As `read`, with each batch's offsets and time; also those of which a filter has kept no row."""
        view = topic_with(
            self._connection,
            topic,
            [partition],
            Deadline(self._timeout_ms),
            columns=columns or (),
            check=(lambda view: parse_filter(filter, view.schema)) if filter else None,
            age_s_max=math.inf if columns is not None else _ALL_COLUMNS_AGE_S,
        )
        if start is None or end is None:
            asked = ask_offsets(self._connection, topic, Deadline(self._timeout_ms), partitions=[partition])[partition]
            start = asked.log_start_offset if start is None else start
            end = asked.log_end_offset if end is None else end
        if not 0 <= start <= end:
            raise InvalidRequest(f"cannot read offsets {start} to {end} of {topic!r}: give 0 <= start <= end")
        return self._follow(view, partition, start, end, _wanted(view, columns, filter), chunk_bytes_max)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """`{partition: (log_start_offset, log_end_offset)}`, asked now."""
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms))
        return {number: (found[number].log_start_offset, found[number].log_end_offset) for number in sorted(found)}

    def _follow(
        self, view: TopicView, partition: int, start: int, end: int, wanted: _Wanted, chunk_bytes_max: int
    ) -> Iterator[StoredSlice]:
        """Fetch after fetch, each from where the one before broke off, until `end`."""
        position = start
        backoff = Backoff()
        deadline = Deadline(self._timeout_ms)
        last: TritonMQError | None = None
        while position < end:
            address = self._connection.leader_address(view, partition)
            began_at = position
            try:
                if address is None:
                    raise NotLeader(f"topic {view.name!r} partition {partition} has no leader at the moment")
                request = pb.FetchRequest(
                    topic=view.name,
                    partition=partition,
                    start_offset=position,
                    end_offset=end,
                    leader_epoch=view.epochs[partition],
                    chunk_bytes_max=chunk_bytes_max,
                    columns=wanted.columns or (),
                    project=wanted.columns is not None,
                    filter=wanted.filter,
                )
                for piece in self._fetch(address, request, view, wanted):
                    position = piece.end_offset
                    yield piece
                if position == began_at:
                    raise OutcomeUnknown(f"broker at {address} ended a fetch of {view.name!r} without a batch")
            except TritonMQError as error:
                if not error.retriable:
                    raise
                last = error
                if isinstance(error, NotLeader):
                    self._connection.note_leader(view.name, partition, error)
            if position >= end:
                return
            if position > began_at:
                backoff.reset()
                deadline = Deadline(self._timeout_ms)
            elif deadline.expired:
                raise OutcomeUnknown(
                    f"topic {view.name!r} partition {partition}: nothing came from offset {position} on "
                    f"for {self._timeout_ms:.0f} ms, last: {last}"
                ) from last
            backoff.sleep(deadline)
            former, view = view, self._refresh(view, deadline)
            if position > start and view.topic_id != former.topic_id:
                raise UnknownTopic(f"topic {view.name!r} was deleted and made again while it was read: begin anew to read that one")

    def _refresh(self, view: TopicView, deadline: Deadline) -> TopicView:
        try:
            return self._connection.refresh(view.name, deadline)
        except TritonMQError as error:
            if not error.retriable:
                raise
            return view

    def _fetch(self, address: str, request: pb.FetchRequest, view: TopicView, wanted: _Wanted) -> Iterator[StoredSlice]:
        """One stream. Its time limit only bounds a broker that has stopped: a slow reader begins another where it was."""
        call = open_fetch(address, request, self._timeout_ms / 1000)
        position = request.start_offset
        try:
            for message in call:
                header: pb.BatchesHeader = message.header
                if header.HasField("error"):
                    raise from_wire(header.error)
                self.payload_bytes += len(message.payload)
                payloads = split(message.payload, (stored.payload_bytes for stored in header.batches))
                for stored, payload in zip(header.batches, payloads, strict=True):
                    piece = _slice(stored, payload, position, request.end_offset, wanted)
                    if piece is None:
                        raise CorruptBatch(
                            f"topic {view.name!r} partition {request.partition}: the batch at offset {stored.base_offset} is not "
                            f"what its broker says ({stored.record_count} records said, {position} wanted)"
                        )
                    if piece.end_offset > position:
                        yield piece
                        position = piece.end_offset
        except grpc.RpcError as error:
            raise error_of(error, address) from None
        finally:
            call.cancel()

    def close(self) -> None:
        """Nothing needs closing: channels are the process's. Here so that all clients end alike."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _wanted(view: TopicView, columns: Sequence[str] | None, filter_text: str) -> _Wanted:
    """A projection costs the broker a copy of what it sends: it is asked for one only if that leaves out something worth it, which
    a record's empty headers beside its value are not.
    """
    if columns is None:
        return _Wanted(None, filter_text, view.schema, None)
    missing = [name for name in view.schema.names if name not in columns]
    if not missing or (not view.typed and "value" in columns):
        return _Wanted(None, filter_text, view.schema, tuple(columns))
    return _Wanted(tuple(columns), filter_text, pa.schema([view.schema.field(name) for name in columns]), None)


def _slice(stored: pb.StoredBatch, payload: memoryview, position: int, end: int, wanted: _Wanted) -> StoredSlice | None:
    """The part of a stored batch within `position .. end - 1`; None if it is not what its description says."""
    base, upto = stored.base_offset, min(stored.base_offset + stored.record_count, end)
    skip, take = position - base, upto - position
    if skip < 0:
        return None
    if not stored.HasField("kept"):
        batch = decode_batch(payload, wanted.schema, wanted.kept)
        if batch.num_rows != stored.record_count:
            return None
        return StoredSlice(position, upto, stored.timestamp_us, batch.slice(skip, max(0, take)) if take < batch.num_rows else batch)
    kept = np.unpackbits(np.frombuffer(stored.kept, dtype=np.uint8), bitorder="little")
    offsets = base + np.flatnonzero(kept).astype(np.int64)
    if len(offsets):
        batch = decode_batch(payload, wanted.schema, wanted.kept)
    else:
        batch = pa.RecordBatch.from_pylist([], schema=wanted.schema).select(wanted.kept or wanted.schema.names)
    if batch.num_rows != len(offsets) or (len(offsets) and not position <= offsets[0] <= offsets[-1] < upto):
        return None
    return StoredSlice(position, upto, stored.timestamp_us, batch, offsets)
