"""A table becomes batches: by how its rows are to be sent, by partition, by size."""

from __future__ import annotations

import time
import uuid as uuids
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mq_client.errors import BatchTooLarge, InvalidRequest, InvalidSetting
from mq_client.producing.batches import (
    conform,
    largest_record_bytes,
    record_key_column,
    split_by_partition,
    split_by_size,
)
from mq_client.producing.lanes import Attributes, Due
from mq_client.producing.partitioners import Choice
from mq_client.producing.scheduling import checked_priority, due_of
from mq_client.producing.targets import Target
from mq_protocol import limits
from mq_protocol.names import did_you_mean
from mq_protocol.partitioner import key_bytes, partitions_for_keys

WAYS_MAX: Final = 1_000
"""How many different pairs of priority and time the rows of one table may have: each is a batch at least."""

_NOBODY: Final = np.iinfo(np.int64).min


class Shipment(NamedTuple):
    """How a batch is to be sent."""

    attributes: Attributes
    due: Due


def ways_of(
    batch: pa.RecordBatch | pa.Table,
    usual: Shipment,
    priority_column: str | None,
    deliver_at_column: str | None,
    kept: Collection[str],
) -> list[tuple[Shipment, pa.Table]]:
    """The rows of each way, in their order; ways in the order of times and priorities. `usual`: where a column is null.
    `kept`: columns that the topic has; the others of these are taken out. Raises `InvalidRequest` and `InvalidSetting`,
    which name the column."""
    table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
    rows = table.num_rows
    numbers = np.full((rows, 2), _NOBODY, np.int64)
    if deliver_at_column is not None:
        numbers[:, 0] = _times(_column(table, "deliver_at_column", deliver_at_column), deliver_at_column)
    if priority_column is not None:
        numbers[:, 1] = _priorities(_column(table, "priority_column", priority_column), priority_column)
    taken = {priority_column, deliver_at_column} - {None, *kept}
    table = table.drop_columns(sorted(name for name in taken if name is not None))
    found, of_row = np.unique(numbers, axis=0, return_inverse=True)
    if len(found) > WAYS_MAX:
        raise InvalidRequest(
            f"the rows have {len(found)} different priorities and times, and one table may have {WAYS_MAX}: round the "
            "times, or publish fewer rows at a time"
        )
    of_row = of_row.reshape(-1)
    if len(found) <= 1:
        return [(_shipment(found[0], usual) if len(found) else usual, table)]
    order = np.argsort(of_row, kind="stable")
    ends = np.searchsorted(of_row[order], np.arange(1, len(found) + 1))
    starts = [0, *ends[:-1]]
    return [
        (_shipment(way, usual), table.take(pa.array(order[start:end])))
        for way, start, end in zip(found, starts, ends, strict=True)
    ]


def _shipment(way: np.ndarray, usual: Shipment) -> Shipment:
    at_us, priority = int(way[0]), int(way[1])
    due = usual.due if at_us == _NOBODY else Due(at_us=at_us)
    return Shipment(usual.attributes if priority == _NOBODY else usual.attributes._replace(priority=priority), due)


def _column(table: pa.Table, option: str, name: str) -> pa.ChunkedArray:
    if table.schema.names.count(name) != 1:
        raise InvalidRequest(f"{option}={name!r} is no column of the table{did_you_mean(name, table.schema.names)}")
    return table.column(name)


def _priorities(column: pa.ChunkedArray, name: str) -> np.ndarray:
    if not pa.types.is_integer(column.type):
        raise InvalidRequest(f"priority_column={name!r} has values of {column.type}: whole numbers are needed")
    return _checked(column, name, checked_priority)


def _times(column: pa.ChunkedArray, name: str) -> np.ndarray:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    elif column.type != pa.int64():
        raise InvalidRequest(
            f"deliver_at_column={name!r} has values of {column.type}: timestamps with a zone are needed, or int64 with "
            "microseconds since 1970"
        )
    return _checked(column, name, lambda at_us: due_of(at_us, None))


def _checked(column: pa.ChunkedArray, name: str, check: Callable[[int], object]) -> np.ndarray:
    """As numbers, null as none. The least and the greatest tell of all whether they are allowed."""
    if column.null_count < len(column):
        limits = pc.min_max(column).as_py()
        for each in (limits["min"], limits["max"]):
            try:
                check(each)
            except InvalidSetting as error:
                raise InvalidSetting(f"column {name!r}: {error}") from None
    return np.asarray(column.cast(pa.int64()).fill_null(_NOBODY))


def conformed(target: Target, batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """As the topic has it. Raises `SchemaMismatch` and `BatchTooLarge`."""
    view = target.view
    now_us = None if view.typed else time.time_ns() // 1000
    table = conform(batch, view.schema, view.name, now_us=now_us, first_columns=view.first_columns)
    if not view.typed and (largest := largest_record_bytes(table)) > target.record_bytes_max:
        raise BatchTooLarge(
            f"record of {largest} bytes is above {view.name!r}'s record_bytes_max={target.record_bytes_max}: raise it"
        )
    return table


def pieces_of_ways(
    target: Target, ways: Sequence[tuple[Shipment, pa.RecordBatch | pa.Table]], *how: Any
) -> list[tuple[Shipment, int, pa.RecordBatch]]:
    """The batches of all rows, and their partitions. `how`: as `pieces_of` takes it. Raises as `conformed` does, before
    there is a piece."""
    tables = [(shipment, conformed(target, rows)) for shipment, rows in ways]
    return [(shipment, chosen, piece) for shipment, table in tables for chosen, piece in pieces_of(target, table, *how)]


def pieces_of(
    target: Target,
    table: pa.Table,
    choice: Choice,
    turn: Callable[[Target], int],
    partition: int | None,
    key_column: str | None,
    uuid: bytes | None,
    keys: pa.Array | None = None,
) -> list[tuple[int, pa.RecordBatch]]:
    """The table's batches and their partitions, in the order to send them. `turn`: the partition of a batch that may go
    to any. `keys`: of the rows, where they are no column."""
    row_bytes_max = target.view.settings.batch_bytes_max - limits.BATCH_OVERHEAD_BYTES
    if key_column is None and not target.view.typed and partition is None and choice.by_key:
        key_column = record_key_column(table)
    pieces: list[tuple[int, pa.RecordBatch]] = []
    parts: Sequence[tuple[int | None, pa.Table]]
    if partition is not None:
        parts = [(partition, table)]
    elif keys is not None and choice.by_key:
        found = _partitions_of(target, keys, choice)
        parts = [(None if at < 0 else at, rows) for at, rows in split_by_partition(table, found)]
    elif key_column is None:
        parts = [(None, table)]
    else:
        if key_column not in table.schema.names:
            raise InvalidRequest(
                f"key_column={key_column!r} is no column{did_you_mean(key_column, table.schema.names)}"
            )
        found = _partitions_of(target, table.column(key_column).combine_chunks(), choice)
        parts = [(None if at < 0 else at, rows) for at, rows in split_by_partition(table, found)]
    for chosen, rows in parts:
        for piece in split_by_size(rows, target.batch_bytes_max, row_bytes_max):
            if chosen is not None:
                pieces.append((chosen, piece))
            elif uuid is not None:
                pieces.append((partition_of_uuid(uuid, len(target.open)), piece))
            elif choice.pick is not None:
                pieces.append((choice.pick(target.view.name, None, len(target.open)), piece))
            else:
                pieces.append((turn(target), piece))
    return pieces


def _partitions_of(target: Target, keys: pa.Array, choice: Choice) -> np.ndarray:
    """The partition of each key; -1 for those that are null."""
    count, pick = len(target.open), choice.pick
    if pick is None or not choice.by_key:
        return np.asarray(partitions_for_keys(keys, count))
    name = target.view.name
    return np.array([-1 if key is None else pick(name, key, count) for key in key_bytes(keys).to_pylist()], np.int32)


def partition_of_uuid(uuid: bytes, partitions: int) -> int:
    """The same in every process and release. Not the hash of keys, which takes ten times as long for what is seldom
    seen twice."""
    return zlib.crc32(uuid) % partitions


def uuid_bytes(uuid: uuids.UUID | bytes | str) -> bytes:
    match uuid:
        case uuids.UUID():
            found = uuid.bytes
        case bytes() if len(uuid) == 16:
            found = uuid
        case str():
            try:
                found = uuids.UUID(uuid).bytes
            except ValueError:
                raise InvalidRequest(f"uuid={uuid!r} is no UUID: give uuid.uuid4()") from None
        case _:
            raise InvalidRequest("uuid is no UUID: give a uuid.UUID, 16 bytes or its text")
    if found == bytes(16):
        raise InvalidRequest("uuid is all zeros, which means none: give uuid.uuid4()")
    return found


def piece_uuid(uuid: bytes, index: int, count: int, rows: int) -> bytes:
    """A table's own UUID if it is one batch; else one for each that depends on the split, so that another split is not
    mistaken."""
    return uuid if count == 1 else uuids.uuid5(uuids.UUID(bytes=uuid), f"{index}/{count}/{rows}").bytes
