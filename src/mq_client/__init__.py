"""The client of TritonMQ: synchronous, typed, thread-safe. Publishes, consumes, reads by offset, administers.

    from mq_client import Admin, Producer, Consumer, Reader, Lock

Every wait has a deadline. Leader changes, restarts and timeouts are survived inside: what is sent again keeps its UUID,
so that it is there once. Every error derives from `TritonMQError` and says whether to retry and whether the outcome is
known.

The classes are imported when they are first asked for: Spark starts processes that only read, and many of them.
"""

# ruff: noqa: F403, F405 - the errors of mq_client.errors, which __all__ names
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mq_client.errors import *

if TYPE_CHECKING:
    from mq_client.administration.admin import Admin, TopicMade
    from mq_client.administration.security_admin import (
        AclChange,
        AclRule,
        AclVerdict,
        ApiTokenDescription,
        NewApiToken,
        QuotaDescription,
        SecurityFloor,
        TokenUser,
    )
    from mq_client.administration.transaction_admin import (
        AbortedTransaction,
        GivenTransaction,
        StagedSum,
        TransactionDescription,
    )
    from mq_client.consumer import Consumer, ConsumerRecord, RecordQueue, Skipped
    from mq_client.interceptors import OutgoingRecord
    from mq_client.lock import Lock
    from mq_client.producer import Producer
    from mq_client.producing.futures import BatchMetadata, BatchPlace, RecordMetadata
    from mq_client.queueing.leases import LeaseId
    from mq_client.queueing.outputs import Outputs
    from mq_client.queueing.queue import LeasedBatch, LeasedRecord, Queue
    from mq_client.queueing.redriving import Redriven
    from mq_client.reader import Reader
    from mq_client.rows import Rows
    from mq_client.security import Secret, Security
    from mq_client.shown.descriptions import (
        BrokerDescription,
        ClusterDescription,
        GroupCursor,
        GroupDescription,
        PartitionDescription,
        PartitionMove,
        QueueDescription,
        QueueInfo,
        QueueMember,
        QueuePartition,
        QueueRun,
        Recovery,
        TopicDescription,
        Upgrade,
    )
    from mq_client.shown.observation import (
        BrokerObservation,
        ClusterObservation,
        GroupObservation,
        PartitionObservation,
        TopicObservation,
    )

__all__ = [
    "AclChange",
    "AclRule",
    "AclVerdict",
    "Admin",
    "Producer",
    "Consumer",
    "Reader",
    "Rows",
    "Queue",
    "Lock",
    "Security",
    "Secret",
    "NewApiToken",
    "ApiTokenDescription",
    "TokenUser",
    "SecurityFloor",
    "OutgoingRecord",
    "RecordMetadata",
    "BatchMetadata",
    "BatchPlace",
    "ConsumerRecord",
    "RecordQueue",
    "Skipped",
    "LeasedRecord",
    "LeasedBatch",
    "LeaseId",
    "Outputs",
    "QueueDescription",
    "QueueInfo",
    "QueueMember",
    "QueuePartition",
    "QueueRun",
    "QuotaDescription",
    "Redriven",
    "TopicDescription",
    "TopicMade",
    "PartitionDescription",
    "PartitionMove",
    "Recovery",
    "ClusterDescription",
    "BrokerDescription",
    "Upgrade",
    "ClusterObservation",
    "BrokerObservation",
    "TopicObservation",
    "PartitionObservation",
    "GroupObservation",
    "GroupDescription",
    "GroupCursor",
    "TransactionDescription",
    "StagedSum",
    "AbortedTransaction",
    "GivenTransaction",
    "TritonMQError",
    "RefusedError",
    "RetriableError",
    "UnknownOutcome",
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
    "QueueFull",
    "ReplayMismatch",
    "RequestTooLarge",
    "SchemaMismatch",
    "StagedBatchMissing",
    "TransactionAborted",
    "TooManyGroups",
    "TooManyMembers",
    "TooManyTransactions",
    "UnknownTransaction",
    "StaleMicroBatch",
    "StorageFailed",
    "TopicExists",
    "TopicNotEmpty",
    "UnknownGroup",
    "UnknownPartition",
    "UnknownQueue",
    "UnknownTopic",
    "WrongGroupKind",
    "Unreachable",
]

_HOMES = {
    "administration.admin": ("Admin", "TopicMade"),
    "shown.descriptions": (
        "BrokerDescription",
        "ClusterDescription",
        "GroupCursor",
        "GroupDescription",
        "PartitionDescription",
        "PartitionMove",
        "QueueDescription",
        "QueueInfo",
        "QueueMember",
        "QueuePartition",
        "QueueRun",
        "Recovery",
        "TopicDescription",
        "Upgrade",
    ),
    "consumer": ("Consumer", "ConsumerRecord", "RecordQueue", "Skipped"),
    "producing.futures": ("BatchMetadata", "BatchPlace", "RecordMetadata"),
    "interceptors": ("OutgoingRecord",),
    "lock": ("Lock",),
    "shown.observation": (
        "BrokerObservation",
        "ClusterObservation",
        "GroupObservation",
        "PartitionObservation",
        "TopicObservation",
    ),
    "producer": ("Producer",),
    "queueing.leases": ("LeaseId",),
    "queueing.outputs": ("Outputs",),
    "queueing.redriving": ("Redriven",),
    "queueing.queue": ("LeasedBatch", "LeasedRecord", "Queue"),
    "reader": ("Reader",),
    "rows": ("Rows",),
    "security": ("Secret", "Security"),
    "administration.security_admin": (
        "AclChange",
        "AclRule",
        "AclVerdict",
        "ApiTokenDescription",
        "NewApiToken",
        "QuotaDescription",
        "SecurityFloor",
        "TokenUser",
    ),
    "administration.transaction_admin": (
        "AbortedTransaction",
        "GivenTransaction",
        "StagedSum",
        "TransactionDescription",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take it to mean that every name exists

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
