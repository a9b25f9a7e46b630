"""An observation as the answer to `Observe`: as many rows as fit one answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

from mq_broker.broker.metrics.observation import Observation
from mq_broker.security.authority import Asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.limits import ANSWER_BYTES_MAX

ROWS_AT_ONCE: Final = 100
"""Rows that are told before others have their turn."""

Row = pb.ObservedTopic | pb.ObservedPartition | pb.ObservedGroup


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
    if detail < pb.TOPICS:
        return response
    left_out, size = Counter(cursors=observation.left_out), 0
    tables: tuple[tuple[str, Sequence[Row], Any], ...] = (
        ("topics", observation.topics, response.topics),
        ("groups", observation.groups, response.groups),
        ("partitions", observation.partitions if detail >= pb.PARTITIONS else (), response.partitions),
    )
    for what, rows, told in tables:
        for count, row in enumerate(rows, 1):
            name = row.name if isinstance(row, pb.ObservedTopic) else row.topic
            if (not topics or name in topics) and (sees is None or _seen(row, name, sees)):
                if size < ANSWER_BYTES_MAX:
                    told.append(row)
                    size += row.ByteSize()
                else:
                    left_out[what] += 1
            if count % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
    response.left_out.update(+left_out)
    return response


def _seen(row: Row, topic: str, asker: Asker) -> bool:
    if isinstance(row, pb.ObservedGroup) and not asker.may(Operation.DESCRIBE, Kind.GROUP, row.group):
        return False
    return asker.may(Operation.DESCRIBE, Kind.TOPIC, topic)
