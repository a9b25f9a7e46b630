"""A group as brokers tell of it: where it is in each partition, and how far behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mq_client.described import described
from mq_client.html import table
from mq_protocol import mq_pb2 as pb
from mq_protocol.partitioner import member_of_partition


@dataclass(frozen=True, slots=True)
class GroupCursor:
    """Where a group is in one partition. `members`: all of the group that may be given the partition.

    `lag`: records between its cursor and the end; `lag_us`: how old the next one is.
    """

    topic: str
    partition: int
    offset: int
    log_end_offset: int
    lag_bytes: int
    lag_us: int
    moved_us: int
    members: tuple[str, ...]
    kind: str
    leads: bool = True
    """False: the partition has no leader at the moment, or none that answers; this is what a follower knows."""
    label: str = ""
    """What people call the group, as its leader there was told it."""

    @property
    def lag(self) -> int:
        return max(0, self.log_end_offset - self.offset)

    @property
    def member(self) -> str:
        """The one of `members` that has the partition, or is to have it as soon as another hands it over; "" if there
        is none."""
        return member_of_partition(self.members, self.partition) if self.members else ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its cursors, by topic and partition.

    `silent`: addresses of brokers that did not answer. Partitions that only they have are missing here.
    """

    name: str
    cursors: tuple[GroupCursor, ...]
    silent: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What people call the group, as the name of a Spark query: as the leader was told it whose partition moved
        last. Empty if none was told it since it started."""
        labelled = [cursor for cursor in self.cursors if cursor.label]
        return max(labelled, key=lambda cursor: cursor.moved_us).label if labelled else ""

    @property
    def lag(self) -> int:
        """Records that it has not read, all partitions together."""
        return sum(cursor.lag for cursor in self.cursors)

    @property
    def lag_bytes(self) -> int:
        """Their stored size."""
        return sum(cursor.lag_bytes for cursor in self.cursors)

    @property
    def lag_us(self) -> int:
        """How old the oldest of them is, in microseconds."""
        return max((cursor.lag_us for cursor in self.cursors), default=0)

    def _repr_html_(self) -> str:
        called = f" ({self.label})" if self.label else ""
        title = (
            f"Group {self.name!r}{called}: {self.lag} records, {self.lag_bytes} bytes, {self.lag_us / 1e6:.1f} s behind"
        )
        silent = f"These brokers did not answer: {', '.join(self.silent)}" if self.silent else ""
        return table(title, CURSOR_HEADINGS, map(cursor_row, self.cursors), silent)


CURSOR_HEADINGS: Final = ("topic", "partition", "offset", "log end", "records", "bytes", "seconds", "member")


def cursor_row(cursor: GroupCursor) -> tuple[object, ...]:
    """A line of a table in a notebook, under `CURSOR_HEADINGS`."""
    seconds = f"{cursor.lag_us / 1e6:.1f}"
    place = (cursor.topic, cursor.partition, cursor.offset, cursor.log_end_offset)
    return (*place, cursor.lag, cursor.lag_bytes, seconds, cursor.member)


def freshness(cursor: pb.GroupCursor) -> tuple[bool, int, int, int]:
    """Of two words about one cursor the greater holds: the leader's, else the newest."""
    return cursor.leads, cursor.leader_epoch, cursor.moved_us, cursor.log_end_offset


def described_group(name: str, cursors: Iterable[pb.GroupCursor], silent: Iterable[str]) -> GroupDescription:
    """What brokers told of one group."""
    in_order = sorted(cursors, key=lambda cursor: (cursor.topic, cursor.partition))
    return GroupDescription(name, tuple(described(GroupCursor, each) for each in in_order), tuple(silent))
