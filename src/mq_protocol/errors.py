"""Every error a user can meet, and what to do about it.

    TritonMQError
    ├── RefusedError              it did not happen, and asking again unchanged will not help
    │   ├── InvalidRequest · RequestTooLarge · InvalidSetting · InvalidTopicName
    │   ├── UnknownTopic · UnknownPartition · UnknownGroup · TopicExists
    │   ├── GroupInUse · MemberInUse · TooManyGroups · TooManyMembers · TopicNotEmpty
    │   ├── SchemaMismatch · BatchTooLarge · CorruptBatch
    │   ├── OffsetOutOfRange · DataLoss
    │   ├── NotEnoughBrokers · IncompatibleVersion
    │   ├── NotAuthenticated · PermissionDenied · QuotaExceeded
    │   ├── ReplayMismatch · StaleMicroBatch · FencedRun · StagedBatchMissing
    │   ├── TransactionAborted · TooManyTransactions · UnknownTransaction
    │   └── PeerRefused           between brokers only
    ├── RetriableError            it did not happen; ask again (clients do so by themselves until their deadline)
    │   ├── NotLeader · NotEnoughReplicas · OutOfOrder · Overloaded · DiskFull · StorageFailed · CoordinationUnavailable
    │   ├── NotYetWritten · PartitionUnavailable           of reads
    │   └── LockNotAcquired
    └── UnknownOutcome            it may or may not have happened
        ├── OutcomeUnknown        ask again with the same UUID: one answer, one copy
        ├── Unreachable           nobody answered at any address
        ├── LockLost              somebody else may have had the lock meanwhile
        └── InternalError

Each class has: `grpc_status` (the gRPC status name), `retriable`, `definite` (the outcome is known). The message names
what to do next. How an error goes over the wire is in error_messages.py.
"""

from __future__ import annotations

from typing import ClassVar

_CUT = "..."


class TritonMQError(Exception):
    """The root. `str(error)` is written for the person who reads it; its first words matter most."""

    grpc_status: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = False


class RefusedError(TritonMQError):
    """It did not happen, and asking again unchanged will not help."""

    grpc_status = "FAILED_PRECONDITION"
    definite = True


class RetriableError(TritonMQError):
    """It did not happen; the same request may succeed later."""

    grpc_status = "UNAVAILABLE"
    retriable = True
    definite = True


class UnknownOutcome(TritonMQError):
    """It may or may not have happened."""

    grpc_status = "UNKNOWN"
    retriable = True


class InvalidRequest(RefusedError):
    """The request has no meaning: the message names the field and what is allowed. Correct it."""

    grpc_status = "INVALID_ARGUMENT"


class RequestTooLarge(RefusedError):
    """One request asks for more than one may. It says how much that is."""

    grpc_status = "INVALID_ARGUMENT"


class TooManyGroups(RefusedError):
    """A partition keeps the cursors of as many groups as it takes. Cursors are never forgotten by themselves."""


class TooManyMembers(RefusedError):
    """A group has as many members at a partition as it takes."""


class MemberInUse(RefusedError):
    """A member of the group with that id lives, and whoever asked does not have its key."""

    grpc_status = "ALREADY_EXISTS"


class InvalidSetting(RefusedError):
    """A setting or an option is unknown, or its value is not allowed. The message names both, and the nearest right
    one."""

    grpc_status = "INVALID_ARGUMENT"


class InvalidTopicName(RefusedError):
    """The name cannot be a topic's. The message names the character or the rule."""

    grpc_status = "INVALID_ARGUMENT"


class UnknownTopic(RefusedError):
    """No topic has this name, or the topic was deleted. Check the name, or create the topic."""

    grpc_status = "NOT_FOUND"


class UnknownPartition(RefusedError):
    """The topic has no partition of this number. Partitions are counted from 0."""

    grpc_status = "NOT_FOUND"


class UnknownGroup(RefusedError):
    """The group has no cursor anywhere: it has never settled a record, or it was deleted."""

    grpc_status = "NOT_FOUND"


class UnknownQueue(RefusedError):
    """The topic has no queue group of this name. `tritonmq queue list` shows those that exist; `queue declare` makes
    one."""

    grpc_status = "NOT_FOUND"


class WrongGroupKind(RefusedError):
    """A group reads a topic as a stream or works it off as a queue, never both. Give one of the two another name."""

    grpc_status = "FAILED_PRECONDITION"


class LeaseLost(RefusedError):
    """The records are not the member's any more: their lease ran out, or was ended. Others may work on them."""

    grpc_status = "FAILED_PRECONDITION"


class TopicExists(RefusedError):
    """A topic of this name exists already. `--if-not-exists` leaves it as it is."""

    grpc_status = "ALREADY_EXISTS"


class SchemaMismatch(RefusedError):
    """The columns or a value do not fit the topic's schema. The message names the column and the value."""

    grpc_status = "INVALID_ARGUMENT"


class BatchTooLarge(RefusedError):
    """A batch or a record is above the topic's bound. The message names the setting to raise, or send smaller
    batches."""

    grpc_status = "INVALID_ARGUMENT"


class CorruptBatch(RefusedError):
    """The batch is no valid Arrow data, or not what was said of it. One that was sent: send it again; if it
    comes again, the client is at fault. One that was read: the broker is, which the text names."""

    grpc_status = "INVALID_ARGUMENT"


class OffsetOutOfRange(RefusedError):
    """`next_offset` is the first kept offset after the one asked for; -1 if there is none, or nobody said."""

    grpc_status = "OUT_OF_RANGE"

    def __init__(self, message: str, next_offset: int = -1) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class DataLoss(RefusedError):
    """Records that were to be read are gone. The message says which, and how to go on without them."""

    grpc_status = "DATA_LOSS"


class NotEnoughBrokers(RefusedError):
    """Fewer brokers are alive than the topic is to have replicas. Start brokers, or ask for fewer replicas."""


class ReplayMismatch(RefusedError):
    """A micro-batch that was decided came again with another row count. `onReplayMismatch=keep` keeps what was
    decided."""


class StaleMicroBatch(RefusedError):
    """A micro-batch older than the last decided one was to be written. The checkpoint is older than the topic."""


class FencedRun(RefusedError):
    """A newer run of the same query is writing. Only one run of a checkpoint may be active: stop the other one."""


class StagedBatchMissing(RefusedError):
    """The decision names a batch that is not staged under its key for its micro-batch. Nothing is decided."""


class TransactionAborted(RefusedError):
    """An administrator has fenced the key for ever (`tritonmq transaction abort`)."""


class TooManyTransactions(RefusedError):
    """The coordinator keeps as many keys as it takes."""

    grpc_status = "RESOURCE_EXHAUSTED"


class UnknownTransaction(RefusedError):
    """Nobody has staged or decided anything under that key."""

    grpc_status = "NOT_FOUND"


class PeerRefused(RefusedError):
    """A broker does not talk to whoever calls itself another broker. `why` says so by a code, a `PeerRefusal` of
    mq.proto: the text tells a stranger little."""

    grpc_status = "PERMISSION_DENIED"

    def __init__(self, message: str, why: int = 0) -> None:
        super().__init__(message)
        self.why = why


class NotAuthenticated(RefusedError):
    """The certificate names nobody whom the cluster knows how to call, the token is not good (any more), or the
    connection is not of the kind that proves a name. The broker's audit log says why."""

    grpc_status = "UNAUTHENTICATED"

    NO_MORE = "not authenticated"
    """All that who shows a token is told of one that is not good."""


class PermissionDenied(RefusedError):
    """Whoever asks does not have the right to do that. The text names who, what, on which resource, and the command by
    which an administrator would allow it."""

    grpc_status = "PERMISSION_DENIED"


class QuotaExceeded(RefusedError):
    """Whoever asks has as many of something as its quota allows. The text names the quota, and the command by which an
    administrator would raise it."""

    grpc_status = "RESOURCE_EXHAUSTED"


class IncompatibleVersion(RefusedError):
    """Two versions of TritonMQ that do not work together, or a cluster whose level of features does not allow
    something."""


class GroupInUse(RefusedError):
    """A group that has members is not deleted, or moved, unless one insists."""


class TopicNotEmpty(RefusedError):
    """A topic that was to be deleted only if it is empty holds records."""


class NotLeader(RetriableError):
    """`leader` is the broker to ask instead, 0 if nobody is known to lead."""

    def __init__(self, message: str, leader: int = 0, leader_epoch: int = 0) -> None:
        super().__init__(message)
        self.leader = leader
        self.leader_epoch = leader_epoch


class NotEnoughReplicas(RetriableError):
    """Fewer replicas are in sync than `min_insync_replicas`, so the write is refused. Bring brokers back."""


class OutOfOrder(RetriableError):
    """The batch that must come before this one is not there yet. Clients send both again by themselves."""


class Overloaded(RetriableError):
    """A bound of memory, of waiting requests or of a quota is reached. Send more slowly, or wait longer.
    `retry_after_ms`: how long to wait before asking again; 0 if nobody said."""

    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class QueueFull(RetriableError):
    """A queue group of the topic keeps as much as its `length_max` or `bytes_max` allows. Work some off, or raise the
    bound. Producers try again by themselves for as long as they wait for an acknowledgement."""

    grpc_status = "RESOURCE_EXHAUSTED"


class DiskFull(RetriableError):
    """The broker's disk has no room left. Reads go on. Free some space, or lower the topic's retention."""

    grpc_status = "RESOURCE_EXHAUSTED"


class StorageFailed(RetriableError):
    """The broker's disk failed a write or a sync. The broker's log names the file; another replica takes over."""


class CoordinationUnavailable(RetriableError):
    """The broker does not reach ZooKeeper. Topics cannot be changed and leaders not elected until it does."""


class NotYetWritten(RetriableError):
    """A read has reached the end of the log. Everything before the end has been given; what was asked for beyond it is
    not there yet, and may come."""

    grpc_status = "OUT_OF_RANGE"


class PartitionUnavailable(RetriableError):
    """No replica of a partition gave what was to be read in time. The records themselves are not touched by that."""


class LockNotAcquired(RetriableError):
    """Somebody else had the lock for as long as the caller would wait."""

    grpc_status = "DEADLINE_EXCEEDED"


class LockLost(UnknownOutcome):
    """The lock has gone, or may have, before it was released: another may have it. Stop what it protects, and acquire
    it again."""

    grpc_status = "ABORTED"
    retriable = False


class OutcomeUnknown(UnknownOutcome):
    """The answer did not come in time, so the write may have happened. Send it again with the same UUID: there is one
    copy."""

    grpc_status = "DEADLINE_EXCEEDED"


class Unreachable(UnknownOutcome):
    """No broker answered at any of the addresses. Check the addresses, the network and that brokers run."""

    grpc_status = "UNAVAILABLE"


class InternalError(UnknownOutcome):
    """A broker failed in a way that it does not explain to clients. Its log has the reason."""

    grpc_status = "INTERNAL"
    retriable = False


def shortened(text: str, bytes_max: int) -> str:
    """The beginning of the text that takes at most so many bytes in UTF-8, with three dots behind it where something is
    left out. Surrogates, which UTF-8 cannot carry, are written as escapes."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) > bytes_max:
        encoded = encoded[: bytes_max - len(_CUT)]
        return encoded.decode("utf-8", "ignore") + _CUT
    return encoded.decode()
