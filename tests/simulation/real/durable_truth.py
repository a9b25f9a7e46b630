"""What every broker has said to be on its disk, held against the disks, the state nodes and what is committed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mq_broker.broker.groups.subscriptions import _Subscription
from mq_broker.storage.codec.frame import decode_frame
from mq_broker.storage.journal.segments import segment_path
from mq_protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster
    from tests.simulation.real.loop import Process

STEPS = 20
SECONDS = 1.0
"""After so many steps and so long a replica that does not lead has ended what leaders alone do."""


@dataclass(slots=True)
class Known:
    """The last entry that a log has flushed, as the replica of that process said."""

    process: Process
    index: int
    epoch: int


class DurableTruth:
    """Owns what is known of each log: by partition, broker and log id."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[str, int, str], Known] = {}
        self._idle: dict[tuple[str, str], tuple[float, int]] = {}  # of who does not lead: since when, and steps

    def stepped(self, process: Process, replica: Any, before: int) -> None:
        """`before`: the high watermark as it was."""
        shared = replica._shared
        log, key = shared.log, (shared.name, process.broker, shared.me.log_id)
        known = self._known.get(key)
        if known is None or known.process is not process:
            self._began(process, log, key, known)
            self._known[key] = Known(process, log.flushed, log.epoch_at(log.flushed))
        elif log.flushed != known.index:
            if log.flushed > known.index:
                self._flushed(process, replica, log.flushed)
            known.index, known.epoch = log.flushed, log.epoch_at(log.flushed)
        if replica.high_watermark != before and replica.leading:
            self._committed(process, replica)
        self._leads_or_not(process, replica)

    def forget(self, broker: int) -> None:
        """Nothing is known any more of what its logs have flushed."""
        for key in [key for key in self._known if key[1] == broker]:
            del self._known[key]

    def _began(self, process: Process, log: Any, key: tuple[str, int, str], known: Known | None) -> None:
        """What a log had flushed is there when its broker starts again."""
        if known is None or process.disk is None or process.disk.lied:
            return
        there = log.epoch_at(known.index)
        if log.last_index < known.index or (known.index > log.base_index and there != known.epoch):
            self.cluster.fail(
                f"{process}: {key[0]} had flushed entry {known.index} of epoch {known.epoch} as {known.process}, and "
                f"has up to {log.last_index} now, and there one of epoch {there}"
            )

    def _flushed(self, process: Process, replica: Any, index: int) -> None:
        """What is said to be flushed would survive a loss of power."""
        partition = self._partition(process, replica)
        if partition is None or partition.topic.settings.durability.value != "fsync":
            return
        journal = partition.journal
        if not journal.first_index <= index <= journal.last_index:
            return
        segment, begins = next(each for each in reversed(journal._segments) if each[0] <= index)
        path = segment_path(journal._files.directory, segment)
        first, end = journal._end(index - 1) - begins, journal._end(index) - begins
        if not os.path.exists(path):
            return  # the journal begins later by now
        disk = process.disk
        assert disk is not None
        lost = disk.unsynced(path, first, end)
        try:
            there = decode_frame(journal._place, memoryview(path.read_bytes()[first:end])).entry
        except CorruptBatch as error:
            lost = f"{path.name} has something else there: {error}"
        else:
            if (there.index, there.leader_epoch) != (index, replica._shared.log.epoch_at(index)):
                lost = f"{path.name} has entry {there.index} of epoch {there.leader_epoch} there"
        if lost:
            self.cluster.fail(f"{process}: {replica._shared.name} says that entry {index} is flushed, and {lost}")

    def _committed(self, process: Process, replica: Any) -> None:
        """Everybody in sync has flushed what is committed."""
        partition = self._partition(process, replica)
        if partition is None:
            return
        found = self.cluster.zookeeper.states.get((partition.topic.spec.topic_id, partition.number))
        key = partition.topic.spec.topic_id, partition.number
        if found is None or found[1].leader_epoch != replica.leader_epoch or key in self.cluster.zookeeper.older:
            return  # another leads by now, or the node was put back to what it was before
        name, index = replica._shared.name, replica.high_watermark
        for broker, log_id in found[1].isr:
            known = self._known.get((name, broker, log_id))
            if known is None or known.index < index:
                self.cluster.fail(
                    f"{process}: {name} commits entry {index}, and broker {broker}, which the node says is in sync, "
                    f"has flushed up to {known.index if known is not None else 'nothing'}"
                )

    def _leads_or_not(self, process: Process, replica: Any) -> None:
        """Who does not lead pushes to nobody: consumers would wait there, and the leader would not know them."""
        key = process.name, replica._shared.name
        if replica.leading:
            self._idle.pop(key, None)
            return
        now = self.cluster.loop.time()
        since, steps = self._idle.get(key, (now, 0))
        self._idle[key] = since, steps + 1
        if steps < STEPS or now < since + SECONDS:
            return
        partition = self._partition(process, replica)
        for observer in partition.observers if partition is not None else ():
            if isinstance(getattr(observer, "__self__", None), _Subscription):
                self.cluster.fail(f"{process}: a consumer is subscribed to {key[1]}, which is not led there any more")

    @staticmethod
    def _partition(process: Process, replica: Any) -> Any:
        partitions = process.shell.partitions() if process.shell is not None else ()
        return next((each for each in partitions if each.replica is replica), None)
