"""Reads a partition's log by offset. Touches no group; survives changes of leader by going on where it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Backoff, Deadline, positive_ms
from mq_client.cluster.lines import FetchCall
from mq_client.cluster.listening import REFUSED_S
from mq_client.cluster.replicas import Replicas
from mq_client.cluster.requests import ask_offsets, topic_with
from mq_client.consuming.slices import StoredSlice, Wanted, cut, payloads_of, up_to_bytes, wanted_of
from mq_client.errors import (
    CorruptBatch,
    InvalidRequest,
    InvalidSetting,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    OutcomeUnknown,
    PartitionUnavailable,
    TritonMQError,
    UnknownTopic,
)
from mq_client.rows import Bound, Fetch, Rows, spans_of
from mq_client.security import Security
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.sql.row_filter import parse_filter
from mq_protocol.wire.error_messages import from_wire

_ALL_COLUMNS_AGE_S = 1.0
"""Who reads all columns is to be given those just added: after so long it is asked again which there are."""

_LEADER_AGE_S = 1.0
"""A leader that says where the log ends may have been deposed without knowing: after so long it is asked again who
leads."""

_ATTEMPT_MS = 10_000.0
"""For one stream of a read that can go on at another replica: one that hangs must not take all the time there is."""

__all__ = ["Reader", "StoredSlice"]


class _Read(NamedTuple):
    """One read. `until`: when it ends with what has come by then, in place of an error; None: it does not. `topic_id`:
    of the topic that its offsets are of; empty: of whichever has the name when it begins."""

    partition: int
    start: int
    end: int
    wanted: Wanted
    chunk_bytes_max: int
    until: Deadline | None
    topic_id: str = ""


class Reader:
    """Reads records by offset, as often as one likes. Touches no group. Thread-safe; each `read` is a stream of its
    own.

    `timeout_ms`: how long a read goes on trying while nothing comes. `read_from`: "leader" asks a partition's leader
    first, "any" a replica in `rack` if that is given, else one by chance; both go on at another replica if that one
    fails, and both give committed records only. `payload_bytes`: how much has come so far, as a measure of what
    `columns` and `filter` save.

    Raises `InvalidSetting` for a value that makes no sense.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Connection,
        timeout_ms: float = limits.REQUEST_TIMEOUT_MS,
        *,
        read_from: str = "leader",
        rack: str = "",
        security: Security | None = None,
        forward: bool | None = None,
    ) -> None:
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._connection = (
            bootstrap
            if isinstance(bootstrap, Connection)
            else Connection(bootstrap, refused_s=REFUSED_S, security=security, forward=forward)
        )
        self._replicas = Replicas(self._connection, read_from, rack)
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
        max_bytes: int | None = None,
        timeout_ms: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The records `start .. end - 1` as they are stored, cut to exactly these offsets.

        `start` None: from the first record that is kept. `end` None: to the end of the log as it is now. An `end`
        beyond that is waited for: what is there comes at once, the rest as it is published.

        `timeout_ms` None: raises when nothing has come for the reader's `timeout_ms`. A number: the read ends after
        that time in all, with what has come by then. `max_bytes`: ends before the record with which more than that
        would have been sent, but gives one at least.

        All batches of a read have the same columns, those that the topic has when it begins; what was stored before a
        column was added has nulls there. `columns`: only these, in this order. `filter`: only rows for which it holds
        (mq_protocol/sql/row_filter.py has its grammar). What is left out never leaves the broker, unless that is not
        worth the work.

        Raises `NotYetWritten` when the log has ended before `end` and nothing more came, `OffsetOutOfRange` for a
        `start` beyond the end of the log or for records that are no longer kept, `PartitionUnavailable` when no replica
        answered. All that came before has been given by then. Raises at once `UnknownTopic`, `UnknownPartition`,
        `SchemaMismatch` for a column that the topic lacks, `InvalidSetting` for a filter that is not understood,
        `InvalidRequest`, `Unreachable`.
        """
        pieces = self.read_stored(
            topic,
            partition,
            start,
            end,
            columns=columns,
            filter=filter,
            chunk_bytes_max=chunk_bytes_max,
            timeout_ms=timeout_ms,
        )
        if max_bytes is not None and max_bytes < 1:
            raise InvalidSetting(f"max_bytes={max_bytes} must be positive")
        return _batches(pieces if max_bytes is None else up_to_bytes(pieces, max_bytes))

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
        timeout_ms: float | None = None,
        topic_id: str = "",
    ) -> Iterator[StoredSlice]:
        """As `read`, with each batch's offsets and time; also those of which a filter has kept no row. `topic_id`: of
        the topic that the offsets are of. Raises `UnknownTopic` where another has the name."""
        until = None if timeout_ms is None else Deadline(positive_ms("timeout_ms", timeout_ms))
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
            asked = ask_offsets(
                self._connection, topic, Deadline(self._timeout_ms), partitions=[partition], or_replicas=True
            )
            start = asked[partition].log_start_offset if start is None else start
            end = max(start, asked[partition].log_end_offset) if end is None else end
        if not 0 <= start <= end:
            raise InvalidRequest(f"cannot read offsets {start} to {end} of {topic!r}: give 0 <= start <= end")
        return self._follow(
            view, _Read(partition, start, end, wanted_of(view, columns, filter), chunk_bytes_max, until, topic_id)
        )

    def rows(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Bound = "earliest",
        end: Bound = "latest",
        columns: Sequence[str] | None = None,
        filter: str = "",  # noqa: A002
        records_max: int | None = None,
    ) -> Rows:
        """A part of a topic as a table, which pyarrow, polars, DuckDB and pandas take: see `Rows`. Its offsets are
        fixed now; its rows are read when they are needed.

        `partitions`: None for all. `start`, `end`: "earliest", "latest", a datetime with a zone (the first offset that
        was appended then or later), an offset, or `{partition: any of these}`, where partitions that are left out have
        the default. The rows end before `end`. `columns`, `filter`: as for `read`. `records_max`: so many rows at most,
        the first ones by partition and offset.

        Raises `OffsetOutOfRange` for an offset of which the records are no longer kept or not yet written,
        `InvalidRequest` for a start behind its end, and what `read` raises at once.
        """
        if isinstance(columns, str):
            raise InvalidRequest(f"columns={columns!r} is one text: give a list of names, [{columns!r}]")
        if records_max is not None and records_max < 0:
            raise InvalidSetting(f"records_max={records_max} is negative: give a number of rows, or leave it out")
        deadline = Deadline(self._timeout_ms)
        self._connection.refresh(topic, deadline, age_ms_max=0)
        view = topic_with(
            self._connection,
            topic,
            partitions or (),
            deadline,
            columns=columns or (),
            check=(lambda view: parse_filter(filter, view.schema)) if filter else None,
        )
        chosen = list(range(view.partitions)) if partitions is None else sorted(set(partitions))
        spans = spans_of(self._connection, view, chosen, start, end, deadline)
        all_wanted, none_wanted = wanted_of(view, columns, filter), wanted_of(view, (), filter)

        def fetch(asked: Fetch) -> Iterator[StoredSlice]:
            return self._follow(
                view,
                _Read(
                    asked.span.partition,
                    asked.span.start,
                    asked.span.end,
                    none_wanted if asked.count_only else all_wanted,
                    asked.chunk_bytes_max or limits.FETCH_CHUNK_BYTES,
                    asked.until,
                    view.topic_id,
                ),
            )

        schema = view.schema if columns is None else pa.schema([view.schema.field(name) for name in columns])
        return Rows(topic, spans, schema, filter, records_max, fetch)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """`{partition: (log_start_offset, log_end_offset)}`, asked now: as `Admin.offsets`."""
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms), or_replicas=True)
        return {number: (found[number].log_start_offset, found[number].log_end_offset) for number in sorted(found)}

    def _follow(self, view: TopicView, read: _Read) -> Iterator[StoredSlice]:
        """Fetch after fetch, each from where the one before broke off, until the end of what is to be read.

        Replicas are asked in turn, each once; after the last it waits a moment, looks at who leads, and begins with the
        first.
        """
        position, backoff, deadline = read.start, Backoff(), Deadline(self._timeout_ms)
        untried = self._replicas.addresses(view, read.partition)
        last: TritonMQError | None = None
        beyond, doubted = 0, ""
        while position < read.end:
            began_at = position
            try:
                if not untried:
                    raise NotLeader(f"topic {view.name!r} partition {read.partition} has no leader at the moment")
                for piece in self._fetch(
                    untried[0], self._request(view, read, position), read, alone=len(untried) == 1
                ):
                    position = piece.end_offset
                    yield piece
                    if read.until is not None and read.until.expired:
                        return
                if position == began_at:
                    raise OutcomeUnknown(f"broker at {untried[0]} ended a fetch of {view.name!r} without a batch")
            except TritonMQError as error:
                if not (isinstance(last, NotYetWritten) and read.until is not None and read.until.expired):
                    last = error  # else it is the time that broke off the last of several looks at the end of the log
                is_beyond = isinstance(error, OffsetOutOfRange) and error.next_offset < 0
                beyond += is_beyond
                if not error.retriable and not (is_beyond and beyond == 1):
                    raise  # beyond the end: only a second time, after a look at who leads (rule 3)
                doubted = untried[0] if untried else ""
                if isinstance(error, NotLeader):
                    self._connection.note_leader(view.name, read.partition, error)
                untried = [] if isinstance(error, NotYetWritten | OffsetOutOfRange) else untried[1:]
            if position > began_at:
                backoff.reset()
                deadline = Deadline(self._timeout_ms)
            if position >= read.end or (untried and not (read.until and read.until.expired)):
                continue
            if self._over(view, read, position, deadline, last):
                return
            backoff.sleep(deadline if read.until is None else read.until)
            former, view = view, self._look_again(view, read.until or deadline, last, doubted)
            if (read.topic_id or position > read.start) and view.topic_id != former.topic_id:
                raise UnknownTopic(
                    f"topic {view.name!r} was deleted and made again while it was read: begin anew to read that one"
                )
            untried = self._replicas.addresses(view, read.partition)

    def _over(
        self, view: TopicView, read: _Read, position: int, deadline: Deadline, last: TritonMQError | None
    ) -> bool:
        """Whether the time that was given is over. Raises what holds, where that was not to end the read with what has
        come."""
        limit = deadline if read.until is None else read.until
        if not limit.expired:
            return False
        if read.until is not None and (position > read.start or isinstance(last, NotYetWritten)):
            return True
        if isinstance(last, OffsetOutOfRange):
            raise last
        place = f"topic {view.name!r} partition {read.partition}"
        if isinstance(last, NotYetWritten):
            raise NotYetWritten(
                f"{place} ends at offset {position}, and nothing came there for {limit.timeout_ms:.0f} ms: all before "
                f"it was given; read on from {position} later, or give timeout_ms= to have what is there"
            ) from last
        raise PartitionUnavailable(
            f"{place}: no replica gave offset {position} within {limit.timeout_ms:.0f} ms, last: {last}; all before it "
            "was given"
        ) from last

    def _look_again(self, view: TopicView, deadline: Deadline, last: TritonMQError | None, doubted: str) -> TopicView:
        """The topic as it is now; as it was known if nobody answers."""
        try:
            if isinstance(last, NotYetWritten):
                return self._connection.topic(view.name, deadline, _LEADER_AGE_S)
            return self._connection.refresh(view.name, deadline, (doubted,))
        except TritonMQError as error:
            if not error.retriable:
                raise
            return view

    @staticmethod
    def _request(view: TopicView, read: _Read, position: int) -> pb.FetchRequest:
        return pb.FetchRequest(
            topic=view.name,
            partition=read.partition,
            start_offset=position,
            end_offset=read.end,
            leader_epoch=view.epochs[read.partition],
            chunk_bytes_max=read.chunk_bytes_max,
            columns=read.wanted.columns or (),
            project=read.wanted.columns is not None,
            filter=read.wanted.filter,
            topic_id=read.topic_id or (view.topic_id if position > read.start else ""),
        )

    def _fetch(self, address: str, request: pb.FetchRequest, read: _Read, *, alone: bool) -> Iterator[StoredSlice]:
        """One stream. Its time limit only bounds a broker that has stopped: a slow reader begins another where it
        was."""
        limit = Deadline(self._timeout_ms if alone else min(self._timeout_ms / 2, _ATTEMPT_MS))
        if read.until is not None:
            limit = limit.at_most(read.until.remaining_s * 1000)
        call = FetchCall(address, request, limit.remaining_s, self._connection.client)
        position = request.start_offset
        try:
            for message in call:
                header: pb.BatchesHeader = message.header
                if header.HasField("error"):
                    raise from_wire(header.error)
                self.payload_bytes += len(message.payload)
                for stored, payload in zip(header.batches, payloads_of(header.batches, message.payload), strict=True):
                    if stored.record_count and stored.base_offset + stored.record_count <= position:
                        continue  # it was given already
                    piece = cut(stored, payload, position, request.end_offset, read.wanted)
                    if piece.end_offset > position:
                        yield piece
                        position = piece.end_offset
        except CorruptBatch as error:
            raise CorruptBatch(
                f"topic {request.topic!r} partition {request.partition} from the broker at {address}: {error}"
            ) from error
        finally:
            call.cancel()

    def close(self) -> None:
        """Nothing needs closing: connections are the process's. Here so that all clients end alike."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _batches(pieces: Iterator[StoredSlice]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        if piece.batch.num_rows:
            yield piece.batch
