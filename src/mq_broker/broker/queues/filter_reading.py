"""Reads rows for the filters of queue groups, a piece at a time, beside the loop."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.gathering import Gathering
from mq_broker.broker.queues.policy import Policy
from mq_broker.broker.queues.sieve import Wanting
from mq_broker.broker.runtime.places import Places
from mq_broker.core.work.ranges import Range
from mq_protocol.arrow import decode_batch, schema_nodes
from mq_protocol.envelope import Buffer
from mq_protocol.errors import CoordinationUnavailable, CorruptBatch, OffsetOutOfRange, TritonMQError
from mq_protocol.ipc_message import node_count
from mq_protocol.limits import FILTERS_AT_ONCE_MAX
from mq_protocol.names import quoted
from mq_protocol.queue_columns import bound_filter, kept
from mq_protocol.sql.row_filter import RowFilter

log = logging.getLogger(__name__)

BYTES_AT_ONCE: Final = 1 << 20
BATCHES_AT_ONCE: Final = 64
"""Stored batches that are read in one turn of the loop: so many, or so many bytes if the first is not larger."""

AGAIN_S: Final = 1.0

Stored = tuple[int, int, Buffer]
"""The first offset of a batch, its time in microseconds since 1970, and its payload."""


class FilterReading:
    """Owns who reads for which filter."""

    def __init__(self, shell: Shell, topics: Topics) -> None:
        self._shell = shell
        self._topics = topics
        self._places = Places(FILTERS_AT_ONCE_MAX, "queue-filters")
        self._reading: dict[Wanting, asyncio.Task[None]] = {}
        self._alarms: dict[tuple[str, str], str] = {}

    def look(self, gathering: Gathering, policy: Policy) -> None:
        """The group may lack rows."""
        end = gathering.partition.next_offset
        lacking = [each for each in policy.wanting() if each not in self._reading and not each.knows(end)]
        for wanting in lacking:
            name = f"filter of {gathering.group} of {gathering.partition.name}"
            task = self._reading[wanting] = self._shell.spawn(self._run(gathering, policy, wanting), name)
            task.add_done_callback(partial(self._ended, wanting))

    def _ended(self, wanting: Wanting, task: asyncio.Task[None]) -> None:
        if self._reading.get(wanting) is task:
            del self._reading[wanting]

    def alarm(self, partition: str, group: str) -> str:
        """Why no more rows are looked at; empty if all is well."""
        return self._alarms.get((partition, group), "")

    def close(self) -> None:
        self._places.close()

    async def _run(self, gathering: Gathering, policy: Policy, wanting: Wanting) -> None:
        """Until the filter knows what it wants for now."""
        partition = gathering.partition
        bound: tuple[pa.Schema, RowFilter] | None = None
        while self._reads(gathering, policy, wanting):
            wanted = wanting.to_read(partition.next_offset)
            if wanted is None:
                break
            schema = partition.topic.schema
            try:
                if bound is None or bound[0] is not schema:
                    bound = schema, bound_filter(wanting.text, schema)
                until, unfit = await self._read(partition, wanted, *bound)
            except TritonMQError as error:
                self._tell(gathering, f"rows cannot be compared with the filter, so nothing is lent: {error}")
                await asyncio.sleep(AGAIN_S)
                continue
            wanting.add(until, unfit)
            gathering.wake()
        self._tell(gathering, "")

    @staticmethod
    def _reads(gathering: Gathering, policy: Policy, wanting: Wanting) -> bool:
        return gathering.reads(policy) and wanting in policy.wanting()

    async def _read(
        self, partition: Partition, wanted: Range, schema: pa.Schema, row_filter: RowFilter
    ) -> tuple[int, list[Range]]:
        first, end = wanted
        try:
            batches = partition.read(first, end, BYTES_AT_ONCE)[:BATCHES_AT_ONCE]
        except OffsetOutOfRange as error:
            return (error.next_offset if error.next_offset > first else first + 1), []
        if not batches:
            return end, []
        if partition.topic.spec.schema and any(node_count(payload) > schema_nodes(schema) for _, payload in batches):
            await self._topics.renewed(partition.topic)
            raise CoordinationUnavailable("this broker has only now heard of columns that were added: it reads again")
        stored = [(batch.base_offset, batch.timestamp_us, payload) for batch, payload in batches]
        unfit = await self._places.run(partition.name, unfit_of, stored, schema, row_filter, wanted)
        last = batches[-1][0]
        return min(last.base_offset + last.record_count, end), unfit

    def _tell(self, gathering: Gathering, alarm: str) -> None:
        """Say so once."""
        name = gathering.partition.name, gathering.group
        if alarm and self.alarm(*name) != alarm:
            log.warning("%s: queue group %s: %s", gathering.partition.name, quoted(gathering.group), alarm)
        if alarm:
            self._alarms[name] = alarm
        else:
            self._alarms.pop(name, None)


def unfit_of(stored: list[Stored], schema: pa.Schema, row_filter: RowFilter, wanted: Range) -> list[Range]:
    """Of stored batches the records that are wanted and the filter does not keep. Runs in a thread. A batch that Arrow
    cannot read is kept: whoever works on its records says what is wrong."""
    found: list[Range] = []
    for base, timestamp_us, payload in stored:
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
    return found
