"""Reads records for queue groups, a piece at a time, beside the loop: their keys for an order, their rows for filters.

A key is kept as a hash with a seed of this broker's own, so nobody can make many keys that are taken for one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.policy.group_filter import Wanting
from mq_broker.broker.queues.policy.ordering import LOOK_AHEAD_MAX, ByKey
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.broker.runtime.places import Places
from mq_broker.core.work.ranges import Range
from mq_protocol.arrow import decode_batch, schema_nodes
from mq_protocol.errors import CoordinationUnavailable, CorruptBatch, OffsetOutOfRange, TritonMQError
from mq_protocol.names import quoted
from mq_protocol.queues.columns import bound_filter, column_of, kept, keys_of
from mq_protocol.queues.settings import Order, QueueSettings
from mq_protocol.sql.row_filter import RowFilter
from mq_protocol.wire.envelope import Buffer
from mq_protocol.wire.ipc_message import node_count

log = logging.getLogger(__name__)

BYTES_AT_ONCE: Final = 1 << 20
BATCHES_AT_ONCE: Final = 64
"""Stored batches that are read in one turn of the loop: so many, or so many bytes if the first is not larger."""

READING_AT_ONCE: Final = 4
AGAIN_S: Final = 1.0
KEY_SHOWN_MAX: Final = 100

Subject: TypeAlias = ByKey | Wanting
"""What wants to know something of records: an order their keys, a filter which of them it does not keep."""

Stored = tuple[int, int, int, Buffer]
"""The first offset of a batch, how many records it has, its time in microseconds since 1970, and its payload."""

Found = tuple[list[int], list[int]]
"""Offsets of records that have a key, and the keys' hashes."""


class RowReading:
    """Owns who reads for what, the filters as they are bound to the topic's columns, and what keeps a group from being
    read for."""

    def __init__(self, shell: Shell, topics: Topics) -> None:
        self._shell = shell
        self._topics = topics
        self._places = Places(READING_AT_ONCE, "queue-rows")
        self._seed = secrets.token_bytes(32)
        self._reading: dict[Subject, asyncio.Task[None]] = {}
        self._bound: dict[Subject, tuple[pa.Schema, RowFilter]] = {}
        self._alarms: dict[tuple[str, str, bool], str] = {}  # of a partition and a group: of its keys?

    def look(self, led_group: LedGroup, policy: Policy) -> None:
        """The group may lack keys or rows."""
        end = led_group.partition.next_offset
        for subject in _subjects(policy):
            task = self._reading.get(subject)  # it may be done, and `_ended` not called yet
            if (task is None or task.done()) and not subject.knows(end):
                name = f"rows of {led_group.group} of {led_group.partition.name}"
                task = self._reading[subject] = self._shell.spawn(self._run(led_group, policy, subject), name)
                task.add_done_callback(partial(self._ended, subject))

    def _ended(self, subject: Subject, task: asyncio.Task[None]) -> None:
        if self._reading.get(subject) is task:
            del self._reading[subject]
            self._bound.pop(subject, None)

    def alarm(self, partition: str, group: str) -> str:
        """Why no more is known of records; empty if all is well."""
        return self._alarms.get((partition, group, True)) or self._alarms.get((partition, group, False), "")

    def close(self) -> None:
        self._places.close()

    async def _run(self, led_group: LedGroup, policy: Policy, subject: Subject) -> None:
        """Until the subject knows what it wants for now."""
        partition = led_group.partition
        while _reads(led_group, policy, subject):
            wanted = subject.to_read(partition.next_offset)
            if wanted is None:
                break
            try:
                until, found = await self._read(partition, wanted, subject)
            except TritonMQError as error:
                keys = isinstance(subject, ByKey)
                what = "keys of records cannot be read" if keys else "rows cannot be compared with the filter"
                self._tell(led_group, subject, f"{what}, so nothing is lent: {error}")
                await asyncio.sleep(AGAIN_S)
                continue
            subject.add(until, *found)
            led_group.wake()
        full = isinstance(subject, ByKey) and subject.full and led_group.reads(policy)
        stuck = f"{LOOK_AHEAD_MAX} records are not settled, so what is behind them is not lent: see blocked_by"
        self._tell(led_group, subject, stuck if full else "")

    async def _read(self, partition: Partition, wanted: Range, subject: Subject) -> tuple[int, tuple[Any, ...]]:
        """What is found of some of the records that are wanted, and where they end."""
        first, end = wanted
        schema = partition.topic.schema
        look = self._look_of(subject, schema)
        try:
            batches = partition.read(first, end, BYTES_AT_ONCE)[:BATCHES_AT_ONCE]
        except OffsetOutOfRange as error:
            return (error.next_offset if error.next_offset > first else first + 1), look([], wanted=wanted)
        if not batches:
            return end, look([], wanted=wanted)
        if partition.topic.spec.schema and any(node_count(payload) > schema_nodes(schema) for _, payload in batches):
            await self._topics.renewed(partition.topic)
            raise CoordinationUnavailable("this broker has only now heard of columns that were added: it reads again")
        stored = [(each.base_offset, each.record_count, each.timestamp_us, payload) for each, payload in batches]
        found = await self._places.run(partition.name, partial(look, stored, wanted=wanted))
        last = batches[-1][0]
        return min(last.base_offset + last.record_count, end), found

    def _look_of(self, subject: Subject, schema: pa.Schema) -> Callable[..., tuple[Any, ...]]:
        """How stored batches are looked at for it. Raises `InvalidSetting` for a filter that does not fit them."""
        if isinstance(subject, ByKey):
            return partial(hashed, schema=schema, order_by=subject.ordered[1], seed=self._seed)
        bound = self._bound.get(subject)
        if bound is None or bound[0] is not schema:
            bound = self._bound[subject] = schema, bound_filter(subject.text, schema)
        return partial(unfit_of, schema=schema, row_filter=bound[1])

    def _tell(self, led_group: LedGroup, subject: Subject, alarm: str) -> None:
        """Say so once."""
        name = led_group.partition.name, led_group.group, isinstance(subject, ByKey)
        if alarm and self._alarms.get(name) != alarm:
            log.warning("%s: queue group %s: %s", led_group.partition.name, quoted(led_group.group), alarm)
        if alarm:
            self._alarms[name] = alarm
        else:
            self._alarms.pop(name, None)


def _subjects(policy: Policy) -> list[Subject]:
    return [*([policy.ready] if isinstance(policy.ready, ByKey) else []), *policy.wanting()]


def _reads(led_group: LedGroup, policy: Policy, subject: Subject) -> bool:
    return led_group.reads(policy) and subject in _subjects(policy)


# ---------------------------------------------------------------- in a thread


def unfit_of(stored: list[Stored], schema: pa.Schema, row_filter: RowFilter, wanted: Range) -> tuple[list[Range]]:
    """Of stored batches the records that are wanted and the filter does not keep. A batch that Arrow cannot read is
    kept: whoever works on its records says what is wrong."""
    found: list[Range] = []
    for base, _, timestamp_us, payload in stored:
        low = max(0, wanted[0] - base)
        try:
            rows = decode_batch(payload, schema, row_filter.columns)
            rows = rows.slice(low, wanted[1] - base - low)  # a batch may have a hundred times as many
            mask = kept(row_filter, rows, schema, timestamp_us)
        except (CorruptBatch, pa.ArrowException):
            log.exception("the batch at offset %d cannot be compared with a filter", base)
            continue
        bits = np.array(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
        edges = np.flatnonzero(np.diff(bits, prepend=True, append=True))
        edges += base + low
        found += zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return (found,)


def hashed(stored: list[Stored], schema: pa.Schema, order_by: str, seed: bytes, wanted: Range) -> Found:
    """Of stored batches the records that are wanted. A batch that Arrow cannot read has one key: its records are lent
    one after another, and whoever works on them says what is wrong."""
    offsets: list[int] = []
    hashes: list[int] = []
    column = column_of(order_by)
    known: dict[bytes, int] = {}
    for base, count, _, payload in stored:
        try:
            keys: list[bytes | None] = keys_of(decode_batch(payload, schema, [column]), order_by).to_pylist()
        except (CorruptBatch, pa.ArrowException):
            log.exception("the keys of the batch at offset %d cannot be read", base)
            offsets += range(max(base, wanted[0]), min(base + count, wanted[1]))
            hashes += [base] * (len(offsets) - len(hashes))
            continue
        for offset, key in enumerate(keys, base):
            if key is not None and wanted[0] <= offset < wanted[1]:
                value = known.get(key)
                if value is None:
                    value = known[key] = int.from_bytes(hashlib.blake2b(key, digest_size=8, key=seed).digest())
                offsets.append(offset)
                hashes.append(value)
    return offsets, hashes


def shown_key(partition: Partition, offset: int, settings: QueueSettings) -> str:
    """The key of that record, for people; empty if it has none, or cannot be read."""
    if settings.order is not Order.KEY:
        return ""
    order_by = settings.order_by
    try:
        [(batch, payload)] = partition.read(offset, offset + 1, 1)
        rows = decode_batch(payload, partition.topic.schema, [column_of(order_by)])
        key = keys_of(rows, order_by)[offset - batch.base_offset].as_py()
    except (TritonMQError, pa.ArrowException, ValueError, IndexError):
        return ""
    return "" if key is None else bytes(key)[:KEY_SHOWN_MAX].decode(errors="backslashreplace")
