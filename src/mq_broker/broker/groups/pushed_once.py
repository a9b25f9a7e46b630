"""What several streams are pushed of one partition: read, described and encoded once for all that are at the same
place.

Most consumers of a partition are at its end. So of each partition the last message is kept, within a bound for all
partitions together, and whoever is elsewhere reads for itself.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final, NamedTuple

from mq_broker.broker.data.pushdown import stored
from mq_broker.broker.host.partition import Partition
from mq_broker.rpc.service import SharedBatches
from mq_broker.storage.interface import NOTHING_UNSEALED, Unsealed
from mq_protocol import mq_pb2 as pb

KEPT_BYTES_MAX: Final = 4 << 20
"""Of the records of all messages that are kept: some of a chunk each, or thousands of one record. By each of two ways
that streams go a message may be in memory once more."""

MESSAGE_BYTES: Final = 1 << 10
"""About what a kept message takes beside its records, so that small ones are bounded too."""


class Pushed(NamedTuple):
    """Batches of the offsets `start .. end - 1`, and the message that carries them. `bytes`: of their payloads."""

    start: int
    end: int
    bytes: int
    message: SharedBatches


def read(partition: Partition, start: int, bound: int, bytes_max: int, unsealed: Unsealed = NOTHING_UNSEALED) -> Pushed:
    """What is to be pushed from `start` on: whole batches, one at least, up to `bound`. Raises as `Partition.read`."""
    batches = partition.read(start, bound, bytes_max, unsealed)
    header = pb.BatchesHeader()
    name, number = partition.topic.spec.name, partition.number
    end, size = start, 0
    for batch, _ in batches:
        described = stored(batch)
        described.topic, described.partition = name, number
        header.batches.append(described)
        size += batch.payload_bytes
        end = batch.base_offset + batch.record_count
    return Pushed(start, end, size, SharedBatches(header, tuple(payload for _, payload in batches)))


class _Kept(NamedTuple):
    pushed: Pushed
    leader_epoch: int

    @property
    def nbytes(self) -> int:
        return self.pushed.bytes + MESSAGE_BYTES


class PushedOnce:
    """Owns the count of each partition's subscriptions, and the last message of each partition that has several."""

    def __init__(self) -> None:
        self._subscribed: Counter[Partition] = Counter()
        self._kept: OrderedDict[Partition, _Kept] = OrderedDict()
        self._bytes = 0

    def subscribed(self, partition: Partition) -> None:
        """It has one subscription more."""
        self._subscribed[partition] += 1

    def left(self, partition: Partition) -> None:
        """One of its subscriptions has ended."""
        self._subscribed[partition] -= 1
        if self._subscribed[partition] <= 1:
            self._forget(partition)
        if not self._subscribed[partition]:
            del self._subscribed[partition]

    def has_several(self, partition: Partition) -> bool:
        """Whether others are pushed the partition as well."""
        return self._subscribed[partition] > 1

    def read(
        self, partition: Partition, start: int, bound: int, bytes_max: int, unsealed: Unsealed = NOTHING_UNSEALED
    ) -> Pushed:
        """As the function `read`; perhaps what somebody else was pushed, if that is what would be read. It may be less
        than there is, and is more than `bytes_max` only if it is one batch."""
        epoch = partition.replica.leader_epoch
        kept = self._kept.get(partition)
        if kept is not None and kept.leader_epoch == epoch and partition.index.log_start_offset <= start:
            pushed = kept.pushed
            fits = pushed.bytes <= bytes_max or len(pushed.message.parts) == 1
            if pushed.start == start and pushed.end <= bound and fits:
                return pushed
        pushed = read(partition, start, bound, bytes_max, unsealed)
        self._keep(partition, _Kept(pushed, epoch))
        return pushed

    def _keep(self, partition: Partition, kept: _Kept) -> None:
        self._forget(partition)
        if kept.nbytes > KEPT_BYTES_MAX or not kept.pushed.message.parts:
            return
        self._kept[partition] = kept
        self._bytes += kept.nbytes
        while self._bytes > KEPT_BYTES_MAX:
            self._forget(next(iter(self._kept)))

    def _forget(self, partition: Partition) -> None:
        kept = self._kept.pop(partition, None)
        if kept is not None:
            self._bytes -= kept.nbytes
