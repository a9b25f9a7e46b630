"""What is committed in one partition: an entry is named by its index and the leader epoch in which it was written.

A *life* of a partition goes on until it is recovered from a log that is not known to be whole (rule 15). The next one
begins with what that log had: entries after it are lost, and their indexes are given to others. Epochs are not given
twice, so a name stands for one entry and for all before it, whatever is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster
    from tests.simulation.real.loop import Process


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the coordination service was told: the partition goes on from this log, which had entries up to that one;
    `last_index` 0: nobody knows."""

    number: int
    broker: int
    last_index: int
    last_epoch: int
    at: float


@dataclass(slots=True)
class Life:
    """`committed`: the epoch of each entry, by index."""

    recovery: int = 0
    committed: dict[int, int] = field(default_factory=dict)


class Lives:
    """Owns what is known to be committed in one partition, and which entry was written after which."""

    def __init__(self, cluster: Cluster, place: str) -> None:
        self.cluster = cluster
        self.place = place
        self.lives = [Life()]
        self.recovery: Recovery | None = None
        self._before: dict[tuple[int, int], int] = {}

    @property
    def present(self) -> Life:
        return self.lives[-1]

    @property
    def recovered_at(self) -> float:
        """When the last recovery was written; what was asked before it may be lost. -1 if there was none."""
        return self.recovery.at if self.recovery is not None else -1.0

    def recovered(self, recovery: Recovery) -> None:
        self.recovery = recovery

    def see(self, log: Any) -> None:
        """Which entry each new one follows."""
        index = log.last_index
        while index > log.base_index and (index, epoch := log.epoch_at(index)) not in self._before:
            self._before[index, epoch] = log.epoch_at(index - 1)
            index -= 1

    def chain(self, index: int, epoch: int) -> list[int]:
        """The epochs of that entry and all before it, the first entry's first."""
        epochs = []
        while index > 0:
            epochs.append(epoch)
            epoch = self._before[index, epoch]
            index -= 1
        return epochs[::-1]

    def commits(self, process: Process, replica: Any, before: int) -> None:
        """The replica takes more for committed than up to `before`."""
        log, last = replica._shared.log, replica.high_watermark
        if replica.leading and replica._shared.recovery > self.present.recovery:
            self._go_on(process, replica._shared.recovery, last, log.epoch_at(last))
        first = max(before, replica.first_index - 1) + 1
        entries = {index: epoch for index in range(first, last + 1) if (epoch := log.epoch_at(index)) >= 0}
        for life in reversed(self.lives):
            # Who has not heard of a recovery yet takes for committed what was committed before it, and no more.
            known = life.committed
            if all(
                known.get(index, epoch if life is self.present else -1) == epoch for index, epoch in entries.items()
            ):
                known.update(entries)
                return
        known = self.present.committed
        index = next(index for index, epoch in entries.items() if known.get(index) != epoch)
        self.cluster.fail(
            f"{self.place}: entry {index} was committed as one of epoch {known.get(index)}, and {process} commits one "
            f"of {entries[index]}"
        )

    def _go_on(self, process: Process, number: int, index: int, epoch: int) -> None:
        """The first that is committed after a recovery: what the chosen log had is still there."""
        chain = self.chain(index, epoch)
        self.lives.append(Life(number, dict(enumerate(chain, 1))))
        self.cluster.done["lives after a recovery"] += 1
        kept = self.recovery
        if kept is None or kept.number < number:
            self.cluster.fail(
                f"{self.place}: {process} leads after recovery {number}, which nobody has written: {kept}"
            )
        elif (
            kept.number == number
            and kept.last_index
            and chain[kept.last_index - 1 : kept.last_index] != [kept.last_epoch]
        ):
            self.cluster.fail(
                f"{self.place}: recovery {number} is to go on from entry {kept.last_index} of epoch {kept.last_epoch}, "
                f"and {process} has others: up to {len(chain)}"
            )
