"""An observation as the answer to `Observe`: rows become columns, as many as fit one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar

from mq_broker.broker.metrics.observation import GroupRow, Observation, PartitionRow, TopicRow
from mq_broker.security.authority import Asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import ANSWER_BYTES_MAX
from mq_protocol.rights import Kind, Operation

ROWS_AT_ONCE: Final = 100
"""Rows that are told before others have their turn."""

TOPIC_TOLD_BYTES: Final = 30
PARTITION_TOLD_BYTES: Final = 80
GROUP_TOLD_BYTES: Final = 50
"""About what a row takes in an answer, beside its names."""

Row = TypeVar("Row", TopicRow, PartitionRow, GroupRow)


async def answer(
    observation: Observation, detail: int, topics: Collection[str], sees: Asker | None = None
) -> pb.ObserveResponse:
    """`topics`: rows of these only; none: of all. `sees`: only what it may describe, and no numbers of the broker;
    None: everything."""
    response = pb.ObserveResponse(
        broker=observation.broker,
        incarnation=observation.incarnation,
        cluster_id=observation.cluster_id,
        version=observation.version,
        now_us=observation.now_us,
        state=observation.state,
        coordination=observation.coordination,
        values=observation.values if sees is None else {},
        links=observation.links if sees is None else {},
    )
    if detail >= pb.TOPICS:
        await _Telling(response, topics, sees).tell(observation, detail)
    return response


class _Telling:
    """Owns how much of one answer is full, and at which place each topic stands in it."""

    def __init__(self, response: pb.ObserveResponse, topics: Collection[str], sees: Asker | None) -> None:
        self._response = response
        self._topics = topics
        self._sees = sees
        self._size = 0
        self._places: dict[str, int] = {}

    async def tell(self, observation: Observation, detail: int) -> None:
        if observation.left_out:
            self._response.left_out["cursors"] = observation.left_out
        await self._rows("topics", observation.topics, self._topic)
        await self._rows("groups", observation.groups, self._group)
        if detail >= pb.PARTITIONS:
            await self._rows("partitions", observation.partitions, self._partition)

    async def _rows(self, what: str, rows: Iterable[Row], tell: Callable[[Row], bool]) -> None:
        """Tell them, and count those that did not fit."""
        left_out = 0
        for count, row in enumerate(rows, 1):
            name = row.name if isinstance(row, TopicRow) else row.topic
            if (not self._topics or name in self._topics) and (self._sees is None or _seen(row, name, self._sees)):
                left_out += self._size >= ANSWER_BYTES_MAX or not tell(row)
            if count % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if left_out:
            self._response.left_out[what] = left_out

    def _topic(self, row: TopicRow) -> bool:
        told = self._response.topics
        self._places[row.name] = len(told.name)
        self._size += TOPIC_TOLD_BYTES + len(row.name)
        told.name.append(row.name)
        told.led.append(row.led)
        told.records.append(row.records)
        told.bytes.append(row.bytes)
        told.staged_batches.append(row.staged_batches)
        told.oldest_staged_us.append(row.oldest_staged_us)
        return True

    def _group(self, row: GroupRow) -> bool:
        told = self._response.groups
        self._size += GROUP_TOLD_BYTES + len(row.group) + len(row.topic) + len(row.label)
        told.group.append(row.group)
        told.topic.append(row.topic)
        told.kind.append(row.kind)
        told.members.append(len(row.members))
        told.lag.append(row.lag)
        told.lag_bytes.append(row.lag_bytes)
        told.lag_us.append(row.lag_us)
        told.moved_us.append(row.moved_us)
        told.label.append(row.label)
        return True

    def _partition(self, row: PartitionRow) -> bool:
        """False if its topic did not fit."""
        place = self._places.get(row.topic)
        if place is None:
            return False
        told = self._response.partitions
        self._size += PARTITION_TOLD_BYTES + len(row.replicas) + 8 * len(row.unheard_ms)
        told.topic.append(place)
        told.partition.append(row.partition)
        told.leads.append(row.leads)
        told.leader.append(row.leader)
        told.leader_epoch.append(row.leader_epoch)
        _flat(told.replicas_count, told.replicas, row.replicas)
        _flat(told.isr_count, told.isr, row.isr)
        _flat(told.moving_to_count, told.moving_to, row.moving_to)
        told.log_start_offset.append(row.log_start_offset)
        told.log_end_offset.append(row.log_end_offset)
        told.high_watermark.append(row.high_watermark)
        told.size_bytes.append(row.size_bytes)
        told.staged_batches.append(row.staged_batches)
        told.oldest_staged_us.append(row.oldest_staged_us)
        _flat(told.unheard_count, told.unheard, tuple(row.unheard_ms))
        told.unheard_ms.extend(row.unheard_ms.values())
        return True


def _seen(row: TopicRow | PartitionRow | GroupRow, topic: str, asker: Asker) -> bool:
    if isinstance(row, GroupRow) and not asker.may(Operation.DESCRIBE, Kind.GROUP, row.group):
        return False
    return asker.may(Operation.DESCRIBE, Kind.TOPIC, topic)


def _flat(counts: Any, flat: Any, brokers: tuple[int, ...]) -> None:
    counts.append(len(brokers))
    flat.extend(brokers)
