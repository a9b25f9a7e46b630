"""A part of a topic as a table: what pyarrow, pandas, polars and DuckDB take without a copy through Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from mq_client.cluster.deadline import Deadline
from mq_client.consuming.slices import StoredSlice
from mq_client.errors import TritonMQError
from mq_client.shown.html import table

if TYPE_CHECKING:
    import pandas as pd

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.requests import ask_offsets
from mq_client.errors import InvalidRequest, InvalidSetting, OffsetOutOfRange, UnknownPartition
from mq_client.producing.batches import to_timestamp_us
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import did_you_mean

SHOWN_ROWS: Final = 10
SHOWN_CHUNK_BYTES: Final = 64 << 10
SHOWN_WITHIN_MS: Final = 2_000.0
"""For so long a notebook waits for the first rows."""


class Span(NamedTuple):
    """The offsets `start .. end - 1` of a partition."""

    partition: int
    start: int
    end: int


class Fetch(NamedTuple):
    """One read of a span: of the columns that were asked for, or (`count_only`) of none. `until`: when it ends with
    what has come by then; None: it goes on until all is there, and raises if nothing more comes."""

    span: Span
    count_only: bool = False
    chunk_bytes_max: int | None = None
    until: Deadline | None = None


class Rows:
    """Records of a topic, as a table that is read when it is needed, and again each time: memory holds none of it.

    `Reader.rows` makes it. Its offsets were fixed then: records that come later are not in it, and each read gives the
    same rows in the same order, by partition and offset. Whatever takes a table by Arrow's stream protocol takes this:
    `polars.DataFrame(rows)`, `duckdb.sql("from rows")`, `pyarrow.table(rows)`. `len(rows)` is the number of rows; with
    a filter it has to read (no columns) to know.

    A read raises what `Reader.read` does: `OffsetOutOfRange` if records are no longer kept, `UnknownTopic` if the topic
    was deleted, also if it was made again.
    """

    def __init__(
        self,
        topic: str,
        spans: Sequence[Span],
        schema: pa.Schema,
        filter_text: str,
        records_max: int | None,
        fetch: Callable[[Fetch], Iterator[StoredSlice]],
    ) -> None:
        self._filter = filter_text
        self._records_max = records_max
        self._fetch = fetch
        self.topic = topic
        self.spans = tuple(spans if filter_text or records_max is None else _first_of(spans, records_max))
        self.schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches, as they come."""
        return self._cut(Fetch(span) for span in self.spans)

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows, in memory, as pandas has them: a column of whole numbers with nulls becomes one of floats. Needs
        pandas."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream interface, in a capsule. Rows are read as they are taken from it."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        kept = sum(span.end - span.start for span in self.spans)
        if self._filter:
            kept = sum(_row_count(piece) for span in self.spans for piece in self._fetch(Fetch(span, count_only=True)))
        return kept if self._records_max is None else min(kept, self._records_max)

    def _cut(self, fetches: Iterator[Fetch], rows_max: int | None = None) -> Iterator[pa.RecordBatch]:
        """Batches with rows in them, and no more rows than there are to be."""
        limits = [limit for limit in (self._records_max, rows_max) if limit is not None]
        left = min(limits, default=None)
        for fetch in fetches:
            if left == 0:
                return
            for piece in self._fetch(fetch):
                batch = piece.batch if left is None else piece.batch.slice(0, left)
                if batch.num_rows:
                    yield batch
                if left is not None:
                    left -= batch.num_rows
                    if left == 0:
                        return

    def __repr__(self) -> str:
        columns = ", ".join(self.schema.names[:20]) + (", …" if len(self.schema) > 20 else "")
        return f"Rows({self._title()}; columns {columns})"

    def _title(self) -> str:
        ranges = [f"{span.partition}: {span.start} to {span.end}" for span in islice(self.spans, 5)]
        more = f", and {len(self.spans) - 5} more" if len(self.spans) > 5 else ""
        where = f" where {self._filter}" if self._filter else ""
        count = sum(span.end - span.start for span in self.spans)
        at_most = f", at most {self._records_max} rows" if self._filter and self._records_max is not None else ""
        of_partitions = f"partition and offsets {', '.join(ranges)}{more}" if ranges else "none"
        return f"{self.topic!r}: {count} records ({of_partitions}){where}{at_most}"

    def _repr_html_(self) -> str:
        """The first rows, for a notebook. Waits for them for two seconds at most."""
        until, shown, remark = Deadline(SHOWN_WITHIN_MS), list[list[object]](), ""
        wanted = (Fetch(span, chunk_bytes_max=SHOWN_CHUNK_BYTES, until=until) for span in self.spans)
        try:
            for batch in self._cut(wanted, SHOWN_ROWS):
                shown += [[_python_value(column[row]) for column in batch.columns] for row in range(batch.num_rows)]
        except TritonMQError as error:
            remark = f"{type(error).__name__}: {error}"
        if not remark and len(shown) < SHOWN_ROWS and until.expired:
            remark = f"There may be more: these are the rows that came within {SHOWN_WITHIN_MS / 1000:.0f} s."
        if len(shown) == SHOWN_ROWS:
            remark = f"These are the first {SHOWN_ROWS} rows."
        headings = [f"{field.name} ({field.type})" for field in self.schema]
        return table(f"Rows of {self._title()}", headings, shown, remark)


def _first_of(spans: Sequence[Span], records_max: int) -> Iterator[Span]:
    """The first offsets of these spans, `records_max` in all."""
    left = records_max
    for span in spans:
        take = min(left, span.end - span.start)
        if take:
            yield span._replace(end=span.start + take)
        left -= take


def _row_count(piece: StoredSlice) -> int:
    return piece.end_offset - piece.base_offset if piece.offsets is None else len(piece.offsets)


def _python_value(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError, ArithmeticError):
        return f"a {value.type} beyond what Python's own type holds"


Place: TypeAlias = str | int | datetime
Bound: TypeAlias = Place | Mapping[int, Place]


def spans_of(
    connection: Connection, view: TopicView, partitions: Sequence[int], start: Bound, end: Bound, deadline: Deadline
) -> list[Span]:
    """The offsets from `start` to before `end` in each of the partitions, as the logs are now; partitions without any
    are left out.

    Raises `InvalidSetting` for a place that is none, `UnknownPartition`, `OffsetOutOfRange`, `InvalidRequest`.
    """
    starts = _of_each(view, "start", start, "earliest", partitions)
    ends = _of_each(view, "end", end, "latest", partitions)
    if not partitions:
        return []
    times = {to_timestamp_us(place) for place in (*starts.values(), *ends.values()) if isinstance(place, datetime)}
    at = {
        time_us: ask_offsets(connection, view.name, deadline, partitions=partitions, timestamp_us=time_us)
        for time_us in sorted(times)
    }
    logs = ask_offsets(connection, view.name, deadline, partitions=partitions, or_replicas=True)

    def offset_of(place: Place, number: int) -> int:
        if isinstance(place, datetime):
            return at[to_timestamp_us(place)][number].offset_at_timestamp
        if isinstance(place, str):
            return logs[number].log_start_offset if place == "earliest" else logs[number].log_end_offset
        return _within(view, logs[number], place)

    spans = []
    for number in partitions:
        first, last = offset_of(starts[number], number), offset_of(ends[number], number)
        if _is_behind(starts[number], ends[number]):
            raise InvalidRequest(
                f"topic {view.name!r} partition {number}: start {starts[number]} is behind end {ends[number]}"
            )
        if last > first:
            spans.append(Span(number, first, last))
    return spans


def _is_behind(start: Place, end: Place) -> bool:
    """Whether no log could be read from there to there."""
    if isinstance(start, datetime) and isinstance(end, datetime):
        return to_timestamp_us(start) > to_timestamp_us(end)
    return isinstance(start, int) and isinstance(end, int) and start > end


def _of_each(view: TopicView, which: str, bound: Bound, default: str, partitions: Sequence[int]) -> dict[int, Place]:
    if not isinstance(bound, Mapping):
        return dict.fromkeys(partitions, _checked(which, bound))
    for number in bound:
        if number not in partitions:
            raise UnknownPartition(
                f"{which} names partition {number!r} of {view.name!r}, and what is read is of {list(partitions)[:20]}"
            )
    return {number: _checked(which, bound.get(number, default)) for number in partitions}


def _checked(which: str, place: object) -> Place:
    if isinstance(place, datetime):
        return place
    if isinstance(place, int) and not isinstance(place, bool) and place >= 0:
        return place
    if place in ("earliest", "latest"):
        return str(place)
    hint = did_you_mean(str(place), ("earliest", "latest"))
    raise InvalidSetting(
        f"{which}={place!r} is not known{hint or ':'} give 'earliest', 'latest', an offset, a datetime, or one of "
        "these for each partition"
    )


def _within(view: TopicView, log: pb.PartitionOffsets, offset: int) -> int:
    if log.log_start_offset <= offset <= log.log_end_offset:
        return offset
    raise OffsetOutOfRange(
        f"topic {view.name!r} partition {log.partition}: there is no offset {offset}, its log goes from "
        f"{log.log_start_offset} to {log.log_end_offset}; 'earliest' and 'latest' are what there is"
    )
