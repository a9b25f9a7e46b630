"""Records of a partition as they lie in its segments, written as JSON lines or as an Arrow stream.

Two passes: where the log starts is known only at its end, for retention is an entry too. Of batches that were staged
first the place is remembered until they are published: one line for each that waits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click
import pyarrow as pa

from mq_broker.coordination.file import read_topics
from mq_broker.core.entries import Carry, Schedule, Stage
from mq_broker.core.messages import Published
from mq_broker.storage.inspecting.contents import Replay, read_payload
from mq_broker.storage.inspecting.directory import InspectedDirectory, PartitionFiles
from mq_broker.storage.inspecting.reading import read_small
from mq_broker.storage.inspecting.walking import Frame
from mq_cli.output import counted, say
from mq_cli.records.messages import MessageWriter
from mq_client.consuming.record_queue import batch_to_records
from mq_protocol.arrow import RECORD_SCHEMA, decode_untrusted, schema_from_bytes
from mq_protocol.errors import (
    BatchTooLarge,
    CorruptBatch,
    InternalError,
    InvalidRequest,
    SchemaMismatch,
    StorageFailed,
)
from mq_protocol.sql.ddl import parse_schema

if TYPE_CHECKING:
    from typing import BinaryIO

RECORDS = "records"
"""Given as a schema: the topic is of messages, and has no columns of its own."""

_DOCUMENT_BYTES_MAX = 256 << 20
_WAITING_ENOUGH = 10_000


class _Sink(Protocol):
    def write(self, batch: pa.RecordBatch, base_offset: int, timestamp_us: int) -> None: ...

    def close(self) -> None: ...


def schema_for(directory: InspectedDirectory, files: PartitionFiles, given: str | None) -> pa.Schema:
    """The topic's columns: as given, or as the document of a broker that stands alone says. Raises `click.UsageError`
    if neither does, or if they disagree."""
    if given is not None:
        try:
            return _believed(given, _known_schema(directory, files))
        except (StorageFailed, InternalError):  # damaged: what was given is all that there is
            return _believed(given, None)
    known = _known_schema(directory, files)
    if known is not None:
        return known
    raise click.UsageError(
        "the data directory does not say which columns this topic has: give --schema 'a long, b string', as `tritonmq "
        f"topic describe` shows them, or --schema {RECORDS} for a topic of messages"
    )


def _believed(given: str, known: pa.Schema | None) -> pa.Schema:
    """The schema that was given, unless it is known to be another one. Journals do not say how their rows are to be
    read: a column that is given as another type of the same size is shown as that type."""
    try:
        schema = RECORD_SCHEMA if given == RECORDS else parse_schema(given)
    except InvalidRequest as error:
        raise click.BadParameter(str(error), param_hint="--schema") from error
    if known is not None and _columns_text(schema) != _columns_text(known):
        raise click.UsageError(
            f"--schema is not the topic's, which has {_columns_text(known)}: leave --schema out, the data directory "
            "says which columns it has"
        )
    if known is None and schema is not RECORD_SCHEMA:
        say(
            "the data directory does not say which columns this topic has, so --schema is believed. If a type is wrong "
            "and has the same size as the right one (int and float, long and timestamp), wrong values are written "
            "without an error: compare with `tritonmq topic describe`"
        )
    return schema


def _columns_text(schema: pa.Schema) -> str:
    return "no columns of its own" if schema.equals(RECORD_SCHEMA) else ", ".join(f"{f.name} {f.type}" for f in schema)


def _known_schema(directory: InspectedDirectory, files: PartitionFiles) -> pa.Schema | None:
    """As the document of a broker that stands alone says. Raises `StorageFailed` if it cannot be read."""
    document = directory.path / "coordination.json"
    try:
        read_small(document, _DOCUMENT_BYTES_MAX)  # a file, and for its bound: what follows reads it all
        for topic in read_topics(directory.path):
            if topic.topic_id == files.place.topic_id:
                return schema_from_bytes(topic.schema)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageFailed(f"{document} cannot be read ({error}): give --schema") from error
    return None


def export_records(
    files: PartitionFiles, schema: pa.Schema, first: int | None, end: int | None, form: str, output: Path
) -> int:
    """The exit status: 1 if the log cannot be read to the end of the range."""
    whole = Replay(files).run()
    start, stop = whole.log_start_offset, whole.log_end_offset
    wanted = range(max(start, first or 0), stop if end is None else min(end, stop))
    if first is not None and first < start:
        say(f"records before offset {start} are not kept any more")
    written = 0
    with _sink(files, schema, form, output) as sink:
        for piece in _pieces(files, wanted):
            batch = _decoded(files, piece, schema)
            skipped = max(0, wanted.start - piece.base_offset)
            batch = batch.slice(skipped, min(piece.record_count, wanted.stop - piece.base_offset) - skipped)
            sink.write(batch, piece.base_offset + skipped, piece.timestamp_us)
            written += batch.num_rows
    say(f"{counted(written, 'record')}, offsets {wanted.start} to {max(wanted.start, wanted.stop)} (exclusive)")
    if whole.bad is not None and (end is None or end > stop):
        bad = whole.bad
        say(
            f"the log cannot be read from entry {bad.next_index} on, byte {bad.position} of segment {bad.segment}: "
            f"{bad.reason}; see `tritonmq storage verify`"
        )
        return 1
    return 0


class _Piece(NamedTuple):
    frame: Frame
    base_offset: int
    record_count: int
    timestamp_us: int


def _pieces(files: PartitionFiles, wanted: range) -> Iterator[_Piece]:
    """The batches with offsets in the range, in order."""
    replay = Replay(files)
    waiting: dict[int, Frame] = {}  # entries with payloads that may yet be given offsets
    enough = _WAITING_ENOUGH
    for step in replay.steps():
        entry = step.frame.entry
        if isinstance(entry.operation, Stage | Schedule | Carry):
            waiting[entry.index] = step.frame
            if len(waiting) > enough:  # what was discarded, cancelled or carried on goes
                still = replay.still_staged(waiting)
                waiting = {index: frame for index, frame in waiting.items() if index in still}
                enough = max(_WAITING_ENOUGH, 2 * len(waiting))
        for change in step.changes:
            if not isinstance(change, Published):
                continue
            frame = step.frame if change.index == entry.index else waiting.pop(change.index, None)
            last = change.base_offset + change.record_count
            if change.base_offset >= wanted.stop:
                return
            if last <= wanted.start:
                continue
            if frame is None:
                raise StorageFailed(
                    f"{files.path}: offsets {change.base_offset} to {last} are those of entry {change.index}, which is "
                    "not there: see `tritonmq storage verify`"
                )
            yield _Piece(frame, change.base_offset, change.record_count, change.timestamp_us)


def _decoded(files: PartitionFiles, piece: _Piece, schema: pa.Schema) -> pa.RecordBatch:
    payload = read_payload(files, piece.frame)
    try:
        return decode_untrusted(payload, schema, piece.record_count)
    except SchemaMismatch as error:
        raise click.UsageError(f"--schema does not fit: {error}") from error
    except (CorruptBatch, BatchTooLarge) as error:
        raise StorageFailed(
            f"{files.path}: entry {piece.frame.entry.index} at byte {piece.frame.position} of segment "
            f"{piece.frame.segment} cannot be decoded ({error}). If `tritonmq storage verify` finds nothing wrong, "
            "--schema is not that of the topic, and records before this one may have come out wrong. Else end before "
            f"it with --to {piece.base_offset}, and go on behind it with --from "
            f"{piece.base_offset + piece.record_count}"
        ) from error


@contextlib.contextmanager
def _sink(files: PartitionFiles, schema: pa.Schema, form: str, output: Path) -> Iterator[_Sink]:
    with contextlib.ExitStack() as stack:
        if str(output) == "-":
            if form == "arrow" and sys.stdout.isatty():
                raise click.UsageError("an Arrow stream is not for a terminal: give --output FILE")
            out: BinaryIO = sys.stdout.buffer
        else:
            if Path(os.path.realpath(output)).is_relative_to(os.path.realpath(files.path.parent.parent)):
                raise click.UsageError(f"{output} lies in the data directory: give --output a name outside")
            try:
                out = stack.enter_context(output.open("xb"))
            except FileExistsError:
                raise click.UsageError(f"{output} is there already: give --output another name") from None
            except OSError as error:
                raise click.UsageError(f"{output} cannot be written ({error}): give --output another name") from error
        sink = _ArrowSink(schema, out) if form == "arrow" else _JsonSink(files, schema, out)
        yield sink
        sink.close()
        out.flush()


class _ArrowSink:
    """The topic's columns, and behind them `_offset` and `_timestamp`, when the broker appended the batch."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        self._schema = pa.schema(
            [*schema, pa.field("_offset", pa.int64()), pa.field("_timestamp", pa.timestamp("us", tz="UTC"))]
        )
        self._writer = pa.ipc.new_stream(out, self._schema)

    def write(self, batch: pa.RecordBatch, base_offset: int, timestamp_us: int) -> None:
        offsets = pa.array(range(base_offset, base_offset + batch.num_rows), pa.int64())
        stamps = pa.array([timestamp_us] * batch.num_rows, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        self._writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, offsets, stamps], schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonSink:
    """As `tritonmq consume --json` writes them."""

    def __init__(self, files: PartitionFiles, schema: pa.Schema, out: BinaryIO) -> None:
        self._topic = files.topic() or files.place.topic_id
        self._partition = files.place.partition
        self._typed = schema != RECORD_SCHEMA
        self._writer = MessageWriter(as_json=True, template=None, for_terminal=out.isatty(), out=out)
        if self._typed:
            self._writer.knows_schema(schema)

    def write(self, batch: pa.RecordBatch, base_offset: int, timestamp_us: int) -> None:
        for record in batch_to_records(
            batch, self._topic, self._partition, base_offset, timestamp_us, typed=self._typed
        ):
            self._writer.write(record)

    def close(self) -> None:
        self._writer.flush()
