"""What is told of topics, their partitions, and what is done to these."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa

from mq_client.described import described
from mq_client.html import numbers, table
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_from_bytes

SCHEMAS_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`leader` 0: none at the moment. `replicas` in order of rank. `moving_to`: where they will be once the partition's
    move is over; empty if it does not move. `unheard_ms`: of replicas that are not in sync, for how long their leader
    has heard nothing."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    moving_to: tuple[int, ...] = ()
    unheard_ms: dict[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition on its way (or to be sent on its way) from the brokers `origin` to `target`, whose first is to lead.
    `leader` is as of now, and so is `isr` where the move is under way."""

    topic: str
    partition: int
    origin: tuple[int, ...]
    target: tuple[int, ...]
    leader: int = 0
    isr: tuple[int, ...] = ()


class PartitionMoves(list[PartitionMove]):
    """Moves of partitions, as a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (m.topic, m.partition, numbers(m.origin), numbers(m.target), m.leader or "none", numbers(m.isr))
            for m in self
        ]
        headings = ("topic", "partition", "from brokers", "to brokers", "leader", "in sync")
        return table(f"{len(self)} partitions move", headings, rows)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery kept: the log of `broker`, up to `next_offset`. Offsets from there to below `offset_floor` were
    given to records that are lost. `given_up`: brokers whose logs are in sync no more and begin anew."""

    broker: int
    next_offset: int
    offset_floor: int
    given_up: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`typed` False: a topic of records. `settings`: those that were given when it was made."""

    name: str
    topic_id: str
    schema: pa.Schema = field(repr=False)
    typed: bool
    settings: dict[str, str]
    partitions: tuple[PartitionDescription, ...]

    def _repr_html_(self) -> str:
        rows = [
            (p.partition, p.leader or "none", p.leader_epoch, numbers(p.replicas), numbers(p.isr), numbers(p.moving_to))
            for p in self.partitions
        ]
        headings = ("partition", "leader", "leader epoch", "replicas", "in sync", "moving to")
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema) if self.typed else "records"
        settings = ", ".join(f"{name}={value}" for name, value in sorted(self.settings.items()))
        return table(f"Topic {self.name!r}: {columns}", headings, rows, f"Settings: {settings}" if settings else "")


def described_topic(info: pb.TopicInfo) -> TopicDescription:
    partitions = sorted(info.partitions, key=lambda partition: partition.partition)
    return described(
        TopicDescription,
        info,
        schema=_schema(info.schema),
        partitions=tuple(described(PartitionDescription, each) for each in partitions),
    )


@lru_cache(maxsize=SCHEMAS_KEPT)
def _schema(data: bytes) -> pa.Schema:
    """Most of thousands of topics have one of a few schemas. Parsing takes most of the time of describing a topic."""
    return schema_from_bytes(data)
