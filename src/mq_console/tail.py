"""The newest rows of a topic as short texts. Joins no group and moves no cursor."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from mq_client import Admin, InvalidRequest, Reader, TopicDescription
from mq_client.consuming.record_queue import batch_to_records
from mq_client.consuming.slices import StoredSlice
from mq_protocol.shown import bytes_text

ROWS_MAX: Final = 200
CELL_CHARACTERS_MAX: Final = 4_096
READ_BYTES_MAX: Final = 4 << 20
"""What is asked of brokers for one page."""

SEARCHED_MAX: Final = 20_000
"""How many of the newest rows a filter is tried on, of each partition."""

PARTITIONS_MAX: Final = 16
"""How many partitions one page reads."""

COLUMNS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Row:
    """`timestamp_us`: the record's own, else the broker's clock. `cells`: of the columns, each at most
    `CELL_CHARACTERS_MAX` characters."""

    partition: int
    offset: int
    timestamp_us: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest first. `left_out`: what was not looked at, as sentences."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TailWish:
    """`partition` None: of all. `start`: the first offset, of one partition; None: the newest rows. `filter`: as in
    `Reader.read`."""

    partition: int | None = None
    start: int | None = None
    filter: str = ""
    rows: int = 50


def read_tail(
    admin: Admin, reader: Reader, topic: TopicDescription, wish: TailWish, *, hide_values: bool = False
) -> Tail:
    """Raises errors of `Reader.read`, and `InvalidRequest` for a wish that makes no sense."""
    if wish.start is not None and wish.partition is None:
        raise InvalidRequest("an offset counts within one partition: choose the partition too")
    if wish.filter and hide_values:
        raise InvalidRequest("values are hidden here: what a filter finds would show them")
    ends = reader.offsets(topic.name)
    if wish.partition is not None:
        ends = {number: place for number, place in ends.items() if number == wish.partition}
        if not ends:
            raise InvalidRequest(f"topic {topic.name!r} has no partition {wish.partition}")
    filled = sorted(number for number, (first, end) in ends.items() if end > first)
    left_out = []
    if len(filled) > PARTITIONS_MAX:
        left_out.append(f"only the first {PARTITIONS_MAX} partitions are read: choose one to see others")
    sizes = admin.stored_bytes(topic.name)
    names = tuple(topic.schema.names[:COLUMNS_MAX]) if topic.typed else ("key", "value", "headers")
    if topic.typed and len(topic.schema.names) > COLUMNS_MAX:
        left_out.append(f"only the first {COLUMNS_MAX} of {len(topic.schema.names)} columns are shown")
    rows: list[Row] = []
    for number in filled[:PARTITIONS_MAX]:
        share = READ_BYTES_MAX // min(len(filled), PARTITIONS_MAX)
        span = _span(ends[number], sizes.get(number, 0), wish, share)
        columns = list(names) if wish.filter else None
        stored = reader.read_stored(topic.name, number, *span, columns=columns, filter=wish.filter, timeout_ms=2_000)
        pieces = list(_newest(stored, wish.rows, share, from_start=wish.start is not None))
        for piece in pieces:
            rows += _rows(piece, topic, number, names, hide_values=hide_values)
        if wish.filter and span[0] > ends[number][0] and wish.start is None:
            left_out.append(f"of partition {number} only offsets from {span[0]:,} on were searched")
    rows.sort(key=lambda row: (-row.timestamp_us, row.partition, -row.offset))
    if wish.start is not None:
        rows.sort(key=lambda row: row.offset)
    return Tail(names, tuple(rows[: wish.rows]), tuple(left_out))


def _span(place: tuple[int, int], size_bytes: int, wish: TailWish, bytes_max: int) -> tuple[int, int]:
    """The offsets to read: so many that they fit what may be read, as far as the mean size of a record tells."""
    first, end = place
    if wish.start is not None:
        start = min(max(wish.start, first), end)
        return start, min(end, start + (SEARCHED_MAX if wish.filter else wish.rows))
    mean = max(1, size_bytes // max(1, end - first))
    fit = max(1, bytes_max // mean)
    count = min(SEARCHED_MAX, fit) if wish.filter else min(wish.rows, fit)
    return max(first, end - count), end


def _newest(pieces: Iterator[StoredSlice], rows: int, bytes_max: int, *, from_start: bool) -> Iterator[StoredSlice]:
    """The last `rows` rows, or the first; what came before them is not kept."""
    kept: list[StoredSlice] = []
    count = read = 0
    for piece in pieces:
        kept.append(piece)
        count += piece.batch.num_rows
        read += piece.sent_bytes
        while not from_start and count - kept[0].batch.num_rows >= rows:
            count -= kept.pop(0).batch.num_rows
        if read > bytes_max or (from_start and count >= rows):
            break
    surplus = max(0, count - rows)
    for piece in kept:
        have = piece.batch.num_rows
        cut = min(surplus, have) if not from_start or piece is kept[-1] else 0
        surplus -= cut
        yield _without(piece, cut, from_start=from_start)


def _without(piece: StoredSlice, cut: int, *, from_start: bool) -> StoredSlice:
    """The piece without its first `cut` rows, or its last."""
    keep = piece.batch.num_rows - cut
    at = 0 if from_start else cut
    offsets = None if piece.offsets is None else piece.offsets[at : at + keep]
    return piece._replace(
        base_offset=piece.base_offset + (at if offsets is None else 0),
        batch=piece.batch.slice(at, keep),
        offsets=offsets,
    )


def _rows(
    piece: StoredSlice, topic: TopicDescription, number: int, names: Sequence[str], *, hide_values: bool
) -> Iterator[Row]:
    if not piece.batch.num_rows:
        return
    if not topic.typed:
        for record in batch_to_records(
            piece.batch, topic.name, number, piece.base_offset, piece.timestamp_us, typed=False
        ):
            headers = "" if hide_values else ", ".join(f"{name}={text_of(value)}" for name, value in record.headers)
            shown = _size if hide_values else text_of
            texts = shown(record.key), shown(record.value), cut(headers)
            yield Row(number, record.offset, record.timestamp, texts)
        return
    columns = [piece.batch.column(name) for name in names]
    for at in range(piece.batch.num_rows):
        offset = piece.base_offset + at if piece.offsets is None else int(piece.offsets[at])
        cells = tuple("hidden" if hide_values else _scalar_text(column[at]) for column in columns)
        yield Row(number, offset, piece.timestamp_us, cells)


def _size(value: bytes | None) -> str:
    return "" if value is None else bytes_text(len(value))


def _scalar_text(scalar: pa.Scalar) -> str:
    try:
        return text_of(scalar.as_py())
    except (ValueError, OverflowError, pa.ArrowException):
        return "beyond what can be shown"  # a time outside of Python's calendar


def text_of(value: Any) -> str:
    """A value as one text, cut. Bytes are text where they are UTF-8, else `base64:…`; what is nested is JSON."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        # Cut before decoding, which costs as much as the value is long; a character has at most four bytes
        start = value[: 4 * CELL_CHARACTERS_MAX]
        cut_off = len(start) < len(value)
        try:
            text = start.decode("utf-8", "strict" if not cut_off else "ignore")
        except UnicodeDecodeError:
            text = "base64:" + base64.b64encode(start).decode("ascii")
        return cut(text, more=cut_off)
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict | list | tuple):
        return cut(json.dumps(_plain(value), ensure_ascii=False))
    return cut(str(_plain(value)))


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return text_of(value)
        case str():
            return cut(value)
        case bool() | int() | float() | None:
            return value
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case Decimal():
            return str(value)
        case Mapping():
            return {str(key): _plain(inner) for key, inner in list(value.items())[:CELL_CHARACTERS_MAX]}
        case list() | tuple():
            return [_plain(inner) for inner in value[:CELL_CHARACTERS_MAX]]
        case _:
            return str(value)


def cut(text: str, *, more: bool = False) -> str:
    """The text, at most `CELL_CHARACTERS_MAX` characters of it."""
    if len(text) > CELL_CHARACTERS_MAX or more:
        return text[:CELL_CHARACTERS_MAX] + "…"
    return text
