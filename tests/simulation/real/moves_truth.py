"""What the coordination service is told about moves of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.messages import NodeState

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster


class MovesTruth:
    """Owns who has been in sync with a partition while it moved. Those who came have to be, before the move ends: else
    it would take copies away before others are there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._joined: dict[tuple[str, int], set[int]] = {}
        cluster.zookeeper.on_topic = self._topic

    def state(self, topic_id: str, partition: int, state: NodeState) -> None:
        """A state node was written."""
        self._joined.setdefault((topic_id, partition), set()).update(broker for broker, _ in state.isr)

    def _topic(self, before: TopicSpec, after: TopicSpec) -> None:
        for number, move in after.moving.items():
            if before.moving.get(number) != move:
                found = self.cluster.zookeeper.states.get((after.topic_id, number))
                named = {broker for broker, _ in found[1].isr} if found is not None else set()
                self._joined[after.topic_id, number] = named
        for number, move in before.moving.items():
            if number in after.moving or tuple(after.assignment[number]) != move.target:
                continue
            came = set(move.target) - set(move.origin)
            if missing := came - self._joined.get((after.topic_id, number), set()):
                self.cluster.fail(
                    f"{after.name}-{number} has moved to {move.target}, and {sorted(missing)} were never in sync"
                )
            self.cluster.done["moves ended"] += 1
