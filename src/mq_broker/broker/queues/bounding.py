"""What a queue group keeps beyond its bounds goes with the entries that its leader writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.kept import Kept
from mq_broker.broker.queues.length import drop_of, excess_of, surplus_of
from mq_broker.broker.queues.policy import Policy
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Drop, Step
from mq_protocol.queue_settings import QueueSettings


class Bounding:
    """Owns how many bytes are kept, of a group that has a bound of them."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.kept: Kept | None = None

    def begin(self) -> None:
        """A new life of the group."""
        self.kept = None

    def keep_up(self, state: WorkState, settings: QueueSettings) -> bool:
        """With the state. Returns whether all is counted."""
        if bool(settings.bytes_max) is (self.kept is None):
            self.kept = Kept(state, self._partition.index) if settings.bytes_max else None
        return self.kept is None or self.kept.count()

    def written(self, steps: Iterable[Step]) -> None:
        """They are in the state from now on."""
        if self.kept is not None:
            self.kept.written(steps)
            self.kept.count()

    def bounded(self, state: WorkState, settings: QueueSettings, policy: Policy) -> Drop | None:
        """What drops the rest, once all is counted, unless that becomes dead letters."""
        if self.kept is not None and not self.kept.count():
            return None
        end, index = self._partition.next_offset, self._partition.index
        excess = excess_of(state, settings, end, self.kept)
        if excess is None:
            return None
        if policy.surplus is None:
            return drop_of(state, index, end, excess)
        policy.surplus.add(surplus_of(state, index, end, excess, policy.ready.limit))
        return None
