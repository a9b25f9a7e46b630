"""The errors that a client raises: those of the protocol, and one of its own. The tree is drawn in mq_protocol.errors."""

from __future__ import annotations

from mq_protocol.errors import (
    BatchTooLarge,
    CoordinationUnavailable,
    CorruptBatch,
    DataLoss,
    DiskFull,
    FencedRun,
    InternalError,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    NotEnoughBrokers,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrder,
    Overloaded,
    RefusedError,
    ReplayMismatch,
    RetriableError,
    SchemaMismatch,
    StagedBatchMissing,
    StaleMicroBatch,
    StorageFailed,
    TopicExists,
    TritonMQError,
    UnknownGroup,
    UnknownOutcome,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)


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
    "InternalError",
    "InvalidRequest",
    "InvalidSetting",
    "InvalidTopicName",
    "NotEnoughBrokers",
    "NotEnoughReplicas",
    "NotLeader",
    "NotSent",
    "OffsetOutOfRange",
    "OutOfOrder",
    "OutcomeUnknown",
    "Overloaded",
    "RefusedError",
    "ReplayMismatch",
    "RetriableError",
    "SchemaMismatch",
    "StagedBatchMissing",
    "StaleMicroBatch",
    "StorageFailed",
    "TopicExists",
    "TritonMQError",
    "UnknownGroup",
    "UnknownOutcome",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
]
