"""What `Admin` does with queue groups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import InvalidRequest
from mq_client.queueing.administration import (
    BROWSED_MAX,
    alter,
    declare,
    delete,
    describe,
    list_queues,
    peek,
    pop,
    runs,
    sweep,
)
from mq_client.queueing.redriving import REDRIVE, Order, Redriven, redrive
from mq_client.shown.descriptions import STATES, QueueDescription, QueueInfo, QueueRun
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import check_group_name, check_new_group_name, check_topic_name, did_you_mean


class QueueAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def declare_queue(
        self, topic: str, group: str, start: str | datetime = "earliest", **settings: object
    ) -> QueueInfo:
        """Make a queue group of the topic; it can be worked off when this returns. One that is there stays as it is.

        `start`: "earliest", "latest" or a time: which records it has, besides those that come later. `settings`: see
        `mq_protocol.queues.settings`, e.g. `lease_ms="5m"`. Raises `UnknownTopic`, `InvalidSetting` with the nearest
        right name, `WrongGroupKind` if a group of this name reads the topic as a stream, `IncompatibleVersion` before
        `tritonmq cluster upgrade`.
        """
        return self._declare_queue(topic, group, start, settings)[0]

    def _declare_queue(
        self, topic: str, group: str, start: str | datetime, settings: dict[str, object]
    ) -> tuple[QueueInfo, bool]:
        """And whether this has made it."""
        check_new_group_name(group)
        return declare(self._connection, topic, group, start, settings, self._deadline())

    def alter_queue(self, topic: str, group: str, **settings: object) -> QueueInfo:
        """Change settings of a queue group while it is in use. They hold at once, for what is there already too; None
        restores the default. Raises `UnknownQueue`, `InvalidSetting`."""
        if not settings:
            raise InvalidRequest("say which setting to change, e.g. lease_ms='5m'")
        return alter(self._connection, topic, group, settings, self._deadline())

    def pause_queue(self, topic: str, group: str) -> QueueInfo:
        """Lend nothing more. What is lent may still be settled."""
        return alter(self._connection, topic, group, {"paused": True}, self._deadline())

    def resume_queue(self, topic: str, group: str) -> QueueInfo:
        """Lend again."""
        return alter(self._connection, topic, group, {"paused": None}, self._deadline())

    def list_queues(self, topic: str | None = None) -> list[QueueInfo]:
        """The queue groups of all topics, or of one, by topic and group."""
        return list_queues(self._connection, topic, self._deadline())

    def describe_queue(self, topic: str, group: str) -> QueueDescription:
        """How many records are ready, leased, delayed, doomed and parked in each partition, who holds how many, and the
        totals. Raises `UnknownQueue`, `OutcomeUnknown` naming partitions without a leader that answers."""
        return describe(self._connection, topic, group, self._deadline())

    def queue_records(self, topic: str, group: str, partition: int, state: str = "any") -> list[QueueRun]:
        """Which offsets of one partition are in a state ("ready", "leased", "delayed", "doomed", "parked", "any"), in
        runs of records that are alike: at most 10,000 runs."""
        check_topic_name(topic)
        check_group_name(group)
        found: list[QueueRun] = []
        for run in runs(self._connection, topic, group, partition, _state(state), self._deadline()):
            found.append(run)
            if len(found) >= BROWSED_MAX:
                break
        return found

    def peek_queue(self, topic: str, group: str, count: int = 10, state: str = "ready") -> list[ConsumerRecord]:
        """The first records in a state, by partition and offset. Nothing is lent or counted."""
        check_topic_name(topic)
        check_group_name(group)
        return peek(self._connection, topic, group, count, _state(state), self._deadline())

    def pop_queue(self, topic: str, group: str, count: int = 1) -> list[ConsumerRecord]:
        """Take ready records off the queue: they are settled, and lent to nobody any more."""
        check_topic_name(topic)
        check_group_name(group)
        return pop(self._connection, topic, group, count, self._deadline())

    def purge_queue(self, topic: str, group: str) -> dict[int, int]:
        """Settle every record that nobody holds, up to the end of the log as it is now. `{partition: records}`. The
        records stay in the topic. Other groups are not touched."""
        return sweep(self._connection, topic, group, self._deadline(), redrive=False)

    def redrive_queue(self, topic: str, group: str) -> dict[int, int]:
        """Make parked records ready again, as if they had never failed. `{partition: records}`."""
        return sweep(self._connection, topic, group, self._deadline(), redrive=True)

    def redrive_topic(
        self,
        topic: str,
        *,
        to: str | None = None,
        group: str = REDRIVE,
        declare: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        on_sent: Callable[[int], None] = lambda _: None,
    ) -> Redriven:
        """Send the dead letters of a topic back to the topics that they came from, or all to topic `to`. Each goes
        exactly once for each `group`, whoever fails meanwhile; called again it goes on where it stopped. The letters
        that are there at the call are sent, at most `limit` of them, `rate` a second. They stay in the dead-letter
        topic, settled for the queue group `group`. Another group than "redrive" must be declared, or `declare` given:
        a new group sends every letter that is there. If other groups have settled some of them, a warning is logged.

        A record goes back with its key, value, timestamp and headers; of the headers that made it a letter only
        `tritonmq.hops` stays. What cannot be sent is left, parked in the group with the reason, and tried again by the
        next call. `on_sent` is called with the number of letters, each time some were sent. Each wait lasts for this
        object's `timeout_ms` at most; all of it lasts as long as there are letters.

        Raises `UnknownTopic`, `UnknownQueue` naming the groups that there are, `InvalidRequest` for a topic that holds
        no dead letters, `WrongGroupKind`, and what keeps the letters from being sent now, such as `NotEnoughReplicas`.
        """
        order = Order(topic, to, group, declare, rate, limit, on_sent)
        return redrive(self._connection, order, self._timeout_ms)

    def delete_queue(self, topic: str, group: str) -> None:
        """Delete the queue group: what it has settled is forgotten, and its members are told `UnknownQueue`. The
        records stay in the topic. Raises `UnknownQueue`."""
        delete(self._connection, topic, group, self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)


def _state(name: str) -> pb.RecordState.ValueType:
    if name == "dead":
        raise InvalidRequest(
            "dead letters are not in the queue any more, but in a topic of their own, <topic>.dead unless dead_letter "
            f"names another one: read that. The states are {', '.join(STATES)}"
        )
    if name not in STATES:
        raise InvalidRequest(
            f"state={name!r} is not known{did_you_mean(name, STATES)} (it is one of {', '.join(STATES)})"
        )
    return STATES[name]
