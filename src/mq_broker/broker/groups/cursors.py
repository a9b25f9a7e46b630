"""Groups' cursors: where each group is in each partition, kept in the partition's journal.

A cursor moves by a `MoveCursor` entry. Members settle much faster than entries commit, so moves are coalesced: one in
flight a group and partition, then the newest. Who the members are is subscriptions.py's.

A group reads a topic as a stream, works it off as a queue, or is a broadcast group: never two of these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.runtime.streams import asked_of_each, in_turns
from mq_broker.broker.transactions.begun_groups import BegunGroups
from mq_broker.broker.transactions.owners import is_for_anybody, name_of
from mq_broker.core.entries import DeleteGroup, MoveCursor
from mq_broker.core.machine.admission import not_cursors_owner
from mq_broker.core.machine.state import EPHEMERAL, SPARK, Cursor
from mq_broker.core.messages import Refused, Result
from mq_broker.rpc.callers import asker, own_member
from mq_broker.security.authority import Asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import GroupInUse, InvalidRequest, PermissionDenied, TritonMQError, UnknownGroup, WrongGroupKind
from mq_protocol.limits import ANSWER_BYTES_MAX, REQUEST_TIMEOUT_MS
from mq_protocol.names import check_group_name, check_label, check_member_key, check_new_group_name, quoted
from mq_protocol.wire.error_messages import to_wire

log = logging.getLogger(__name__)

CONSUMER = "consumer"
OF_CONSUMERS = (CONSUMER, EPHEMERAL)
KINDS = (*OF_CONSUMERS, SPARK)

MOVE_AGAIN_S: Final = 1.0
"""After a move was refused for now: too few replicas are in sync, or the leadership is being handed over."""

LABELS_MAX: Final = 10_000
"""So many are remembered; what was told the longest time ago is forgotten first."""

CURSOR_TOLD_BYTES: Final = 500
"""About what a cursor takes in an answer, as an object, beside its members."""

MembersOf = Callable[[Partition, str], list[str]]
EndOf = Callable[[Partition, str, TritonMQError], None]
"""Ends what the members of a group have of a partition, with an error that they are told."""

CountsOf = Callable[[Partition, str, str, bytes, int], bool]
"""Whether the word of a member, named by its id and its key, that it is done with all below an offset of a partition
counts."""

StrangersIn = Callable[[Partition, str, str], bool]
"""Whether a member of another user has the id of this one in a group."""


@dataclass(frozen=True, slots=True)
class Mover:
    """Who moves a cursor: its name as an owner, and whether owners do not count for it."""

    owner: str
    for_anybody: bool

    @classmethod
    def of(cls, asker: Asker) -> Mover:
        return cls(name_of(asker), is_for_anybody(asker))

    def check(self, group: str, cursor: Cursor | None) -> None:
        """Raises `PermissionDenied` for the cursor of another user's query."""
        if cursor is not None and cursor.is_anothers(self.owner) and not self.for_anybody:
            raise not_cursors_owner(group)


def note_stranger(asker: Asker, group: str) -> None:
    """In the audit log: it was refused the cursor of another user's query."""
    asker.note_denied(Operation.READ, Kind.GROUP, group, "the cursor is of another user's query, who moved it first")


def check_is_no_queue(partition: Partition, group: str) -> None:
    """Raises `WrongGroupKind` for a queue group of the partition's topic."""
    if group in partition.topic.spec.queues:
        name = partition.topic.spec.name
        raise WrongGroupKind(
            f"group {group!r} of topic {name} is a queue group, and has no place in the log: work it off (Queue, "
            f"`tritonmq queue describe {name} {group}`), or read the topic in another group"
        )


def check_is_no_stream(partition: Partition, group: str, members: Collection[str]) -> None:
    """Raises `WrongGroupKind` for a group that reads the partition as a stream. `members`: those that do so now: the
    cursor of the first may not be committed yet."""
    if members or group in partition.replica.machine.cursors:
        raise WrongGroupKind(
            f"group {group!r} reads {partition.name} as a stream and has a cursor there: choose another name for a "
            "broadcast group, or delete that group"
        )


@dataclass(eq=False, slots=True)
class _Moving:
    """A move in flight, or one that waits to be tried again, and who asked for it; the newest position asked for
    meanwhile, and by whom; the leadership it is of."""

    offset: int
    kind: str
    mover: Mover
    leader_epoch: int
    wanted: tuple[int, Mover] | None = None


class CursorMoves:
    """Owns the cursor moves that are in flight."""

    def __init__(self) -> None:
        self._moving: dict[tuple[Partition, str], _Moving] = {}

    def move(self, partition: Partition, group: str, offset: int, kind: str, mover: Mover) -> None:
        """Have the group's cursor moved, soon. What is refused for now is tried again for as long as this leadership
        lasts: whoever settled it does not say so twice. At the next leader members settle anew.
        """
        moving = self._present(partition, group)
        if moving is not None:
            moving.wanted = offset, mover
            return
        moving = self._moving[partition, group] = _Moving(offset, kind, mover, partition.replica.leader_epoch)
        self._propose(partition, group, moving)

    def cursor(self, partition: Partition, group: str) -> int:
        """Where the group is, or will be once what is in flight has committed; -1 if it has no cursor."""
        moving = self._present(partition, group)
        if moving is not None:
            return moving.offset if moving.wanted is None else moving.wanted[0]
        cursor = partition.replica.machine.cursors.get(group)
        return cursor.offset if cursor is not None else -1

    def kind(self, partition: Partition, group: str) -> str | None:
        """Who reads in the group, or None if it has no cursor."""
        moving = self._present(partition, group)
        cursor = partition.replica.machine.cursors.get(group)
        return moving.kind if moving is not None else cursor.kind if cursor is not None else None

    def forget(self, partition: Partition, group: str) -> None:
        """The group is being deleted: what was to be written after the move in flight is not."""
        self._moving.pop((partition, group), None)

    def _present(self, partition: Partition, group: str) -> _Moving | None:
        """What is under way in this leadership: another leader may have moved the cursor since a former one."""
        moving = self._moving.get((partition, group))
        return moving if moving is not None and moving.leader_epoch == partition.replica.leader_epoch else None

    def _propose(self, partition: Partition, group: str, moving: _Moving) -> None:
        deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
        operation = MoveCursor(group, moving.offset, moving.kind, forward=True, owner=moving.mover.owner)
        partition.propose(
            operation,
            lambda result: self._moved(partition, group, moving, result),
            deadline,
            for_anybody=moving.mover.for_anybody,
        )

    def _moved(self, partition: Partition, group: str, moving: _Moving, result: Result) -> None:
        if self._moving.get((partition, group)) is not moving:
            return
        if isinstance(result, Refused):
            if result.error.retriable and partition.leading and self._present(partition, group) is moving:
                asyncio.get_running_loop().call_later(MOVE_AGAIN_S, self._again, partition, group, moving)
                return
            log.info(
                "%s: group %s stays before offset %d: %s", partition.name, quoted(group), moving.offset, result.error
            )
        del self._moving[partition, group]
        if not isinstance(result, Refused) and moving.wanted is not None and moving.wanted[0] != moving.offset:
            offset, mover = moving.wanted
            self.move(partition, group, offset, moving.kind, mover)

    def _again(self, partition: Partition, group: str, moving: _Moving) -> None:
        if self._moving.get((partition, group)) is not moving:
            return
        if partition.closed or self._present(partition, group) is not moving:
            del self._moving[partition, group]
            return
        if moving.wanted is not None:
            (moving.offset, moving.mover), moving.wanted = moving.wanted, None
        self._propose(partition, group, moving)


class Labels:
    """What people call groups: a Spark query's group is named by the query's id, which tells nobody anything.

    A label is for people. It is not in the journal: this broker forgets it when it ends, and is told it again with the
    query's next micro-batch.

    Owns the label of each group that this broker was told of.
    """

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}  # what was told last is at the end

    def tell(self, group: str, label: str) -> None:
        self._labels.pop(group, None)
        self._labels[group] = label
        if len(self._labels) > LABELS_MAX:
            del self._labels[next(iter(self._labels))]

    def of(self, group: str) -> str:
        """Empty if it has none here."""
        return self._labels.get(group, "")

    def forget(self, group: str) -> None:
        """It is deleted."""
        self._labels.pop(group, None)


class Groups:
    """What clients ask about groups. Owns their labels; cursors are in the partitions."""

    def __init__(
        self,
        shell: Shell,
        topics: Topics,
        members_of: MembersOf,
        counts: CountsOf,
        end_of: EndOf,
        strangers_in: StrangersIn,
        begun: BegunGroups,
    ) -> None:
        self.labels = Labels()
        self._shell = shell
        self._topics = topics
        self._members_of = members_of
        self._counts = counts
        self._end_of = end_of
        self._strangers_in = strangers_in
        self._begun = begun

    async def move_cursors(self, request: pb.MoveCursorsRequest, deadline: float) -> pb.MoveCursorsResponse:
        """Each position by itself: its answer is at its place in the response, with an error where it was refused.

        A consumer's counts only forward, and only from the member that has the partition; where no member is known to
        have it (its leader is new, or the last member's stream ended before this came), from any. Told by another one
        it is no error: what was settled since holds. A Spark query's may go back, since its checkpoint is the truth; it
        is the user's who moved it first, and nobody else's. An administrator's goes anywhere; with `unless_read`, only
        where the group has no members.
        """
        check_group_name(request.group)
        if request.kind not in KINDS and not (request.reset and not request.kind):
            raise InvalidRequest(f"kind {request.kind!r} is not known: one of {', '.join(KINDS)}")
        if request.kind in OF_CONSUMERS and not request.reset:
            if not request.member_id:
                raise InvalidRequest(
                    f"only a member of group {request.group!r} moves its cursor: name the member, or let an "
                    "administrator move the group (Admin.move_group)"
                )
            check_member_key(request.member_key)
        check_label(request.label)
        moved = await asked_of_each(lambda position: self._move(request, position, deadline), request.positions)
        return pb.MoveCursorsResponse(partitions=moved)

    async def _move(
        self, request: pb.MoveCursorsRequest, position: pb.CursorPosition, deadline: float
    ) -> pb.PartitionOffsets:
        answer = pb.PartitionOffsets(partition=position.partition)
        try:
            partition = self._shell.leader(await self._topics.get(position.topic), position.partition)
            if request.group not in partition.replica.machine.cursors:
                check_new_group_name(request.group)
                check_is_no_queue(partition, request.group)
                await self._begun.check(asker(), name_of(asker()), request.group)
            move = self._judged(request, position.offset, partition)
            if move is not None:
                await partition.ask(move, deadline, for_anybody=is_for_anybody(asker()))
                if request.label:
                    self.labels.tell(request.group, request.label)
            answer.log_end_offset = partition.next_offset
            answer.leader_epoch = partition.replica.leader_epoch
        except TritonMQError as error:
            if isinstance(error, PermissionDenied):
                note_stranger(asker(), request.group)
            answer.error.CopyFrom(to_wire(error))
        return answer

    def _judged(self, request: pb.MoveCursorsRequest, offset: int, partition: Partition) -> MoveCursor | None:
        """What is to be written; None if it does not count. Raises `InvalidRequest`, `PermissionDenied` for the cursor
        of another user's query, and `MemberInUse` for a wrong key."""
        group, kind = request.group, request.kind
        cursor = partition.replica.machine.cursors.get(group)
        mover = Mover.of(asker())
        mover.check(group, cursor)
        if request.reset:
            if request.unless_read:
                self._check_unread(partition, group, "move")
            if cursor is None:
                of_query = kind == SPARK  # of nobody: the query is yet to come
                return MoveCursor(group, offset, kind or CONSUMER, owner="" if of_query else mover.owner)
            return MoveCursor(group, offset, cursor.kind, owner=cursor.owner)
        if kind in OF_CONSUMERS:
            member = own_member(request.member_id)
            if self._counts(partition, group, member, request.member_key, offset):
                kept = cursor.kind if cursor is not None and cursor.kind in OF_CONSUMERS else kind
                return MoveCursor(group, offset, kept, forward=True, owner=mover.owner)
            log.info(
                "%s: member %s of group %s stopped; another has the partition",
                partition.name,
                quoted(request.member_id),
                quoted(group),
            )
            if self._strangers_in(partition, group, member):
                asker().note_denied(Operation.READ, Kind.GROUP, group, "the member is another user's")
            return None
        if cursor is not None and cursor.kind in OF_CONSUMERS:
            raise InvalidRequest(
                f"group {group!r} is one of consumers in {partition.name}: a query's progress would move their place. "
                "Give the query another kafka.group.id"
            )
        return MoveCursor(group, offset, kind, owner=mover.owner)

    async def delete_group(self, request: pb.DeleteGroupRequest, deadline: float) -> pb.DeleteGroupResponse:
        """Take the group's place in each of these partitions away, in the journal, so that it is gone for every later
        leader too.

        While the group has members here it is refused, unless `force`: they are then told that their group was deleted.
        """
        check_group_name(request.group)
        answers = await asked_of_each(
            lambda place: self._delete(request.group, place, deadline, force=request.force), request.partitions
        )
        return pb.DeleteGroupResponse(partitions=answers)

    async def _delete(
        self, group: str, place: pb.TopicPartition, deadline: float, *, force: bool
    ) -> pb.PartitionOffsets:
        answer = pb.PartitionOffsets(partition=place.partition)
        try:
            partition = self._shell.leader(await self._topics.get(place.topic), place.partition)
            if not force:
                self._check_unread(partition, group, "delete")
            self._end_of(
                partition, group, UnknownGroup(f"group {group!r} was deleted: subscribe anew to begin as a new one")
            )
            await partition.ask(DeleteGroup(group), deadline)
            self.labels.forget(group)
        except TritonMQError as error:
            answer.error.CopyFrom(to_wire(error))
        return answer

    def _check_unread(self, partition: Partition, group: str, verb: str) -> None:
        """Raises `GroupInUse` while the group has members here, whether it has a cursor yet or not."""
        members = self._members_of(partition, group)
        if members:
            raise GroupInUse(
                f"group {group!r} has members in {partition.name} ({', '.join(members[:5])}): stop them first, or "
                f"{verb} it by force"
            )

    async def groups(self, request: pb.GroupsRequest, _deadline: float) -> pb.GroupsResponse:
        """The cursors of one group, or of all, in every replica here; as many as fit one answer, `more` says whether
        some did not. Only those are told of which the asker may describe both the topic and the group.

        Followers answer too: a cursor is in the journal, so they have it, and while a partition's leader is gone nobody
        else can say how far behind its readers are. Whoever asks believes the leader first.
        """
        response = pb.GroupsResponse()
        size = 0
        after = request.after.topic, request.after.partition, request.after_group
        may = asker().may
        seen = (
            p
            for p in self._shell.partitions()
            if not p.closed and may(Operation.DESCRIBE, Kind.TOPIC, p.topic.spec.name)
        )
        partitions = sorted(seen, key=lambda p: (p.topic.spec.name, p.number))
        async for partition, group in in_turns(self._places(partitions, request.group, after)):
            if size >= ANSWER_BYTES_MAX:
                response.more = True
                break
            cursor = partition.replica.machine.cursors.get(group)
            if cursor is None or partition.closed or not may(Operation.DESCRIBE, Kind.GROUP, group):
                continue
            told = self._told(partition, group, cursor)
            size += CURSOR_TOLD_BYTES + sum(map(len, told.members))
            response.cursors.append(told)
        return response

    @staticmethod
    def _places(
        partitions: list[Partition], group: str, after: tuple[str, int, str]
    ) -> Iterator[tuple[Partition, str]]:
        """Where a cursor may be, in the order in which they are told, after the one that was told last."""
        for partition in partitions:
            place = partition.topic.spec.name, partition.number
            if place < after[:2]:
                continue
            for name in [group] if group else sorted(partition.replica.machine.cursors):
                if (*place, name) > after:
                    yield partition, name

    def _told(self, partition: Partition, group: str, cursor: Cursor) -> pb.GroupCursor:
        lag_bytes, lag_us = partition.lag(cursor.offset)
        return pb.GroupCursor(
            group=group,
            topic=partition.topic.spec.name,
            partition=partition.number,
            offset=cursor.offset,
            log_end_offset=partition.next_offset,
            moved_us=cursor.moved_us,
            members=self._members_of(partition, group),
            kind=cursor.kind,
            lag_bytes=lag_bytes,
            lag_us=lag_us,
            leads=partition.serving,
            leader_epoch=partition.replica.leader_epoch,
            label=self.labels.of(group),
        )
