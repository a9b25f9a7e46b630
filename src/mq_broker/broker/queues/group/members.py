"""Which leases the members of a queue group have in one partition, and which process each of them is.

Leases are facts and in the state; here they are found by member. Keys are known to this leader alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from mq_broker.core.work.ranges import Range
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import LeaseId
from mq_broker.security.names import member_shown
from mq_protocol.errors import InvalidRequest, MemberInUse
from mq_protocol.names import quoted

KEYS_MAX: Final = 10_000
"""Members whose key a leader remembers for a group and partition, the last seen ones."""

REPLACED_MAX: Final = 1_000
"""Processes whose place another took that a leader remembers for a group and partition, the last ones."""

WORKING_MAX: Final = 100_000
"""Records of a member that one death charges at most."""

LEASES_MAX: Final = 2_000
"""Of one member in a partition. Who has as many is lent nothing: each request names them all."""

_PRUNE_ABOVE: Final = 1_000
_SILENT_MIN: Final = 16


@dataclass(slots=True)
class _Silent:
    """A member that lets leases run out and was not heard of since. `left`: how many of its records may be charged
    beside those that are."""

    left: int
    charged: RunMap[bool] = field(default_factory=RunMap)


class Members:
    """Owns the index of leases by member, and the key by which each member was last seen."""

    def __init__(self, state: WorkState) -> None:
        self._state = state
        self._leases: dict[str, dict[LeaseId, None]] = {}
        self._count = 0
        self._keys: OrderedDict[str, bytes] = OrderedDict()
        self._replaced: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._working: OrderedDict[str, int] = OrderedDict()
        self._silent: dict[str, _Silent] = {}
        self._silent_max = _SILENT_MIN

    def _index(self) -> None:
        self._leases = {}
        for lease, held in self._state.leases.items():
            self._leases.setdefault(held.member, {})[lease] = None
        self._count = len(self._state.leases)

    def lent(self, member: str, lease: LeaseId) -> None:
        """It has this lease, as is known from now on."""
        leases = self._leases.setdefault(member, {})
        self._count += lease not in leases
        leases[lease] = None
        if self._count > 2 * len(self._state.leases) + _PRUNE_ABOVE:
            self._index()

    def leases(self, member: str) -> Collection[LeaseId]:
        """Those of the member that have not ended, as they were made."""
        known = self._leases.get(member)
        if known is None:
            return ()
        alive = self._state.leases
        ended = [lease for lease in known if lease not in alive]
        for lease in ended:
            del known[lease]
        self._count -= len(ended)
        if not known:
            del self._leases[member]
        return known

    def records(self, member: str) -> int:
        """How many unsettled records it has."""
        alive = self._state.leases
        return sum(alive[lease].records for lease in self.leases(member))

    def heard_of(self, member: str, working: int | None = None) -> None:
        """It lives. `working`: so many records it works on at a time, if it has said so."""
        self._silent.pop(member, None)
        if working is not None:
            self._working[member] = min(max(working, 1), WORKING_MAX)
            self._working.move_to_end(member)
            if len(self._working) > KEYS_MAX:
                self._working.popitem(last=False)

    def working(self, member: str) -> int:
        """How many records it works on at a time, as it has said."""
        return self._working.get(member, 1)

    def begun(self, member: str, ranges: Iterable[Range]) -> list[Range]:
        """Of these records, which it has let run out, those that it can have begun: the first unsettled ones, as many
        as it works on at a time, over all that ran out since it was heard of. Asked again, the answer is the same."""
        known = self._silent.get(member)
        if known is None:
            if len(self._silent) >= self._silent_max:  # who has no lease any more lets none run out
                self._silent = {name: silent for name, silent in self._silent.items() if self.leases(name)}
                self._silent_max = max(2 * len(self._silent), _SILENT_MIN)
            known = self._silent[member] = _Silent(self.working(member))
        found: list[Range] = []
        for first, end, charged in list(known.charged.pieces(ranges)):
            until = end
            if not charged:
                until, count = first_unsettled(self._state, first, end, known.left)
                known.left -= count
            if first < until:
                found.append((first, until))
        known.charged.assign([(first, end, True) for first, end in found])
        return found

    def is_another(self, member: str, key: bytes) -> bool:
        """Whether this process is another than the one that the member was last. Who gives no key cannot be told."""
        known = self._keys.get(member, b"")
        return bool(known and key) and known != key

    def is_replaced(self, member: str, key: bytes) -> bool:
        """Whether another process has taken the place of this one."""
        return (member, key) in self._replaced

    def seen(self, member: str, key: bytes) -> None:
        """The member is this process."""
        if not key:
            return
        if self.is_another(member, key):
            self._replaced[member, self._keys[member]] = None
            if len(self._replaced) > REPLACED_MAX:
                self._replaced.popitem(last=False)
        self._keys[member] = key
        self._keys.move_to_end(member)
        if len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)


def replaced(member: str, group: str) -> MemberInUse:
    """What a process is told whose place another took."""
    return MemberInUse(
        f"another process works as member {quoted(member_shown(member))} of queue group {quoted(group)} by now: give "
        "each process a member_id of its own, or give none for a random one. A process that is started anew under the "
        "member_id of one that ended takes its place"
    )


def taken(member: str) -> InvalidRequest:
    """What the session of a process is told that has opened another one since."""
    return InvalidRequest(
        f"member {quoted(member_shown(member))} has opened another session for this partition: a member has one at a "
        "time"
    )


def first_unsettled(state: WorkState, first: int, end: int, most: int) -> tuple[int, int]:
    """Where the first unsettled records of these end, so many at most, and how many they are. One range, whatever is
    settled between them: what is in many pieces may not fit into an entry."""
    count = state.settled.missing_count(first, end)
    if count <= most:
        return end, count
    low, high = first, end  # before `high` are so many
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if state.settled.missing_count(first, middle) >= most else (middle + 1, high)
    return low, most
