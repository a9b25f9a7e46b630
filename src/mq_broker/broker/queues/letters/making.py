"""Dead letters, made of the records that are one. Pure; may run in a thread.

A letter of a record is a record: key, value, timestamp and headers as they were, and headers that say why it is here
(mq_protocol/queues/dead_letters.py). A letter of a row has the row's columns, and those facts in one struct column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mq_broker.core.work.ranges import Ranges, joined
from mq_broker.core.work.state import Mark
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch
from mq_protocol.errors import SchemaMismatch
from mq_protocol.queues.dead_letters import DEAD_COLUMN, HEADERS, HOPS_MAX
from mq_protocol.wire.envelope import Buffer

DEAD_TYPE: Final = pa.struct(
    [
        pa.field("error", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("group", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("deliveries", pa.int32()),
        pa.field("failures", pa.int32()),
        pa.field("hops", pa.int32()),
    ]
)
_OURS: Final = frozenset(HEADERS.values())
_BEGAN: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Piece:
    """Some doomed records of one stored batch. `timestamp_us`: when the batch was appended."""

    base_offset: int
    timestamp_us: int
    payload: Buffer
    records: list[tuple[int, Mark]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where they come from, and why they are dead."""

    topic: str
    partition: int
    group: str
    reason: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Letters:
    """A batch for the dead-letter topic, None if there is none; the records that it is of; and those that were sent as
    dead letters too often already. `left`: those of which no letter was made, since the batch would be too large."""

    batch: pa.RecordBatch | None
    ranges: Ranges
    weary: Ranges
    left: Ranges = ()


def letter_schema(source: pa.Schema) -> pa.Schema:
    """Of the topic that is made for dead letters of a topic with this schema."""
    if source == RECORD_SCHEMA:
        return source
    columns = [column.with_nullable(True) for column in source if column.name != DEAD_COLUMN]
    return pa.schema([*columns, pa.field(DEAD_COLUMN, DEAD_TYPE)])


def check_fits(source: pa.Schema, target: pa.Schema, name: str) -> None:
    """Raises `SchemaMismatch` if letters of the one cannot be written to a topic `name` with the other."""
    wanted = letter_schema(source)
    for column in wanted:
        at = target.get_field_index(column.name)
        if at < 0 or target.field(at).type != column.type:
            raise SchemaMismatch(
                f"topic {name} does not take these dead letters: it lacks column {column.name} {column.type}. Add it, "
                "or give the queue group another dead_letter"
            )
    for column in target:
        if not column.nullable and wanted.get_field_index(column.name) < 0:
            raise SchemaMismatch(
                f"topic {name} does not take these dead letters: its column {column.name} may not be null, and they "
                "have none. Give the queue group another dead_letter"
            )


def make(pieces: Sequence[Piece], origin: Origin, target: pa.Schema, bytes_max: int) -> Letters:
    """A letter for each record that was not sent too often, but of no further stored batch once they have `bytes_max`
    bytes: how many a stored batch has is known when it is decompressed. Raises `CorruptBatch`."""
    typed = origin.schema != RECORD_SCHEMA
    parts: list[pa.RecordBatch] = []
    sent: list[int] = []
    weary: list[int] = []
    size = read = 0
    for piece in pieces:
        if size >= bytes_max:
            break
        read += 1
        whole = decode_batch(piece.payload, origin.schema)
        rows = pc.take(whole, pa.array([offset - piece.base_offset for offset, _ in piece.records], pa.int64()))
        hops = _hops_of_rows(rows) if typed else _hops_of_records(rows)
        kept = [at for at, count in enumerate(hops) if count < HOPS_MAX]
        weary += [offset for at, (offset, _) in enumerate(piece.records) if hops[at] >= HOPS_MAX]
        if not kept:
            continue
        if len(kept) < len(hops):
            rows = pc.take(rows, pa.array(kept, pa.int64()))
        facts = [_facts(piece, origin, at, hops[at]) for at in kept]
        sent += [piece.records[at][0] for at in kept]
        parts.append(_rows(rows, facts, target) if typed else _records(rows, facts))
        size += parts[-1].nbytes
    batch = pa.concat_batches(parts) if parts else None
    left = [offset for piece in pieces[read:] for offset, _ in piece.records]
    return Letters(batch, _ranges(sent), _ranges(weary), _ranges(left))


def _ranges(offsets: list[int]) -> Ranges:
    return joined((each, each + 1) for each in offsets)


def _facts(piece: Piece, origin: Origin, at: int, hops: int) -> dict[str, Any]:
    offset, mark = piece.records[at]
    return {
        "error": mark.error or None,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": offset,
        "timestamp": piece.timestamp_us,
        "group": origin.group,
        "reason": origin.reason,
        "deliveries": mark.deliveries,
        "failures": mark.failures,
        "hops": hops + 1,
    }


def _records(rows: pa.RecordBatch, facts: list[dict[str, Any]]) -> pa.RecordBatch:
    headers = []
    for before, fact in zip(rows.column("headers").to_pylist(), facts, strict=True):
        kept = [header for header in before or () if header is None or header["key"] not in _OURS]
        texts = {**fact, "timestamp": (_BEGAN + timedelta(microseconds=fact["timestamp"])).isoformat()}
        new = [{"key": HEADERS[name], "value": _bytes(texts[name])} for name in HEADERS]
        headers.append([*kept, *new])
    at = RECORD_SCHEMA.get_field_index("headers")
    columns = list(rows.columns)
    columns[at] = pa.array(headers, RECORD_SCHEMA.field(at).type)
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _rows(rows: pa.RecordBatch, facts: list[dict[str, Any]], target: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for column in target:
        at = rows.schema.get_field_index(column.name)
        if column.name == DEAD_COLUMN:
            columns.append(pa.array(facts, DEAD_TYPE))
        elif at < 0:
            columns.append(pa.nulls(rows.num_rows, column.type))
        else:
            columns.append(rows.column(at))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _bytes(value: object) -> bytes | None:
    return None if value is None else str(value).encode()


def _hops_of_records(rows: pa.RecordBatch) -> list[int]:
    name = HEADERS["hops"]
    said = [
        [_number(header["value"]) for header in headers or () if header and header["key"] == name]
        for headers in rows.column("headers").to_pylist()
    ]
    return [max(each, default=0) for each in said]


def _hops_of_rows(rows: pa.RecordBatch) -> list[int]:
    at = rows.schema.get_field_index(DEAD_COLUMN)
    if at < 0 or rows.schema.field(at).type != DEAD_TYPE:
        return [0] * rows.num_rows
    return [(dead or {}).get("hops") or 0 for dead in rows.column(at).to_pylist()]


def _number(text: bytes | None) -> int:
    """What is no number counts as none: anybody may write such a header."""
    return int(text) if text is not None and len(text) <= 3 and text.isdigit() else 0
