"""Which replica of a partition a read goes to, and what replicas know while nobody leads.

Every replica may serve what it knows to be committed (rule 11 of the core), so a read never gives what could still
be lost, wherever it goes. A replica may know a little less than the leader does: what it lacks is asked of the next
one.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.errors import InvalidSetting, TritonMQError
from mq_protocol import mq_pb2 as pb

READ_FROM = ("leader", "any")

_ATTEMPT_MS = 2_000.0


class Replicas:
    """Owns the order in which one reader asks the replicas of a partition.

    `read_from` "leader": the leader first. "any": those in `rack` first if it is given, then the others, by chance
    within each. The others follow in both cases, so that the loss of one replica does not end a read.
    """

    def __init__(self, connection: Connection, read_from: str, rack: str) -> None:
        if read_from not in READ_FROM:
            raise InvalidSetting(f"read_from={read_from!r} is not known: give 'leader' or 'any'")
        self._connection = connection
        self._any = read_from == "any"
        self._rack = rack
        self._random = random.Random()  # noqa: S311 - spreads load, guards nothing

    def addresses(self, view: TopicView, partition: int) -> list[str]:
        """Where to read, best first. Empty while no replica is known to live."""
        return [self._connection.brokers()[broker] for broker in self._brokers(view, partition)]

    def _brokers(self, view: TopicView, partition: int) -> list[int]:
        live, racks = self._connection.brokers(), self._connection.racks()
        leader = view.leaders[partition]
        found = [broker for broker in replicas_of(view, partition) if broker in live]
        self._random.shuffle(found)
        if self._any:
            found.sort(key=lambda broker: not self._rack or racks.get(broker) != self._rack)
        elif leader in live:
            found = [leader, *(broker for broker in found if broker != leader)]
        return found


def replicas_of(view: TopicView, partition: int) -> list[int]:
    """The brokers that hold a replica, the leader and what the partition moves to included."""
    told = next((info for info in view.info.partitions if info.partition == partition), None)
    replicas = [] if told is None else [*told.isr, *told.replicas]
    return list(dict.fromkeys(broker for broker in (*replicas, view.leaders[partition]) if broker))


def known_offsets(
    connection: Connection, view: TopicView, partitions: Collection[int], deadline: Deadline
) -> dict[int, pb.PartitionOffsets]:
    """What the replicas of these partitions know to be committed, of each the answer that knows most; none where nobody
    answers.

    The ends are lower bounds: a leader that is gone may have committed more.
    """
    live = connection.brokers()
    by_broker: dict[int, list[int]] = {}
    for number in partitions:
        for broker in replicas_of(view, number):
            if broker in live:
                by_broker.setdefault(broker, []).append(number)
    found: dict[int, pb.PartitionOffsets] = {}
    for broker, numbers in by_broker.items():
        request = pb.ListOffsetsRequest(topic=view.name, partitions=numbers, any_replica=True)
        try:
            limit = deadline.at_most(_ATTEMPT_MS)
            answers = connection.ask(live[broker], "ListOffsets", request, pb.ListOffsetsResponse, limit).partitions
        except TritonMQError:
            continue
        for answer in answers:
            before = found.get(answer.partition)
            if not answer.HasField("error") and (before is None or _knows(before) < _knows(answer)):
                found[answer.partition] = answer
    return found


def _knows(answer: pb.PartitionOffsets) -> tuple[int, int]:
    return answer.log_end_offset, answer.log_start_offset
