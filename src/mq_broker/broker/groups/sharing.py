"""How the members of a group share one partition: one of them at a time has it, and hands it over without a record
given twice.

Partition p goes to member `p mod n` of the members in order of id, so every broker comes to the same spread without a
coordinator. A member has a key beside its id. Ids are told to whoever describes the group; a key is told to nobody. So
while a member lives, a stranger who names its id neither replaces it nor speaks for it.

When that member changes, the former one is given nothing more and has a while to settle what it holds; the next begins
there. One that does not settle in time is told that the partition is no longer its own, and what it held is given
again: at least once.

A member that hangs keeps its connection, and would keep its partitions with it. So a topic may say how long one may
neither take nor settle anything while there is something (`member_idle_ms`): it gives way to the next member then, and
is passed over until it comes anew, or until nobody else is left.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from mq_broker.broker.groups.cursors import CONSUMER, CursorMoves, Mover
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.core.entries import DeleteGroup
from mq_broker.core.machine.admission import too_many_groups
from mq_broker.core.machine.state import EPHEMERAL
from mq_broker.measured import ALARMS
from mq_broker.security.names import is_anothers, member_shown
from mq_protocol.errors import InvalidRequest, MemberInUse, TooManyMembers, TritonMQError
from mq_protocol.limits import GROUP_HANDOVER_MS, GROUP_MEMBERS_MAX, REQUEST_TIMEOUT_MS
from mq_protocol.names import quoted
from mq_protocol.partitioner import member_of_partition

log = logging.getLogger(__name__)

IDLE_ALARM_MS: Final = 60_000
"""An operator is told of a member that does nothing for so long, although it has something to do."""


class Member(Protocol):
    """One member's subscription to the partition. `mover`: in whose name it moves the group."""

    member_id: str
    member_key: bytes
    mover: Mover
    position: int
    settled: int

    def first_offset(self) -> int:
        """Where this member wants to begin when the group has no cursor."""

    def activate(self, offset: int) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def deactivate(self) -> None: ...
    def end(self, error: TritonMQError) -> None: ...


class _Standing(NamedTuple):
    """Where a member stood that had something to do, and since when."""

    member: Member
    position: int
    settled: int
    since_ms: int


class Share:
    """Owns who of a group's members has one partition, and which of them have given way because they did nothing.

    Invariant: at most one member is active, and it is `owner`.
    """

    def __init__(self, partition: Partition, group: str, kind: str, moves: CursorMoves) -> None:
        self._partition = partition
        self._group = group
        self.kind = kind
        self._moves = moves
        self._members: dict[str, Member] = {}
        self._owner: Member | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._settled = -1
        self._passed_over: set[str] = set()
        self._standing: _Standing | None = None
        self._is_told = False

    @property
    def members(self) -> list[str]:
        """Their ids, in order."""
        return [member_shown(each) for each in sorted(self._members)]

    def has_strangers(self, member_id: str) -> bool:
        """Whether a member of another user has that id."""
        shown = member_shown(member_id)
        return any(member_shown(each) == shown and is_anothers(each, member_id) for each in self._members)

    def has_room_for(self, member_id: str) -> bool:
        return member_id in self._members or len(self._members) < GROUP_MEMBERS_MAX

    def join(self, member: Member) -> None:
        """A member that comes again under its id replaces what it was: its former stream is gone or going. Raises
        `MemberInUse`."""
        self._check_key(member.member_id, member.member_key)
        former = self._members.get(member.member_id)
        self._members[member.member_id] = member
        self._passed_over.discard(member.member_id)
        if former is not None and former is self._owner:
            self._release()
            former.deactivate()
        self._rebalance()

    def leave(self, member: Member) -> None:
        if self._members.get(member.member_id) is member:
            del self._members[member.member_id]
            self._passed_over.discard(member.member_id)
        if self._owner is member:
            self._release()
        self._rebalance()

    def settle(self, member: Member, offset: int) -> None:
        """The member is done with everything below `offset`. Only the owner's word counts, and only forward."""
        if member is not self._owner or offset <= self._settled:
            return
        self._settled = offset
        self._moves.move(self._partition, self._group, offset, self.kind, member.mover)
        if self._leaving is not None and self._has_settled(member):
            self._switch()

    def look(self, now_ms: int, idle_ms: int | None) -> None:
        """See whether the owner does something, if it has something to do. `idle_ms`: after how long without it gives
        way; None: never. To be called often, and by a clock that does not go back."""
        owner = self._owner
        if owner is None or self._leaving is not None or self._has_nothing_to_do(owner):
            self._standing = None
            return
        standing = self._standing
        if standing is None or standing[:3] != (owner, owner.position, owner.settled):
            self._standing, self._is_told = _Standing(owner, owner.position, owner.settled, now_ms), False
            return
        idle_for_ms = now_ms - standing.since_ms
        if idle_ms is not None and idle_for_ms >= idle_ms and self._others(owner):
            self._warn(owner, idle_for_ms, "gives way to the next member")
            self._passed_over.add(owner.member_id)
            self._switch()
        elif idle_for_ms >= IDLE_ALARM_MS and not self._is_told:
            self._is_told = True
            ALARMS.add("member_idle")
            self._warn(owner, idle_for_ms, "see what it does, or set the topic's member_idle_ms to have it give way")

    def look_anew(self) -> None:
        """This broker stood still: the owner may have spoken, and was not heard."""
        self._standing = None

    def _has_nothing_to_do(self, owner: Member) -> bool:
        return self._has_settled(owner) and owner.position >= self._partition.next_offset

    def _others(self, owner: Member) -> bool:
        return any(each is not owner and each.member_id not in self._passed_over for each in self._members.values())

    def _warn(self, owner: Member, idle_for_ms: int, what: str) -> None:
        log.warning(
            "%s: member %s of group %s has taken and settled nothing for %g s, from offset %d on: %s",
            self._partition.name,
            quoted(member_shown(owner.member_id)),
            quoted(self._group),
            idle_for_ms / 1000,
            owner.settled,
            what,
        )

    def counts(self, member_id: str, member_key: bytes, offset: int) -> bool:
        """Whether a word of that member which did not come on its stream counts: unless another one has the partition.
        The next owner then begins no earlier than at that offset. Raises `MemberInUse` if the key is not that
        member's."""
        self._check_key(member_id, member_key)
        if self._owner is not None and self._owner.member_id != member_id:
            return False
        if self._settled >= 0:
            self._settled = max(self._settled, min(offset, self._partition.next_offset))
        return True

    def _check_key(self, member_id: str, member_key: bytes) -> None:
        member = self._members.get(member_id)
        if member is not None and not hmac.compare_digest(member.member_key, member_key):
            raise MemberInUse(
                f"group {self._group!r} has a living member {member_shown(member_id)!r} with another key: choose "
                "another member id, or none. If that member is yours and its machine was lost, its id is free in 15 s"
            )

    def end(self, error: TritonMQError) -> None:
        """The group is being deleted: its members have nothing here any more."""
        for member in list(self._members.values()):
            member.end(error)
        self._release()

    @staticmethod
    def _has_settled(member: Member) -> bool:
        return member.settled >= member.position

    def _release(self) -> None:
        self._owner = None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _rebalance(self) -> None:
        if not self._members or not self._partition.replica.leading:
            return
        if self._passed_over.issuperset(self._members):
            self._passed_over.clear()
        counted = self._members.keys() - self._passed_over
        wanted = self._members[member_of_partition(counted, self._partition.number)]
        owner = self._owner
        if owner is wanted:
            if self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
                owner.resume()
        elif owner is None:
            self._give(wanted)
        elif self._has_settled(owner):
            self._switch()
        elif self._leaving is None:
            owner.pause()
            self._leaving = asyncio.get_running_loop().call_later(GROUP_HANDOVER_MS / 1000, self._switch)

    def _switch(self) -> None:
        owner = self._owner
        assert owner is not None
        if not self._has_settled(owner):
            log.info(
                "%s: group %s takes it from %s, which has not settled in time",
                self._partition.name,
                quoted(self._group),
                quoted(member_shown(owner.member_id)),
            )
        self._release()
        owner.deactivate()
        self._rebalance()

    def _give(self, member: Member) -> None:
        self._owner = member
        if self._settled < 0:
            self._settled = self._moves.cursor(self._partition, self._group)
        if self._settled < 0:
            # Written down at once: a group that began at the end must find that place again, not a later end.
            self._settled = member.first_offset()
            self._moves.move(self._partition, self._group, self._settled, self.kind, member.mover)
        member.activate(self._settled)


class Shares:
    """Owns every share of this broker: one a group and partition that has members here."""

    def __init__(self) -> None:
        self._moves = CursorMoves()
        self._shares: dict[tuple[Partition, str], Share] = {}

    def join(self, partition: Partition, group: str, member: Member, *, ephemeral: bool = False) -> Share:
        """Raises `InvalidRequest` if the group is there already and is not meant to end as this member's is, or the
        other way; `PermissionDenied` for the group of another user's query; `MemberInUse`, `TooManyGroups` and
        `TooManyMembers`."""
        member.mover.check(group, partition.replica.machine.cursors.get(group))
        error = too_many_groups(group, partition.replica.machine)
        if error is not None:
            raise error
        share = self._shares.get((partition, group))
        kind = EPHEMERAL if ephemeral else CONSUMER
        present = share.kind if share is not None else self._moves.kind(partition, group)
        if present is not None and (present == EPHEMERAL) != ephemeral:
            raise InvalidRequest(
                f"group {group!r} is there already, and {'ends with its last member' if not ephemeral else 'is kept'}: "
                f"give ephemeral={not ephemeral} to consume in it, or another group"
            )
        if share is not None and not share.has_room_for(member.member_id):
            raise TooManyMembers(
                f"group {group!r} has {len(share.members)} members at {partition.name}, as many as it takes: stop some "
                "of them, or consume in another group"
            )
        if share is None:
            share = self._shares[partition, group] = Share(partition, group, kind, self._moves)
        share.join(member)
        return share

    def all(self) -> list[tuple[Partition, Share]]:
        return [(partition, share) for (partition, _), share in self._shares.items()]

    def leave(self, partition: Partition, group: str, member: Member) -> None:
        share = self._shares.get((partition, group))
        if share is not None:
            share.leave(member)
            if not share.members:
                del self._shares[partition, group]

    def end(self, partition: Partition, group: str, error: TritonMQError) -> None:
        """End what the group's members have of the partition, and what is still to be written of its cursor."""
        share = self._shares.pop((partition, group), None)
        if share is not None:
            share.end(error)
        self._moves.forget(partition, group)

    def forget(self, partition: Partition, group: str) -> None:
        """As `end`, of a group without members."""
        self._moves.forget(partition, group)

    def counts(self, partition: Partition, group: str, member_id: str, member_key: bytes, offset: int) -> bool:
        """As `Share.counts`. Of a group without members here everybody's word counts: it only goes forward."""
        share = self._shares.get((partition, group))
        return share is None or share.counts(member_id, member_key, offset)

    def has_strangers(self, partition: Partition, group: str, member_id: str) -> bool:
        """Whether a member of another user has its id here."""
        share = self._shares.get((partition, group))
        return share is not None and share.has_strangers(member_id)

    def members_of(self, partition: Partition, group: str) -> list[str]:
        share = self._shares.get((partition, group))
        return share.members if share is not None else []


SLEPT_MS: Final = 5_000
"""A broker that has not looked for so long stood still."""


class IdleMembers:
    """Looks after members that have a partition and do nothing with it. Owns when it looked last."""

    def __init__(self, shell: Shell, shares: Shares) -> None:
        self._shell = shell
        self._shares = shares
        self._looked_ms = shell.now_ms()

    async def look(self) -> None:
        """At each group of each partition led here that has members."""
        now_ms = self._shell.now_ms()
        stood_still = now_ms - self._looked_ms > SLEPT_MS
        self._looked_ms = now_ms
        async for partition, share in in_turns(self._shares.all()):
            if stood_still or not partition.serving:
                share.look_anew()
            else:
                share.look(now_ms, partition.topic.settings.member_idle_ms)


GRACE_MS: Final = 30_000
"""For so long members may be away: longer than a failover takes them to come back, or a program to restart."""


class EphemeralGroups:
    """Groups that end with their last member: their cursors go some time after nobody reads in them any more.

    That a group is ephemeral is written in its cursors, so every leader knows. Each leader decides for its partitions:
    all members of a group are members of each partition's share. A new leader has heard of no member yet, and begins to
    wait anew.

    Owns since when each ephemeral group has had no member, of the partitions led here.
    """

    def __init__(self, shell: Shell, shares: Shares) -> None:
        self._shell = shell
        self._shares = shares
        self._alone: dict[tuple[Partition, str], tuple[int, int]] = {}  # (leader epoch, since when)

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.machine.ephemeral

    def look(self, partitions: Iterable[Partition]) -> None:
        """End the groups whose time is over."""
        now_ms = self._shell.now_ms()
        alone: dict[tuple[Partition, str], tuple[int, int]] = {}
        for partition in partitions:
            if not partition.serving:
                continue
            for group in partition.replica.machine.ephemeral:
                if self._shares.members_of(partition, group):
                    continue
                epoch = partition.replica.leader_epoch
                former, since_ms = self._alone.get((partition, group), (epoch, now_ms))
                since_ms = since_ms if former == epoch else now_ms
                if now_ms - since_ms >= GRACE_MS:
                    self._shell.spawn(self._end(partition, group), f"end group {group} in {partition.name}")
                    since_ms = now_ms
                alone[partition, group] = epoch, since_ms
        self._alone = alone

    async def _end(self, partition: Partition, group: str) -> None:
        self._shares.forget(partition, group)
        try:
            await partition.ask(DeleteGroup(group), asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000)
            log.info("%s: group %s has ended: it had no member for %g s", partition.name, group, GRACE_MS / 1000)
        except TritonMQError as error:  # another leader, or the next look, does it
            log.info("%s: group %s could not be ended: %s", partition.name, group, error)
