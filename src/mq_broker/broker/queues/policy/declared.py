"""Which queue groups a topic has: they stand in its document, with their lives and settings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.coordination.interface import QueueSpec, TopicSpec
from mq_broker.rpc.callers import asker
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import IncompatibleVersion, InvalidSetting, UnknownQueue, WrongGroupKind
from mq_protocol.names import check_group_name, did_you_mean
from mq_protocol.queues.settings import QueueSettings, parse_queue_settings


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue group as it is declared. `start_us`: as stored."""

    group: str
    life: int
    start_us: int
    settings: QueueSettings


class Declared:
    """Owns the settings that were read last, of each topic that has queue groups."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._read: dict[str, tuple[TopicSpec, dict[str, Queue]]] = {}

    def of(self, partition: Partition) -> Mapping[str, Queue]:
        """The groups of the partition's topic, by name. One whose settings only a newer version knows is left out."""
        spec = partition.topic.spec
        known = self._read.get(spec.topic_id)
        if known is None or known[0] is not spec:
            if not spec.queues:
                self._read.pop(spec.topic_id, None)
                return {}
            known = self._read[spec.topic_id] = spec, _parsed(spec)
        return known[1]

    def find(self, partition: Partition, group: str) -> Queue | None:
        return self.of(partition).get(group)

    def get(self, partition: Partition, group: str) -> Queue:
        """Raises `InvalidRequest` for what is no name, `UnknownQueue`, `WrongGroupKind` for a group that reads as a
        stream, and `IncompatibleVersion`."""
        check_group_name(group)
        queue = self.find(partition, group)
        if queue is None:
            name = partition.topic.spec.name
            if group in partition.topic.spec.queues:
                raise IncompatibleVersion(
                    f"queue group {group!r} of topic {name} has settings that only a newer release knows: upgrade this "
                    "broker"
                )
            raise unknown_queue(name, group, self.of(partition))
        if group in partition.replica.machine.cursors:
            raise WrongGroupKind(
                f"group {group!r} reads {partition.name} as a stream: delete that group, or give one of the two "
                "another name"
            )
        return queue

    def check_reads_nothing(self, topic: str, group: str) -> None:
        """Raises `WrongGroupKind` if the group reads the topic as a stream, as far as the replicas here know."""
        if self.reads(topic, group):
            raise WrongGroupKind(
                f"group {group!r} reads topic {topic} as a stream: delete that group, or choose another name"
            )

    def reads(self, topic: str, group: str) -> bool:
        """Whether the group reads the topic as a stream, as far as the replicas here know."""
        for partition in self._shell.partitions():
            if partition.topic.spec.name == topic and group in partition.replica.machine.cursors:
                return True
        return False

    def keep(self, topic_ids: Container[str]) -> None:
        """Forget what was read of other topics."""
        self._read = {topic_id: read for topic_id, read in self._read.items() if topic_id in topic_ids}


def queue_of(topic: str, group: str, spec: QueueSpec) -> Queue:
    """A group of that topic. Raises `InvalidSetting`."""
    return Queue(group, spec.life, spec.start_us, parse_queue_settings(spec.settings, topic))


def _parsed(spec: TopicSpec) -> dict[str, Queue]:
    queues = {}
    for group, each in spec.queues.items():
        try:
            queues[group] = queue_of(spec.name, group, each)
        except InvalidSetting:
            continue
    return queues


def unknown_queue(topic: str, group: str, known: Iterable[str]) -> UnknownQueue:
    """`known`: the queue groups of the topic, of which the nearest that the asker may describe is named."""
    known = [each for each in known if asker().may(Operation.DESCRIBE, Kind.GROUP, each)]
    return UnknownQueue(
        f"topic {topic} has no queue group {group!r}{did_you_mean(group, known) or ':'} `tritonmq queue list {topic}` "
        f"shows those that it has, `tritonmq queue declare {topic} {group}` makes this one"
    )
