"""Reads the keys of records for queue groups with `order=key`, a piece at a time, beside the loop.

A key is kept as a hash with a seed of this broker's own, so nobody can make many keys that are taken for one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from typing import Final

import pyarrow as pa

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.queues.gathering import Gathering
from mq_broker.broker.queues.ordering import LOOK_AHEAD_MAX, ByKey
from mq_broker.broker.queues.policy import Policy
from mq_broker.broker.runtime.places import Places
from mq_broker.core.work.ranges import Range
from mq_protocol.arrow import decode_batch
from mq_protocol.envelope import Buffer
from mq_protocol.errors import CorruptBatch, OffsetOutOfRange, TritonMQError
from mq_protocol.names import quoted
from mq_protocol.queue_columns import column_of, keys_of
from mq_protocol.queue_settings import Order, QueueSettings

log = logging.getLogger(__name__)

BYTES_AT_ONCE: Final = 1 << 20
BATCHES_AT_ONCE: Final = 64
"""Stored batches that are read in one turn of the loop: so many, or so many bytes if the first is not larger."""

READING_AT_ONCE: Final = 2
AGAIN_S: Final = 1.0
KEY_SHOWN_MAX: Final = 100

Found = tuple[list[int], list[int]]
"""Offsets of records that have a key, and the keys' hashes."""


class KeyReading:
    """Owns who reads for which group."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._places = Places(READING_AT_ONCE, "order-keys")
        self._seed = secrets.token_bytes(32)
        self._reading: dict[ByKey, asyncio.Task[None]] = {}
        self._alarms: dict[tuple[str, str], tuple[ByKey, str]] = {}

    def look(self, gathering: Gathering, policy: Policy) -> None:
        """The group may lack keys."""
        keys = policy.ready
        if not isinstance(keys, ByKey):
            return
        task = self._reading.get(keys)
        if task is None or task.done():
            self._reading = {known: each for known, each in self._reading.items() if not each.done()}
            name = f"keys of {gathering.group} of {gathering.partition.name}"
            self._reading[keys] = self._shell.spawn(self._run(gathering, policy, keys), name)

    def alarm(self, partition: str, group: str) -> str:
        """Why no more keys are known; empty if all is well."""
        return self._alarms.get((partition, group), (None, ""))[1]

    def close(self) -> None:
        self._places.close()

    async def _run(self, gathering: Gathering, policy: Policy, keys: ByKey) -> None:
        """Until the group has what it wants for now."""
        partition = gathering.partition
        while gathering.reads(policy) and (wanted := keys.to_read(partition.next_offset)) is not None:
            try:
                until, found = await self._read(partition, wanted, keys.ordered[1])
            except TritonMQError as error:
                self._tell(gathering, keys, f"keys of records cannot be read, so nothing is lent: {error}")
                await asyncio.sleep(AGAIN_S)
                continue
            keys.add(until, *found)
            gathering.wake()
        stuck = keys.full and gathering.reads(policy)
        self._tell(
            gathering,
            keys,
            f"{LOOK_AHEAD_MAX} records are not settled, so what is behind them is not lent: see blocked_by"
            if stuck
            else "",
        )

    async def _read(self, partition: Partition, wanted: Range, order_by: str) -> tuple[int, Found]:
        first, end = wanted
        try:
            batches = partition.read(first, end, BYTES_AT_ONCE)[:BATCHES_AT_ONCE]
        except OffsetOutOfRange as error:
            return (error.next_offset if error.next_offset > first else first + 1), ([], [])
        if not batches:
            return end, ([], [])
        stored = [(batch.base_offset, batch.record_count, payload) for batch, payload in batches]
        found = await self._places.run(
            partition.name, hashed, stored, partition.topic.schema, order_by, self._seed, wanted
        )
        last = batches[-1][0]
        return min(last.base_offset + last.record_count, end), found

    def _tell(self, gathering: Gathering, keys: ByKey, alarm: str) -> None:
        """Say so once."""
        name = gathering.partition.name, gathering.group
        if alarm and self.alarm(*name) != alarm:
            log.warning("%s: queue group %s: %s", gathering.partition.name, quoted(gathering.group), alarm)
        if alarm:
            self._alarms[name] = keys, alarm
        else:
            self._alarms.pop(name, None)


Stored = tuple[int, int, Buffer]
"""The first offset of a batch, how many records it has, and its payload."""


def hashed(stored: list[Stored], schema: pa.Schema, order_by: str, seed: bytes, wanted: Range) -> Found:
    """Of stored batches the records that are wanted. Runs in a thread. A batch that Arrow cannot read has one key: its
    records are lent one after another, and whoever works on them says what is wrong."""
    offsets: list[int] = []
    hashes: list[int] = []
    column = column_of(order_by)
    known: dict[bytes, int] = {}
    for base, count, payload in stored:
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
