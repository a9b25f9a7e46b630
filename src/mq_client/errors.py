"""The errors that a client raises: those of the protocol, and one of its own. The tree is drawn in
mq_protocol.errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_protocol.errors import (
    BatchTooLarge,
    CoordinationUnavailable,
    CorruptBatch,
    DataLoss,
    DiskFull,
    FencedRun,
    GroupInUse,
    IncompatibleVersion,
    InternalError,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    LeaseLost,
    LockLost,
    LockNotAcquired,
    MemberInUse,
    NotAuthenticated,
    NotEnoughBrokers,
    NotEnoughReplicas,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrder,
    Overloaded,
    PartitionUnavailable,
    PermissionDenied,
    QueueFull,
    QuotaExceeded,
    RefusedError,
    ReplayMismatch,
    RequestTooLarge,
    RetriableError,
    SchemaMismatch,
    StagedBatchMissing,
    StaleMicroBatch,
    StorageFailed,
    TooManyGroups,
    TooManyMembers,
    TooManyTransactions,
    TopicExists,
    TopicNotEmpty,
    TransactionAborted,
    TritonMQError,
    UnknownGroup,
    UnknownOutcome,
    UnknownPartition,
    UnknownQueue,
    UnknownTopic,
    UnknownTransaction,
    Unreachable,
    WrongGroupKind,
)

if TYPE_CHECKING:
    from mq_client.consuming.record_queue import ConsumerRecord


class NotDeserialized(RefusedError):
    """A record came whose key or value the consumer's deserializer cannot read. `record`: as it came."""

    def __init__(self, message: str, record: ConsumerRecord) -> None:
        super().__init__(message)
        self.record = record


class NotSent(Unreachable):
    """Nobody could be reached in time and nothing was ever sent: it did not happen."""

    definite = True


__all__ = [
    "BatchTooLarge",
    "CoordinationUnavailable",
    "CorruptBatch",
    "DataLoss",
    "DiskFull",
    "FencedRun",
    "GroupInUse",
    "IncompatibleVersion",
    "InternalError",
    "InvalidRequest",
    "InvalidSetting",
    "InvalidTopicName",
    "LeaseLost",
    "LockLost",
    "LockNotAcquired",
    "MemberInUse",
    "NotAuthenticated",
    "NotEnoughBrokers",
    "NotEnoughReplicas",
    "NotLeader",
    "NotDeserialized",
    "NotSent",
    "NotYetWritten",
    "OffsetOutOfRange",
    "OutOfOrder",
    "OutcomeUnknown",
    "Overloaded",
    "PartitionUnavailable",
    "PermissionDenied",
    "QuotaExceeded",
    "RefusedError",
    "QueueFull",
    "ReplayMismatch",
    "RequestTooLarge",
    "RetriableError",
    "SchemaMismatch",
    "StagedBatchMissing",
    "StaleMicroBatch",
    "StorageFailed",
    "TooManyGroups",
    "TooManyMembers",
    "TooManyTransactions",
    "TopicExists",
    "TopicNotEmpty",
    "TransactionAborted",
    "TritonMQError",
    "UnknownGroup",
    "UnknownOutcome",
    "UnknownPartition",
    "UnknownQueue",
    "UnknownTopic",
    "WrongGroupKind",
    "UnknownTransaction",
    "Unreachable",
]
