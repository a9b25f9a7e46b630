"""Partitions as the gathering sees them, and a broker that holds them. Topics, machines and indexes are real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.metrics.observing import Observing
from mq_broker.coordination.interface import Move, TopicSpec
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import Cursor, StagedBatch
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Published
from mq_broker.storage.offset_index import OffsetIndex

Brokers = tuple[int, ...]


@dataclass
class Core:
    machine: PartitionMachine
    leader: int
    replicas: Brokers
    isr: Brokers
    leader_epoch: int = 4
    high_watermark: int = 321


@dataclass
class Rest:
    asleep: bool


@dataclass
class Journal:
    keeping: None = None


class Part:
    """A replica of broker 1. Its log is offsets 10 to 99, in batches of ten records and 500 bytes."""

    closed = False

    def __init__(self, topic: Topic, number: int, core: Core, rest: Rest, unheard_ms: dict[int, int]) -> None:
        self.topic, self.number, self.replica, self.rest, self.unheard_ms = topic, number, core, rest, unheard_ms
        self.serving = self.leading = core.leader == 1
        self.journal, self.index, self.next_offset = Journal(), OffsetIndex(), 100
        for at in range(10):
            self.index.append(Published(10 * at, 10, at + 1, 1, 500, 500))
        self.index.trim(10)

    def lag(self, offset: int) -> tuple[int, int]:
        return 100 - offset, 1_000 * (100 - offset)


def part(
    name: str = "t",
    number: int = 0,
    *,
    leader: int = 1,
    serving: bool = True,
    replicas: Brokers = (1, 2, 3),
    isr: Brokers = (1, 2, 3),
    moving_to: Brokers = (),
    cursors: Mapping[str, int] | None = None,
    staged: Iterable[StagedBatch] = (),
    asleep: bool = True,
    unheard_ms: dict[int, int] | None = None,
    **settings: int,
) -> Part:
    """Broker 1 leads it with all of brokers 1 to 3 in sync, unless it is said otherwise."""
    machine = PartitionMachine(WindowBounds(100))
    machine.cursors.update({group: Cursor(offset, "spark", 70 + offset) for group, offset in (cursors or {}).items()})
    for batch in staged:
        machine.staged[batch.uuid] = batch
        if batch.due_us:
            machine.due_times.add(batch.uuid, batch.due_us)
    moving = {number: Move(moving_to, replicas)} if moving_to else {}
    least = {"min_insync_replicas": "1" if len(replicas) < 2 else "2"}
    given = {**least, **{setting: str(value) for setting, value in settings.items()}}
    spec = TopicSpec(name, f"id-{name}", (replicas,) * (number + 1), settings=given, moving=moving)
    made = Part(Topic.of(spec), number, Core(machine, leader, replicas, isr), Rest(asleep), unheard_ms or {})
    made.serving = serving
    return made


def topic(name: str, *assignment: Brokers) -> Topic:
    """As the cluster knows it: the brokers of each of its partitions."""
    return Topic.of(TopicSpec(name, f"id-{name}", assignment, settings={"min_insync_replicas": "1"}))


@dataclass
class Holder:
    """Broker 1 of these live ones, of which it has a link to 2. `looked`: how often its partitions were looked at."""

    parts: Sequence[Part]
    brokers: dict[int, None]
    broker: int = 1
    incarnation: int = 7
    looked: int = field(default=0)

    @property
    def links(self) -> Holder:
        return self

    def connected(self) -> list[int]:
        return [2]

    def partitions(self) -> list[Part]:
        self.looked += 1
        return list(self.parts)

    def hosted(self, asked: Topic, number: int) -> Part | None:
        found = [each for each in self.parts if (each.topic.spec.name, each.number) == (asked.spec.name, number)]
        return found[0] if found else None


def holder(*parts: Part, live: Brokers = (1, 2, 3)) -> Any:
    return Holder(parts, dict.fromkeys(live))


def observing(
    data: Path,
    *parts: Part,
    here: Any = None,
    members: dict[str, list[str]] | None = None,
    topics: tuple[Topic, ...] = (),
    labels: dict[str, str] | None = None,
) -> Observing:
    """What broker 1 says of these partitions, or of those of its `holder`. `labels`: of groups."""
    here = here or holder(*parts)
    known = members or {}
    return Observing(
        here, here, data, ("c-1", "r"), lambda _part, group: known.get(group, []), lambda: "file",
        topics=lambda: topics, label_of=lambda group: (labels or {}).get(group, ""),
    )  # fmt: skip
