"""Topics, brokers and groups: made, listed, described, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Final, NamedTuple

import pyarrow as pa

from mq_client.administration.peek import PEEK_RECORDS_MAX, peek
from mq_client.administration.security_admin import SecurityAdministrator
from mq_client.administration.transaction_admin import TransactionAdministrator
from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline, positive_ms
from mq_client.cluster.listening import REFUSED_S
from mq_client.cluster.paging import Parts
from mq_client.cluster.requests import ask_each, ask_offsets, delete_group, move_cursors, purge
from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import (
    GroupInUse,
    InvalidRequest,
    InvalidSetting,
    OutcomeUnknown,
    TopicExists,
    TopicNotEmpty,
    TritonMQError,
    UnknownGroup,
    UnknownTopic,
)
from mq_client.producing.batches import to_timestamp_us
from mq_client.producing.classes import schema_of
from mq_client.queueing.administrator import QueueAdministrator
from mq_client.security import Security
from mq_client.shown.described import described
from mq_client.shown.descriptions import (
    BrokerDescription,
    ClusterDescription,
    GroupDescription,
    PartitionMove,
    PartitionMoves,
    Recovery,
    TopicDescription,
    Upgrade,
    described_group,
    described_topic,
    freshness,
)
from mq_client.shown.observation import ObservingAdministrator
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.names import (
    INTERNAL_PREFIX,
    check_group_name,
    check_new_topic_name,
    check_topic_name,
    did_you_mean,
    parse_settings,
)
from mq_protocol.sql.ddl import check_column_names, check_schema, parse_schema
from mq_protocol.sql.evolution import extended
from mq_protocol.wire.error_messages import from_wire

AT_ONCE: Final = 100
"""So many topics are asked for in one request."""

SPREAD_MS: Final = 5_000.0
"""How long a new topic's name may take to reach every broker that answers."""

_TRANSFER_MS = 6_000.0
"""A leader's time for one attempt to hand over."""

_LEADER_MS = 1_000.0
"""A broker's time to say what it knows of its partitions, when others know something of them too."""


class TopicMade(NamedTuple):
    """What became of one topic of many: without an `error` it can be written to and read from. `was_there`: it was
    there before, and stays as it was."""

    name: str
    error: TritonMQError | None = None
    was_there: bool = False


class Admin(
    QueueAdministrator,
    ObservingAdministrator,
    TransactionAdministrator,
    SecurityAdministrator,
):
    """Asks about the cluster and changes it. Thread-safe. `timeout_ms`: for each call, retries included.

    Raises `InvalidSetting` for a bootstrap that is no list of addresses. Nothing is connected before the first call.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        timeout_ms: float = limits.REQUEST_TIMEOUT_MS,
        security: Security | None = None,
        forward: bool | None = None,
    ) -> None:
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._connection = Connection(bootstrap, refused_s=REFUSED_S, security=security, forward=forward)

    # ------------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 1,
        schema: pa.Schema | str | type | None = None,
        if_not_exists: bool = False,
        **settings: object,
    ) -> TopicDescription:
        """Make a topic; it can be written to and read from when this returns. `if_not_exists`: one that is there stays
        as it is, whatever its columns and settings.

        `schema`: an Arrow schema, Spark's words (`"a long, b string"`), or a dataclass, TypedDict, NamedTuple or
        pydantic model (producing/classes.py has the types); None for a topic of records. `settings`: see
        `mq_protocol.names.SETTINGS`, e.g. `durability="os"`. Raises `TopicExists`, `InvalidTopicName`, `InvalidSetting`
        with the nearest right name, `InvalidRequest` for a schema that cannot be stored, `NotEnoughBrokers`.
        """
        check_new_topic_name(name)
        request = _as_wanted(partitions, replicas, schema, settings)
        request.name = name
        deadline = Deadline(self._timeout_ms)
        if self._connection.metadata(deadline, topics=[name]).topics:
            if if_not_exists:
                return self.describe_topic(name)
            raise _exists(name)
        unclear: list[str] = []
        try:
            self._connection.ask_any("CreateTopic", request, pb.CreateTopicResponse, deadline, unclear)
        except TopicExists:
            # It was not there before: made by the attempt whose answer was lost, unless somebody else was as quick.
            made = self.describe_topic(name)
            ours = unclear and len(made.partitions) == partitions and made.settings == dict(request.settings)
            if not ours and not if_not_exists:
                raise
        self._wait_until_known(name, deadline)
        return self.describe_topic(name)

    def create_topics(
        self,
        names: Iterable[str],
        *,
        partitions: int = 1,
        replicas: int = 1,
        schema: pa.Schema | str | type | None = None,
        if_not_exists: bool = False,
        **settings: object,
    ) -> list[TopicMade]:
        """Make topics that are alike but for their names, each as `create_topic` does. One that is refused keeps no
        other back: what became of each is in the answer, in the order of the names. To ask again with
        `if_not_exists=True` makes those that were not made.

        `timeout_ms` is for each hundred of them. Raises `InvalidTopicName`, `InvalidSetting`, and `InvalidRequest` for
        a name that is given twice, before any is made.
        """
        if isinstance(names, str):
            raise InvalidRequest(f"names={names!r} is one name: give a list of them, or use create_topic")
        wanted = list(names)
        for name in wanted:
            check_new_topic_name(name)
        if len(set(wanted)) < len(wanted):
            twice = sorted(name for name in set(wanted) if wanted.count(name) > 1)
            raise InvalidRequest(f"topics {', '.join(twice[:10])} are given twice: give each name once")
        if not 1 <= partitions <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidSetting(
                f"partitions={partitions} is out of range: give 1 to {limits.PARTITIONS_PER_TOPIC_MAX}"
            )
        alike = _as_wanted(partitions, replicas, schema, settings)
        made: list[TopicMade] = []
        for some in _pieces(wanted, alike):
            deadline = Deadline(self._timeout_ms)
            try:
                made += self._make(some, alike, if_not_exists, deadline)
            except TritonMQError as error:
                made += [TopicMade(name, error) for name in some]
        return made

    def _make(
        self, names: Sequence[str], alike: pb.CreateTopicRequest, if_not_exists: bool, deadline: Deadline
    ) -> list[TopicMade]:
        there = {topic.name for topic in self._connection.metadata(deadline, topics=names).topics}
        request, unclear = pb.CreateTopicsRequest(), list[str]()
        for name in names:
            if name not in there:
                request.topics.add(name=name).MergeFrom(alike)
        errors: dict[str, TritonMQError] = {}
        if request.topics:
            errors = self._ask(request, deadline, unclear)
        taken = [name for name, error in errors.items() if isinstance(error, TopicExists)]
        if taken and unclear:  # made by the attempt whose answer was lost, unless somebody else was as quick
            found = self._connection.metadata(deadline, topics=taken).topics
            for topic in found:
                if len(topic.partitions) == alike.partitions and topic.settings == alike.settings:
                    del errors[topic.name]
        last = next((topic.name for topic in reversed(request.topics) if topic.name not in errors), None)
        if last is not None:  # a broker that has read of it has read of those before
            self._wait_until_known(last, deadline)
        return [self._became(name, there, errors, if_not_exists) for name in names]

    def _ask(self, request: pb.CreateTopicsRequest, deadline: Deadline, unclear: list[str]) -> dict[str, TritonMQError]:
        """Why topics were not made."""
        answer = self._connection.ask_any("CreateTopics", request, pb.CreateTopicsResponse, deadline, unclear)
        return {told.name: from_wire(told.error) for told in answer.topics if told.HasField("error")}

    def _wait_until_known(self, name: str, deadline: Deadline, partitions: int = 0, schema: bytes = b"") -> None:
        """Until each broker that answers knows the topic, its partitions and columns: the next request may go to any of
        them."""
        limit = deadline.at_most(SPREAD_MS)
        for address in self._connection.addresses():
            request = pb.MetadataRequest(topics=[name])
            while not limit.expired:
                try:
                    answer = self._connection.ask(address, "Metadata", request, pb.MetadataResponse, limit)
                except TritonMQError:
                    break
                if any(len(told.partitions) >= partitions and schema in (b"", told.schema) for told in answer.topics):
                    break
                limit.pause(0.01)

    @staticmethod
    def _became(name: str, there: set[str], errors: dict[str, TritonMQError], if_not_exists: bool) -> TopicMade:
        error = errors.get(name)
        if name in there or isinstance(error, TopicExists):
            if if_not_exists:
                return TopicMade(name, was_there=True)
            error = _exists(name)
        return TopicMade(name, error)

    def list_topics(self) -> list[str]:
        """Names of all topics but the brokers' own, sorted."""
        found = self._connection.metadata(Deadline(self._timeout_ms), all_topics=True).topics
        return sorted(topic.name for topic in found if not topic.name.startswith(INTERNAL_PREFIX))

    def describe_topic(self, name: str, *, auto_create: bool = False) -> TopicDescription:
        """The topic now: each partition as its leader knows it. Raises `UnknownTopic` with the nearest name.

        `auto_create`: it is about to be used, so brokers that run with `--auto-create` make it if there is none.
        """
        deadline = Deadline(self._timeout_ms)
        view = self._connection.refresh(name, deadline, auto_create=auto_create)
        info = pb.TopicInfo()
        info.CopyFrom(view.info)
        request = pb.MetadataRequest(topics=[name])
        for address in sorted({a for p in range(view.partitions) if (a := self._connection.leader_address(view, p))}):
            try:
                limit = deadline.at_most(_LEADER_MS)
                answer = self._connection.ask(address, "Metadata", request, pb.MetadataResponse, limit)
            except TritonMQError:
                continue  # it has just gone, or is stuck: what the others know of it stands
            for topic in answer.topics:
                for known, told in zip(info.partitions, topic.partitions, strict=False):
                    if told.leader == answer.answered_by and told.leader_epoch >= known.leader_epoch:
                        # Only a leader knows its in-sync set exactly; others learn of it when they ask
                        known.CopyFrom(told)
        return described_topic(info)

    def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        add_columns: pa.Schema | str | None = None,
        **settings: object,
    ) -> TopicDescription:
        """Change a topic while it is in use.

        - `partitions`: the new number, more than before. Records with a key go by the new number once their producer
          knows it.
        - `replicas`: copies of each partition. The copies are on their way when this returns: see `moves`.
        - `add_columns`: nullable columns to add to a typed topic, as an Arrow schema or as Spark's DDL. They are null
          in stored rows, and in rows of producers that do not know them.
        - `settings`: None restores the default.

        Raises `UnknownTopic`, `InvalidRequest` for fewer partitions and for any other change of columns,
        `InvalidSetting` naming the settings that can be changed, `NotEnoughBrokers`.
        """
        check_topic_name(name)
        given = {setting: "" if value is None else str(value) for setting, value in settings.items()}
        deadline = Deadline(self._timeout_ms)
        view = self._connection.refresh(name, deadline)
        # All columns as they are to be: asked twice, after a lost answer, it is the same change.
        schema = b"" if add_columns is None else schema_to_bytes(_with_columns(view, add_columns))
        request = pb.AlterTopicRequest(
            name=name, partitions=partitions or 0, replicas=replicas or 0, settings=given, schema=schema
        )
        answer = self._connection.ask_any("AlterTopic", request, pb.AlterTopicResponse, deadline, [])
        self._connection.forget(name)
        if partitions or schema:
            self._wait_until_known(name, deadline, len(answer.topic.partitions), schema)
        return described_topic(answer.topic)

    def delete_topic(self, name: str, *, if_empty: bool = False) -> None:
        """Delete the topic and everything in it. Raises `UnknownTopic`.

        `if_empty`: only if it holds no record and no query has staged rows for it, else raises `TopicNotEmpty`; only
        leaders are believed, so a partition without one raises `PartitionUnavailable`. That is asked before the
        deletion: a record that is published at the same time may be deleted with the topic.
        """
        check_topic_name(name)
        if if_empty:
            self._check_empty(name)
        unclear: list[str] = []
        request, deadline = pb.DeleteTopicRequest(name=name), Deadline(self._timeout_ms)
        try:
            self._connection.ask_any("DeleteTopic", request, pb.DeleteTopicResponse, deadline, unclear)
        except UnknownTopic:
            if not unclear:  # else an attempt whose answer was lost has done it
                raise
        self._connection.forget(name)

    def _check_empty(self, name: str) -> None:
        found = ask_offsets(self._connection, name, Deadline(self._timeout_ms)).values()
        held = sum(each.log_end_offset - each.log_start_offset for each in found)
        if held:
            raise TopicNotEmpty(f"topic {name!r} holds {held} records: purge it first, or delete it with them")
        for each in self.transactions():
            rows = sum(part.rows for part in each.staged if part.topic == name)
            if rows:
                raise TopicNotEmpty(
                    f"query {each.query} has staged {rows} rows for topic {name!r}: stop the query, or abort it if "
                    f"it is dead (`tritonmq transaction abort {each.key}`)"
                )

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """`{partition: (log_start_offset, log_end_offset)}` of what is committed; `end - start` is the number of
        records.

        Each partition's leader answers. If it has had no leader for some seconds, its other replicas answer with what
        they know to be committed, which may be a little less. Raises `PartitionUnavailable` if they know nothing of
        it, `UnknownTopic`.
        """
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms), or_replicas=True)
        return {number: (found[number].log_start_offset, found[number].log_end_offset) for number in sorted(found)}

    def stored_bytes(self, topic: str) -> dict[int, int]:
        """`{partition: bytes}` that its records take on one replica, as its leader counts. Raises as `offsets`."""
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms), or_replicas=True)
        return {number: found[number].bytes for number in sorted(found)}

    def scheduled(self, topic: str) -> dict[int, tuple[int, int]]:
        """`{partition: (batches, time)}` of what waits to be published, and when the first of it is due in microseconds
        since 1970; partitions in which nothing waits are left out. Raises as `offsets`."""
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms))
        return {n: (found[n].scheduled, found[n].next_due_us) for n in sorted(found) if found[n].scheduled}

    def held_by(self, topic: str) -> dict[int, str]:
        """`{partition: group}`: which group retention waits for, since it has not settled or read a record that may be
        dropped otherwise; other partitions are left out. As their leaders last looked, every two seconds. Raises as
        `offsets`."""
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms))
        return {n: found[n].held_by for n in sorted(found) if found[n].held_by}

    def offsets_at(self, topic: str, timestamp_us: int) -> dict[int, int]:
        """Each partition's first offset at or after that time (microseconds since 1970); its end if all is older."""
        found = ask_offsets(self._connection, topic, Deadline(self._timeout_ms), timestamp_us=timestamp_us)
        return {number: found[number].offset_at_timestamp for number in sorted(found)}

    def purge(self, topic: str, partition: int | None = None, before: int | datetime | None = None) -> dict[int, int]:
        """Drop records now: `{partition: log_start_offset}` as it is then. Offsets are never given again.

        `partition` None: of all partitions. `before`: an offset, or a time by the brokers' clocks; records from there
        on stay. `before` None: all that is committed by now goes. An offset beyond the end of a log drops all of it.
        Batches that a query has staged and not yet published are kept.

        A partition without a leader is waited for. Raises `OutcomeUnknown` naming the partitions that did not answer;
        it does no harm to ask again. Raises `UnknownTopic`, `UnknownPartition`, `InvalidRequest`.
        """
        check_topic_name(topic)
        if isinstance(before, int) and before < 0:
            raise InvalidRequest(f"before={before}: give an offset from 0 on, or a time")
        deadline = Deadline(self._timeout_ms)
        numbers = None if partition is None else [partition]
        time_us = to_timestamp_us(before) if isinstance(before, datetime) else None
        found = ask_offsets(self._connection, topic, deadline, partitions=numbers, timestamp_us=time_us)
        if isinstance(before, int):
            upto = dict.fromkeys(found, before)
        else:
            upto = {n: o.log_end_offset if time_us is None else o.offset_at_timestamp for n, o in found.items()}
        return purge(self._connection, topic, upto, deadline)

    # ------------------------------------------------------------------ where replicas are

    def move_partition(self, topic: str, partition: int, to: Sequence[int]) -> None:
        """Start to move a partition to the brokers `to`, in order of rank. The move continues by itself while the
        partition is written and read. `moves` shows how far it is. Raises `InvalidRequest`, `UnknownTopic`,
        `UnknownPartition`."""
        self.start_moves([PartitionMove(topic, partition, (), tuple(to))])

    def cancel_move(self, topic: str, partition: int) -> None:
        """Send the partition back to its former brokers. A partition that has arrived stays."""
        check_topic_name(topic, internal=True)
        request = pb.StartMovesRequest(moves=[pb.PartitionMove(topic=topic, partition=partition)], cancel=True)
        self._connection.ask_any("StartMoves", request, pb.StartMovesResponse, Deadline(self._timeout_ms), [])

    def start_moves(self, moves: Sequence[PartitionMove]) -> None:
        """Start many moves, as `move_partition` does: all moves of a topic or none of them."""
        if not moves:
            return
        deadline = Deadline(self._timeout_ms)
        by_topic: dict[str, list[pb.PartitionMove]] = {}
        for m in moves:
            move = pb.PartitionMove(topic=m.topic, partition=m.partition, origin=m.origin, target=m.target)
            by_topic.setdefault(m.topic, []).append(move)
        together: list[pb.PartitionMove] = []
        for started in by_topic.values():
            if len(together) + len(started) > limits.REQUEST_PLACES_MAX:
                self._start_moves(together, deadline)
                together = []
            together += started
        self._start_moves(together, deadline)

    def _start_moves(self, moves: Sequence[pb.PartitionMove], deadline: Deadline) -> None:
        if moves:
            request = pb.StartMovesRequest(moves=moves)
            self._connection.ask_any("StartMoves", request, pb.StartMovesResponse, deadline, [])

    def moves(self) -> PartitionMoves:
        """All moves that are under way, by topic and partition."""
        return self._moves(0)[0]

    def needed_by(self, broker: int) -> int:
        """How many partitions that broker holds, or is still counted in sync by. At 0 it can be stopped for good."""
        return self._moves(broker)[1]

    def _moves(self, broker: int) -> tuple[PartitionMoves, int]:
        request = pb.MovesRequest(broker=broker)
        found = self._connection.ask_any("Moves", request, pb.MovesResponse, Deadline(self._timeout_ms), [])
        return _described_moves(found.moves), found.held

    def plan_drain(self, broker: int) -> PartitionMoves:
        """The moves that would leave nothing on that broker, alive or dead. Raises `NotEnoughBrokers` naming the topic
        that has too many replicas for the others."""
        if broker < 1:
            raise InvalidRequest(f"broker {broker} is no broker's id: `describe_cluster` names those that live")
        return self._plan(broker)

    def plan_balance(self) -> PartitionMoves:
        """The moves that would spread replicas and leaders evenly over the live brokers, those just added included."""
        return self._plan(0)

    def _plan(self, drain: int) -> PartitionMoves:
        request = pb.PlanMovesRequest(drain=drain)
        found = self._connection.ask_any("PlanMoves", request, pb.PlanMovesResponse, Deadline(self._timeout_ms), [])
        return _described_moves(found.moves)

    def transfer_leadership(self, topic: str, partition: int, to: int) -> None:
        """Hand leadership over to broker `to`, and return once it leads. Raises `InvalidRequest` if it holds no
        replica, `NotEnoughReplicas` if it is not in sync in time."""
        check_topic_name(topic, internal=True)
        request = pb.LeadRequest(topic=topic, partition=partition, broker=to)
        deadline = Deadline(self._timeout_ms)
        self._connection.ask_leader(topic, partition, "Lead", request, pb.LeadResponse, deadline, _TRANSFER_MS)
        self._connection.forget(topic)

    def recover_partition(
        self, topic: str, partition: int, *, from_broker: int | None = None, force: bool = False
    ) -> Recovery:
        """Unclean recovery of a partition that has lost every in-sync log: it continues with the log of
        `from_broker`, or with the newest log that is left.

        Raises `InvalidRequest` if a broker has, or may have, an in-sync log, and names that broker. With `force` such
        a log is given up. The answer says what is lost. Readers at a lost offset are told once.
        """
        check_topic_name(topic, internal=True)
        unclear: list[str] = []
        request = pb.RecoverRequest(topic=topic, partition=partition, from_broker=from_broker or 0, force=force)
        try:
            found = self._connection.ask_any(
                "Recover", request, pb.RecoverResponse, Deadline(self._timeout_ms), unclear
            )
        except InvalidRequest as error:
            if unclear:
                raise OutcomeUnknown(f"an answer was lost, and then: {error}; see `describe_topic`") from error
            raise
        return described(Recovery, found, broker=found.kept.broker, next_offset=found.kept.next_offset)

    # ------------------------------------------------------------------ cluster and groups

    def describe_cluster(self) -> ClusterDescription:
        """The live brokers, as one of them knows them."""
        found = self._connection.metadata(Deadline(self._timeout_ms))
        return described(ClusterDescription, found, brokers=_described_brokers(found.brokers))

    def upgrade_cluster(self, *, plan: bool = False, force: bool = False) -> Upgrade:
        """Raise the cluster's level of features to the highest that every registered broker knows; with `plan` only say
        what it would be. It is never lowered: afterwards no broker that does not know it can take part.

        Raises `IncompatibleVersion` while brokers that hold replicas are not registered, unless `force`.
        """
        request = pb.UpgradeRequest(plan=plan, force=force)
        found = self._connection.ask_any("Upgrade", request, pb.UpgradeResponse, Deadline(self._timeout_ms))
        return described(Upgrade, found, brokers=_described_brokers(found.brokers))

    def list_groups(self) -> list[str]:
        """Names of all groups that have a cursor anywhere, sorted."""
        return sorted({cursor.group for cursor in self._cursors("")[0]})

    def describe_groups(self) -> list[GroupDescription]:
        """All groups, by name: one question to each broker, however many there are."""
        cursors, silent = self._cursors("")
        by_group: dict[str, list[pb.GroupCursor]] = {}
        for cursor in cursors:
            by_group.setdefault(cursor.group, []).append(cursor)
        return [described_group(name, by_group[name], silent) for name in sorted(by_group)]

    def describe_group(self, name: str) -> GroupDescription:
        """Its cursors, lag and members. Raises `UnknownGroup` with the nearest name, `Unreachable` if no broker
        answers."""
        check_group_name(name)
        cursors, silent = self._cursors(name)
        if not cursors:
            raise self._unknown_group(name)
        return described_group(name, cursors, silent)

    def _unknown_group(self, name: str) -> UnknownGroup:
        known = {group.name: group.label for group in self.describe_groups()}
        called = [group for group, label in known.items() if label == name]
        if called:
            return UnknownGroup(f"no group is named {name!r}, it is the label of {', '.join(called)}: give the name")
        return UnknownGroup(f"unknown group {name!r}{did_you_mean(name, known.keys() - {name})}")

    def peek(self, topic: str, group: str, count: int = 10) -> list[ConsumerRecord]:
        """The next records that the group is not done with, `count` at most (and 16 MiB), of all partitions together.

        They are taken from the partitions in turn and given by partition and offset. Nothing is moved. What a member
        was given and is not done with is among them. A partition in which the group has no place is read from its first
        record. Raises `UnknownGroup` for a group that has no place in any partition of the topic, `UnknownTopic`,
        `InvalidRequest`, `PartitionUnavailable`.
        """
        check_group_name(group)
        check_topic_name(topic)
        if not 0 < count <= PEEK_RECORDS_MAX:
            raise InvalidRequest(f"count={count}: from 1 to {PEEK_RECORDS_MAX} records can be peeked at")
        cursors, _ = self._cursors(group)
        places = {cursor.partition: cursor.offset for cursor in cursors if cursor.topic == topic}
        if not cursors:
            raise self._unknown_group(group)
        if not places:
            near = did_you_mean(topic, {cursor.topic for cursor in cursors})
            raise UnknownGroup(
                f"group {group!r} has no place in topic {topic!r}{near or ':'} consume or move the group there first"
            )
        return peek(self._connection, topic, places, count, self._timeout_ms)

    def delete_group(self, name: str, *, force: bool = False) -> None:
        """Delete the group: its place in every partition is forgotten, for good and by all replicas.

        Raises `GroupInUse` while it has members; with `force` they are ended (`UnknownGroup`). A query of Spark's is no
        member: one that still runs makes its group again. A partition none of whose brokers answers keeps its place:
        ask again once it has a leader. Raises `UnknownGroup` with the nearest name, `OutcomeUnknown` naming the
        partitions without an answer; it does no harm to ask again.
        """
        described = self.describe_group(name)
        members = sorted({member for cursor in described.cursors for member in cursor.members})
        if members and not force:
            raise GroupInUse(
                f"group {name!r} has members ({', '.join(members[:5])}): stop them first, or delete it by force"
            )
        partitions: dict[str, list[int]] = {}
        for cursor in described.cursors:
            partitions.setdefault(cursor.topic, []).append(cursor.partition)
        deadline = Deadline(self._timeout_ms)
        delete_group(self._connection, name, partitions, deadline, force=force)
        spread = deadline.at_most(SPREAD_MS)  # followers are told of what is committed a moment later
        while self._cursors(name)[0] and not spread.expired:
            spread.pause(0.05)

    def reset_group(
        self, name: str, topic: str, to: str | int | datetime = "earliest", *, unless_read: bool = False
    ) -> dict[int, int]:
        """Move the group's place in all partitions of the topic: to "earliest", "latest", an offset or a time (by the
        brokers' clocks). `{partition: offset}` where it is then; an offset outside a log is moved to its nearer end.

        Members that are running go on from where they are; with `unless_read`, `GroupInUse` is raised if there are any.
        Raises `UnknownTopic`, `InvalidRequest`.
        """
        check_group_name(name)
        check_topic_name(topic)
        time_us = to_timestamp_us(to) if isinstance(to, datetime) else None
        if time_us is None and to not in ("earliest", "latest") and not (isinstance(to, int) and to >= 0):
            raise InvalidRequest(f"to={to!r} is no place: give 'earliest', 'latest', an offset or a datetime")
        places: dict[int, int] = {}
        for number, found in ask_offsets(
            self._connection, topic, Deadline(self._timeout_ms), timestamp_us=time_us
        ).items():
            first, end = found.log_start_offset, found.log_end_offset
            if isinstance(to, int):
                places[number] = min(max(to, first), end)
            else:
                places[number] = {"earliest": first, "latest": end}.get(str(to), found.offset_at_timestamp)
        self.move_group(name, {topic: places}, unless_read=unless_read)
        return dict(sorted(places.items()))

    def move_group(self, name: str, positions: Mapping[str, Mapping[int, int]], *, unless_read: bool = False) -> None:
        """Move the group's cursors to `positions[topic][partition]`, forward or back. Running members continue from
        where they are; with `unless_read`, a partition of which the group has members is not moved, and `GroupInUse`
        is raised. A Spark query follows its checkpoint: it only shows another lag until its next report."""
        check_group_name(name)
        for topic, offsets in positions.items():
            if any(offset < 0 for offset in offsets.values()):
                raise InvalidRequest(f"offsets of {topic!r} must not be negative: ask `offsets` where the log begins")
        move_cursors(self._connection, name, positions, Deadline(self._timeout_ms), reset=True, unless_read=unless_read)

    def _cursors(self, group: str) -> tuple[list[pb.GroupCursor], list[str]]:
        """Every cursor, and which brokers did not answer. Each replica tells what it knows: the leader's word holds,
        and without one the newest.
        """
        cursors_at = partial(self._cursors_at, group)
        told, silent = ask_each(self._connection, _LEADER_MS, cursors_at, Deadline(self._timeout_ms))
        found: dict[tuple[str, str, int], pb.GroupCursor] = {}
        for cursor in chain.from_iterable(told.values()):
            place = (cursor.group, cursor.topic, cursor.partition)
            if place not in found or freshness(found[place]) < freshness(cursor):
                found[place] = cursor
        return list(found.values()), silent

    def _cursors_at(self, group: str, address: str, deadline: Deadline) -> list[pb.GroupCursor]:
        """All that one broker has, asked for until it has no more."""
        request = pb.GroupsRequest(group=group)
        found, parts = list[pb.GroupCursor](), Parts()
        while True:
            answer = self._connection.ask(address, "Groups", request, pb.GroupsResponse, deadline)
            found.extend(answer.cursors)
            if not parts.more(answer, answer.cursors):
                return found
            last = answer.cursors[-1]
            request.after.topic, request.after.partition, request.after_group = last.topic, last.partition, last.group

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Nothing needs closing: connections are the process's. Here so that all clients end alike."""

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_wanted(
    partitions: int, replicas: int, schema: pa.Schema | str | type | None, settings: Mapping[str, object]
) -> pb.CreateTopicRequest:
    """Of a topic whose name is still to be said. Raises what is wrong with it."""
    given = {setting: str(value) for setting, value in settings.items()}
    parse_settings(given, replicas)
    stored = None if schema is None else schema_of(schema)
    check_column_names(stored or ())
    return pb.CreateTopicRequest(
        partitions=partitions,
        replicas=replicas,
        schema=b"" if stored is None else schema_to_bytes(stored),
        settings=given,
    )


def _exists(name: str) -> TopicExists:
    return TopicExists(
        f"topic {name!r} exists already: choose another name, delete it first, or leave it as it is "
        "(if_not_exists=True, --if-not-exists)"
    )


def _pieces(names: Sequence[str], alike: pb.CreateTopicRequest) -> Iterator[Sequence[str]]:
    """As many at once as one request may name."""
    by_partitions = limits.PARTITIONS_PER_TOPIC_MAX // alike.partitions
    by_bytes = limits.REQUEST_BYTES_MAX // (alike.ByteSize() + 2 * limits.NAME_BYTES_MAX)
    count = max(1, min(AT_ONCE, by_partitions, by_bytes))
    for first in range(0, len(names), count):
        yield names[first : first + count]


def _described_moves(moves: Iterable[pb.PartitionMove]) -> PartitionMoves:
    return PartitionMoves(described(PartitionMove, each) for each in moves)


def _described_brokers(brokers: Iterable[pb.BrokerInfo]) -> tuple[BrokerDescription, ...]:
    return tuple(described(BrokerDescription, each) for each in sorted(brokers, key=lambda broker: broker.id))


def _with_columns(view: TopicView, added: pa.Schema | str) -> pa.Schema:
    """Raises `InvalidRequest` for a topic of records, and for columns that cannot be added."""
    if not view.typed:
        raise InvalidRequest(
            f"topic {view.name!r} holds records, whose columns are fixed: put more into their values or headers, or "
            "make a topic with a schema of its own"
        )
    return extended(view.name, view.schema, parse_schema(added) if isinstance(added, str) else check_schema(added))
