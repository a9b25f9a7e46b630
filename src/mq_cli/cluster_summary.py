"""What `tritonmq cluster status` shows: counts over all topics, as tables and as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from mq_cli.output import counted, document, duration_text, json_only
from mq_protocol.names import INTERNAL_PREFIX

if TYPE_CHECKING:
    from mq_client import ClusterDescription, PartitionDescription, TopicDescription

_CATCHING_UP_MS = 5_000
"""A replica that its leader has heard of within this time lives: it is behind."""


class ClusterSummary:
    """Counts what the brokers lead and hold. `out_of_sync`: topic, partition, and the replicas that are not in sync.
    Where nobody leads none is: the ISR says which logs were, and those may be closed. The brokers' own topics are
    among `topics`; they are counted apart from the users', and with them in all else."""

    def __init__(self, described: ClusterDescription, topics: Sequence[TopicDescription]) -> None:
        partitions = [partition for topic in topics for partition in topic.partitions]
        self._described = described
        own = [topic for topic in topics if topic.name.startswith(INTERNAL_PREFIX)]
        self._topics = len(topics) - len(own)
        self._internal = sum(len(topic.partitions) for topic in own)
        self._partitions = len(partitions) - self._internal
        self._leads = Counter(partition.leader for partition in partitions)
        self._holds = Counter(broker for partition in partitions for broker in partition.replicas)
        self._in_sync = Counter(broker for partition in partitions for broker in _in_sync(partition))
        self._moving = sum(bool(partition.moving_to) for partition in partitions)
        self._absent = sorted(self._holds.keys() - {broker.id for broker in described.brokers})
        self.out_of_sync = [
            (topic.name, partition, sorted(set(partition.replicas) - _in_sync(partition)))
            for topic in topics
            for partition in topic.partitions
            if not set(partition.replicas) <= _in_sync(partition)
        ]

    def counts(self) -> str:
        own = f" and {self._internal} of the brokers' own" if self._internal else ""
        told = (
            f"{counted(self._topics, 'topic')}, {counted(self._partitions, 'partition')}{own}, "
            f"{self._leads[0]} without a leader, "
            f"{len(self.out_of_sync)} not fully in sync"
        )
        return told + (f", {self._moving} moving" if self._moving else "")

    def security(self) -> list[str]:
        """Lines that say what is demanded of brokers, and which of them are open; none for a cluster on loopback
        addresses of which nothing is demanded."""
        insecure, floor = self._described.insecure_brokers, self._described.security_floor
        told = []
        if insecure:
            which = f"brokers {list(insecure)}" if len(insecure) > 1 else f"broker {insecure[0]}"
            told.append(
                f"INSECURE: other machines reach {which} in plain text. Whoever is on the way reads and alters what is "
                "sent: start each with --certs DIR, and without --also-plaintext (docs/tls.md)"
            )
        if floor or insecure:
            told.append(f"security floor: {', '.join(floor) or 'nothing is demanded of brokers (docs/floor.md)'}")
        return told

    def wrong(self, silent: Sequence[str]) -> list[str]:
        """What a person must look at; nothing if all is well. `silent`: addresses that did not answer."""
        found = [
            f"broker {broker} is absent, and holds {counted(self._holds[broker], 'replica')}" for broker in self._absent
        ]
        found += [f"the broker at {address} does not answer" for address in silent]
        if self._leads[0]:
            found.append(f"{counted(self._leads[0], 'partition')} without a leader")
        if self.out_of_sync:
            found.append(f"{counted(len(self.out_of_sync), 'partition')} not fully in sync")
        if self._described.coordination == "suspended":
            found.append("the broker that answered has no session with ZooKeeper")
        if self._described.coordination_access == "closing":
            found.append("nodes in ZooKeeper may be open: `tritonmq cluster secure-zookeeper` has not ended")
        return found

    def brokers(self) -> tuple[list[str], list[tuple[object, ...]]]:
        """Columns and rows: the registered brokers, then those that hold replicas and are absent."""
        rows: list[tuple[object, ...]] = [
            (broker.id, broker.address, broker.rack, broker.release, broker.incarnation, *self._share(broker.id))
            for broker in self._described.brokers
        ]
        rows += [(broker, "absent", "", "", "", *self._share(broker)) for broker in self._absent]
        return ["#broker", "address", "rack", "release", "#starts", "#leads", "#replicas", "#in sync"], rows

    def _share(self, broker: int) -> tuple[int, int, int]:
        return self._leads[broker], self._holds[broker], self._in_sync[broker]

    def not_in_sync(self, shown_max: int) -> tuple[list[str], list[tuple[object, ...]]]:
        """Columns and rows of the first `shown_max` partitions that are not fully in sync."""
        rows: list[tuple[object, ...]] = [
            (name, partition.partition, partition.leader or "none", absences(partition, brokers, self._absent))
            for name, partition, brokers in self.out_of_sync[:shown_max]
        ]
        return ["topic", "#partition", "#leader", "not in sync"], rows

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "coordination": self._described.coordination,
            "coordination_access": self._described.coordination_access or None,
            "level": self._described.level,
            "security_floor": list(self._described.security_floor),
            "insecure": bool(self._described.insecure_brokers),
            "insecure_brokers": list(self._described.insecure_brokers),
            "brokers": [
                document(broker, json_only("id", "address", "rack", "release", "level", "incarnation"))
                | dict(zip(("leads", "replicas", "in_sync"), self._share(broker.id), strict=True))
                for broker in self._described.brokers
            ],
            "absent_brokers": self._absent,
            "topics": self._topics,
            "partitions": self._partitions,
            "internal_partitions": self._internal,
            "partitions_without_leader": self._leads[0],
            "partitions_not_fully_in_sync": len(self.out_of_sync),
            "partitions_moving": self._moving,
            "not_in_sync": [
                {
                    "topic": name,
                    "partition": partition.partition,
                    "leader": partition.leader or None,
                    "brokers": brokers,
                    "unheard_ms": {str(broker): partition.unheard_ms.get(broker) for broker in brokers},
                }
                for name, partition, brokers in self.out_of_sync
            ],
        }


def _in_sync(partition: PartitionDescription) -> set[int]:
    return set(partition.isr) if partition.leader else set()


def absences(partition: PartitionDescription, brokers: list[int], absent: Collection[int] = ()) -> str:
    """The brokers, and since when their leader has not heard of them; one that it hears of is catching up, unless it is
    absent.

    A leader counts from when it began to lead: it may have led for a moment only.
    """
    told = []
    for broker in brokers:
        unheard_ms = partition.unheard_ms.get(broker)
        if unheard_ms is None:
            told.append(f"{broker}")
        elif unheard_ms < _CATCHING_UP_MS and broker in absent:
            told.append(f"{broker} (absent)")
        elif unheard_ms < _CATCHING_UP_MS:
            told.append(f"{broker} (catching up)")
        else:
            told.append(f"{broker} (not heard of for {duration_text(unheard_ms)})")
    return ", ".join(told)
