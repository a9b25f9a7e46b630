"""Broadcast groups: every member that is there is pushed every record that comes. Nothing is kept of a group.

Of members of different priorities only those of the highest are pushed something; others stand by. A member begins at
the end of the log, each time that it comes. So a record reaches a member at most once, and who was away has missed what
came meanwhile. A group is what its present members say, at each leader by itself: no entry is written for it.
"""

from __future__ import annotations

from typing import Protocol

from mq_broker.broker.host.partition import Partition
from mq_protocol.errors import TooManyMembers, WrongGroupKind
from mq_protocol.limits import GROUP_MEMBERS_MAX


class Listener(Protocol):
    """One member's subscription to the partition."""

    priority: int

    def first_offset(self) -> int:
        """Where it begins when it comes."""

    def activate(self, offset: int) -> None: ...
    def stand_by(self, offset: int) -> None:
        """It is pushed what is before the offset, and nothing more."""


class Audience:
    """Owns who of a broadcast group is there, in one partition.

    Invariant: those of the highest priority are pushed records, as they come, and nobody else is.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._members: dict[Listener, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    @property
    def _highest(self) -> int:
        return max((member.priority for member in self._members), default=-1)

    def join(self, member: Listener) -> None:
        former = self._highest
        self._members[member] = None
        first = member.first_offset()
        if member.priority < former:
            member.stand_by(first)
            return
        member.activate(first)
        if member.priority > former:
            for other in self._members:
                if other.priority == former:
                    other.stand_by(self._partition.next_offset)

    def leave(self, member: Listener) -> None:
        if member not in self._members:
            return
        del self._members[member]
        if self._highest >= member.priority:
            return
        for other in self._members:
            if other.priority == self._highest:
                other.activate(self._partition.next_offset)


class Audiences:
    """Owns every audience of this broker: one a broadcast group and partition that has members here."""

    def __init__(self) -> None:
        self._audiences: dict[tuple[Partition, str], Audience] = {}

    def check_has_nobody(self, partition: Partition, group: str) -> None:
        """Raises `WrongGroupKind` for a broadcast group that has members."""
        if (partition, group) in self._audiences:
            raise WrongGroupKind(
                f"group {group!r} of topic {partition.topic.spec.name} is a broadcast group, and has no place in the "
                "log: consume with broadcast=, or in another group"
            )

    def join(self, partition: Partition, group: str, member: Listener) -> None:
        """Raises `TooManyMembers`."""
        audience = self._audiences.setdefault((partition, group), Audience(partition))
        if len(audience) >= GROUP_MEMBERS_MAX:
            raise TooManyMembers(
                f"broadcast group {group!r} has {len(audience)} members at {partition.name}, as many as it takes: stop "
                "some of them, or consume in another group"
            )
        audience.join(member)

    def leave(self, partition: Partition, group: str, member: Listener) -> None:
        audience = self._audiences.get((partition, group))
        if audience is not None:
            audience.leave(member)
            if not audience:
                del self._audiences[partition, group]
