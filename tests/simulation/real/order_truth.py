"""What order means for a queue group of the simulated cluster, whatever its leaders know of keys.

After every entry: of the unsettled records of a key those that are lent come first, and one member has them. No record
is accepted before an earlier one of its key is settled. What goes back takes its holder's later records of the key with
it, and the holder is told which.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mq_broker.core.work.steps import LeaseId, Reject, Return
from tests.mq_broker.core.work.model import Model, offsets_of
from tests.simulation.real.clients import KEYS

if TYPE_CHECKING:
    from mq_broker.core.work.ranges import Ranges
    from tests.simulation.real.queue_truth import QueueTruth

Held = tuple[LeaseId, int]


class OrderTruth:
    """Owns the keys of one partition's records, and when each went back. `order`: of the group."""

    def __init__(self, truth: QueueTruth, order: str) -> None:
        self._truth = truth
        self.order = order
        self._keys: dict[int, int] = {}
        self._back_at: dict[Held, int] = {}

    def published(self, first: int, values: Iterable[int]) -> None:
        for offset, value in enumerate(values, first):
            self._keys[offset] = 0 if self.order == "all" else value % KEYS

    def key(self, offset: int) -> int:
        return self._keys[offset]

    def before(self, offset: int, model: Model) -> list[int]:
        """The earlier unsettled records of its key."""
        key = self._keys[offset]
        return [o for o, record in model.records.items() if o < offset and not record.settled and self._keys[o] == key]

    # ------------------------------------------------------------------ entries

    def accepts(self, ranges: Ranges, model: Model) -> None:
        """A step is about to settle these, as members have asked."""
        if self.order == "none":
            return
        accepted = set(offsets_of(ranges))
        for offset in sorted(accepted & model.records.keys()):
            if model.records[offset].settled:
                continue
            if model.records[offset].lease is None:
                self._truth._fail(f"offset {offset} is settled by a late acknowledgement, though there is an order")
            before = set(self.before(offset, model)) - accepted
            if before:
                self._truth._fail(f"offset {offset} is settled before {sorted(before)} of its key")

    def gives_back(self, step: Return | Reject, leases: dict[int, LeaseId], model: Model, index: int) -> None:
        """A step is about to end these leases, by offset."""
        if self.order == "none":
            return
        by_leader = isinstance(step, Return) and step.charged and step.error != FAILED
        for offset, lease in leases.items():
            self._back_at[lease, offset] = index
            for earlier in self.before(offset, model) if by_leader else ():
                if model.members.get(leases.get(earlier, lease)) == model.members[lease] and earlier in leases:
                    self._truth._fail(
                        f"offset {offset} is charged together with {earlier}, which is before it in order"
                    )

    def check(self, model: Model, at: int) -> None:
        """After an entry."""
        if self.order == "none":
            return
        holders: dict[int, str] = {}
        free: dict[int, int] = {}
        for offset, record in sorted(model.records.items()):
            if record.settled:
                continue
            key = self._keys[offset]
            if record.lease is None:
                free.setdefault(key, offset)
                continue
            member = model.members[record.lease]
            if key in free:
                self._truth._fail(
                    f"offset {offset} is lent to {member} at entry {at}, and offset {free[key]} of its key is not lent"
                )
            if holders.setdefault(key, member) != member:
                self._truth._fail(f"offset {offset} is lent to {member}, and {holders[key]} has others of its key")

    # ------------------------------------------------------------------ what members are told

    def told(self, member: str, back: list[Held], pulled: set[Held], held: dict[LeaseId, set[int]]) -> None:
        """The member was told that it has given back the first of these, that `pulled` went with them, and holds the
        rest."""
        entries = {self._back_at[each] for each in back if each in self._back_at}
        for lease, offset in pulled:
            if self._back_at.get((lease, offset)) not in entries:
                self._truth._fail(f"{member} was told that offset {offset} went back from {lease}, and it has not")
        first: dict[int, int] = {}
        for _, offset in back:
            first[self._keys[offset]] = min(offset, first.get(self._keys[offset], offset))
        for lease, offsets in held.items():
            for offset in offsets:
                key, entry = self._keys[offset], self._back_at.get((lease, offset), -1)
                untold = (lease, offset) not in pulled and entry in entries and first.get(key, offset) < offset
                if untold and not self._truth.was_asked(lease, offset):
                    self._truth._fail(f"offset {offset} went back from {lease} with others, and {member} was not told")


FAILED = "it failed"
