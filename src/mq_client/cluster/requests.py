"""Questions that many partitions' leaders must answer: asked of each leader once, and again of whoever leads by then.

Each answer stands at a partition's place, with an error where that broker could not give it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, Protocol, TypeVar

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Backoff, Deadline, attempts
from mq_client.cluster.replicas import known_offsets
from mq_client.errors import (
    InvalidSetting,
    NotLeader,
    OutcomeUnknown,
    PartitionUnavailable,
    SchemaMismatch,
    TritonMQError,
    UnknownPartition,
)
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import did_you_mean, usable_label
from mq_protocol.wire.error_messages import from_wire

_ATTEMPT_MS = 5_000.0
_ADDED_WITHIN_MS = 1_000.0

_ELECTION_MS = limits.SESSION_TIMEOUT_MS + 2_000.0
"""For so long a partition may have no leader without anything being wrong."""


class PartitionAnswer(Protocol):
    """What a leader says of one partition, or why it cannot."""

    @property
    def partition(self) -> int: ...

    @property
    def error(self) -> pb.Error: ...

    def HasField(self, field_name: Literal["error"]) -> bool: ...  # noqa: N802 - as protobuf has it


A = TypeVar("A", bound=PartitionAnswer)
T = TypeVar("T")

Ask = Callable[[str, list[int], Deadline], Iterable[A]]
"""Asks the broker at an address about partitions of one topic: their answers, each with its partition's number."""


def ask_offsets(
    connection: Connection,
    topic: str,
    deadline: Deadline,
    *,
    partitions: Collection[int] | None = None,
    timestamp_us: int | None = None,
    or_replicas: bool = False,
) -> dict[int, pb.PartitionOffsets]:
    """Where the partitions' logs begin and end now; with `timestamp_us` also the first offset at or after that time.

    `or_replicas`: of a partition that nobody leads for some seconds, what its replicas know to be committed
    (`lower_bound`). Raises `PartitionUnavailable` for partitions that did not answer in time.
    """

    def ask(address: str, numbers: list[int], limit: Deadline) -> Iterable[pb.PartitionOffsets]:
        request = pb.ListOffsetsRequest(topic=topic, partitions=numbers)
        if timestamp_us is not None:
            request.timestamp_us = timestamp_us
        return connection.ask(address, "ListOffsets", request, pb.ListOffsetsResponse, limit).partitions

    def ask_replicas(view: TopicView, numbers: list[int]) -> dict[int, pb.PartitionOffsets]:
        return known_offsets(connection, view, numbers, deadline)

    instead = ask_replicas if or_replicas else None
    return ask_leaders(connection, topic, partitions, ask, deadline, late=PartitionUnavailable, instead=instead)


def measure_spans(
    connection: Connection, topic: str, spans: Mapping[int, tuple[int, int, int]], deadline: Deadline
) -> dict[int, pb.SpanMeasure]:
    """How many stored bytes the offsets `start .. end - 1` of `spans[partition] = (start, end, bytes_max)` have, and
    how far `bytes_max` reaches.
    """

    def ask(address: str, numbers: list[int], limit: Deadline) -> Iterable[pb.PartitionOffsets]:
        request = pb.ListOffsetsRequest(topic=topic, partitions=numbers)
        for number in numbers:
            start, end, bytes_max = spans[number]
            request.spans.add(partition=number, start_offset=start, end_offset=end, bytes_max=bytes_max)
        return connection.ask(address, "ListOffsets", request, pb.ListOffsetsResponse, limit).partitions

    answers = ask_leaders(connection, topic, spans, ask, deadline)
    return {number: answer.span for number, answer in answers.items()}


def purge(connection: Connection, topic: str, before: Mapping[int, int], deadline: Deadline) -> dict[int, int]:
    """Drop the records of each partition below the offset given for it. Where each log starts now. May be asked
    again."""

    def ask(address: str, numbers: list[int], limit: Deadline) -> Iterable[pb.PartitionOffsets]:
        positions = [pb.CursorPosition(topic=topic, partition=number, offset=before[number]) for number in numbers]
        return connection.ask(
            address, "Purge", pb.PurgeRequest(positions=positions), pb.PurgeResponse, limit
        ).partitions

    answers = ask_leaders(connection, topic, before, ask, deadline)
    return {number: answers[number].log_start_offset for number in sorted(answers)}


def delete_group(
    connection: Connection, group: str, partitions: Mapping[str, Collection[int]], deadline: Deadline, *, force: bool
) -> None:
    """Take the group's place in `partitions[topic]` away. May be asked again."""
    for topic, numbers in partitions.items():

        def ask(address: str, numbers: list[int], limit: Deadline, topic: str = topic) -> Iterable[pb.PartitionOffsets]:
            places = [pb.TopicPartition(topic=topic, partition=number) for number in numbers]
            request = pb.DeleteGroupRequest(group=group, force=force, partitions=places)
            return connection.ask(address, "DeleteGroup", request, pb.DeleteGroupResponse, limit).partitions

        ask_leaders(connection, topic, numbers, ask, deadline)


def move_cursors(
    connection: Connection,
    group: str,
    positions: Mapping[str, Mapping[int, int]],
    deadline: Deadline,
    *,
    kind: str = "consumer",
    member_id: str = "",
    member_key: bytes = b"",
    reset: bool = False,
    unless_read: bool = False,
    label: str = "",
) -> dict[str, dict[int, int]]:
    """Move the group's cursors to `positions[topic][partition]`, the next offsets to deliver. Where each log ends.

    `kind` says who reads: "consumer", "ephemeral" or "spark". A consumer names itself, by `member_id` and `member_key`:
    its word counts forward only, and not where another member has the partition. `reset`: an administrator's word,
    which goes anywhere; with `unless_read` it raises `GroupInUse` where the group has members. `label`: what people
    call the group. Raises the first error that asking again did not mend.
    """
    ends: dict[str, dict[int, int]] = {}
    for topic, offsets in positions.items():
        if not offsets:
            continue

        def ask(
            address: str, numbers: list[int], limit: Deadline, topic: str = topic, offsets: Mapping[int, int] = offsets
        ) -> Iterable[pb.PartitionOffsets]:
            request = pb.MoveCursorsRequest(
                group=group,
                kind="" if reset else kind,
                member_id=member_id,
                member_key=member_key,
                reset=reset,
                unless_read=unless_read,
                label=usable_label(label),
                positions=[
                    pb.CursorPosition(topic=topic, partition=number, offset=offsets[number]) for number in numbers
                ],
            )
            return connection.ask(address, "MoveCursors", request, pb.MoveCursorsResponse, limit).partitions

        answers = ask_leaders(connection, topic, offsets, ask, deadline)
        ends[topic] = {number: answer.log_end_offset for number, answer in answers.items()}
    return ends


def ask_leaders(
    connection: Connection,
    topic: str,
    partitions: Collection[int] | None,
    ask: Ask[A],
    deadline: Deadline,
    *,
    late: type[TritonMQError] = OutcomeUnknown,
    instead: Callable[[TopicView, list[int]], dict[int, A]] | None = None,
) -> dict[int, A]:
    """Every partition's answer from its leader. Raises what could not be mended by asking until the deadline.

    `late`: the error for partitions that did not answer by then. `instead` answers for partitions that nobody has led
    for as long as an election should take; what it leaves out is asked of the leaders again.
    """
    view = topic_with(connection, topic, partitions or (), deadline)
    missing = list(range(view.partitions)) if partitions is None else list(dict.fromkeys(partitions))
    answers: dict[int, A] = {}
    last: TritonMQError | None = None
    election = Deadline(min(_ELECTION_MS, deadline.timeout_ms / 2))
    for attempt in attempts(deadline):
        if attempt:
            view = connection.refresh(topic, deadline)
        by_address: dict[str, list[int]] = {}
        for number in _checked(view, missing):
            address = connection.leader_address(view, number)
            if address is not None:
                by_address.setdefault(address, []).append(number)
        last = None
        for address, numbers in by_address.items():
            try:
                found = ask(address, numbers, deadline.at_most(_ATTEMPT_MS))
            except TritonMQError as error:
                if not error.retriable:
                    raise
                last = error
                continue
            for answer in _of(numbers, found):
                if not answer.HasField("error"):
                    answers[answer.partition] = answer
                    continue
                last = from_wire(answer.error)
                if not last.retriable:
                    raise last
                if isinstance(last, NotLeader):
                    connection.note_leader(topic, answer.partition, last)
        missing = [number for number in missing if number not in answers]
        if missing and instead is not None and election.expired:
            answers |= instead(view, missing)
            missing = [number for number in missing if number not in answers]
        if not missing:
            return answers
    known = f", last: {last}" if last else ": no leader was known"
    raise late(
        f"topic {topic!r}: partitions {missing[:10]} did not answer within {deadline.timeout_ms:.0f} ms{known}"
    ) from last


def ask_each(
    connection: Connection, each_ms: float, ask: Callable[[str, Deadline], T], deadline: Deadline
) -> tuple[dict[str, T], list[str]]:
    """What each live broker says, by its address, and the addresses of those that do not answer. A broker has `each_ms`
    where there are several. Raises the last error if none answers, and one that asking again would not mend."""
    connection.metadata(deadline)
    addresses = connection.addresses()
    told: dict[str, T] = {}
    silent: list[str] = []
    for address in addresses:
        try:
            told[address] = ask(address, deadline.at_most(each_ms) if len(addresses) > 1 else deadline)
        except TritonMQError as error:
            silent.append(address)
            if len(silent) == len(addresses) or not error.retriable:
                raise
    return told, silent


def _of(numbers: Collection[int], answers: Iterable[A]) -> list[A]:
    """Those that were asked for."""
    asked = set(numbers)
    return [answer for answer in answers if answer.partition in asked]


def topic_with(
    connection: Connection,
    topic: str,
    partitions: Collection[int],
    deadline: Deadline,
    *,
    columns: Collection[str] = (),
    check: Callable[[TopicView], object] | None = None,
    age_s_max: float = math.inf,
) -> TopicView:
    """The topic, as somebody describes it who knows these partitions and columns: they may have just been added, and
    brokers learn of that at their own pace. Raises `UnknownPartition`, `SchemaMismatch`, and what `check` raises of it.

    `age_s_max`: as for `Connection.topic`.
    """
    view = connection.topic(topic, deadline, age_s_max)
    limit, backoff = deadline.at_most(_ADDED_WITHIN_MS), Backoff()
    asked = False
    while True:
        try:
            _checked(view, partitions)
            _check_columns(view, columns)
            if check is not None:
                check(view)
        except (UnknownPartition, SchemaMismatch, InvalidSetting):
            if limit.expired or min(partitions, default=0) < 0:
                raise
            if asked:
                backoff.sleep(limit)
            try:
                view = connection.refresh(topic, deadline)
            except TritonMQError as error:
                if not (asked and error.retriable):
                    raise error from None
                limit = deadline.at_most(0)  # somebody has said so: that stands
            asked = True
        else:
            return view


def _check_columns(view: TopicView, columns: Collection[str]) -> None:
    for name in columns:
        if name not in view.schema.names:
            raise SchemaMismatch(f"topic {view.name!r} has no column {name!r}{did_you_mean(name, view.schema.names)}")


def _checked(view: TopicView, partitions: Collection[int]) -> Collection[int]:
    for number in partitions:
        if not 0 <= number < view.partitions:
            raise UnknownPartition(f"topic {view.name!r} has no partition {number}: it has 0 to {view.partitions - 1}")
    return partitions
