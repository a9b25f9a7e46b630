"""Every method that brokers serve: one row each, for whoever serves it and for whoever calls it.

A row says the method's name, the messages that go in and out, how they go, and what one request may cost. `mq.proto`
says the first three to other languages; a test holds the two against each other. To add a method: its messages and its
line in `mq.proto` (`make proto`), its row here, and a method of the same name in snake case in the part of the broker
that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from google.protobuf.message import Message

from mq_protocol import limits
from mq_protocol import mq_pb2 as pb

_LESS: Final = "ask for less at once"
_CAPITAL: Final = re.compile("(?<!^)(?=[A-Z])")


class Kind(Enum):
    """How the messages of a method go."""

    UNARY = "one request, one answer"
    ANSWERS = "one request, a stream of answers"
    CONVERSATION = "a stream of requests, a stream of answers"


class Elements(NamedTuple):
    """A list in a request: at most `most` elements. `once`: the fields in which no two elements may be alike (none: the
    whole element); None: elements may be alike."""

    most: int
    once: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Of one method. `lists`: every list of messages, texts or bytes in the request, by the path of its field.
    `advice`: what to do where a request has too many bytes."""

    bytes_max: int = limits.REQUEST_BYTES_MAX
    lists: Mapping[str, Elements] = field(default_factory=dict)
    advice: str = _LESS


@dataclass(frozen=True)
class Method:
    """`bound` is that of each request. `led`: the leader of the partition that a request names answers it; else any
    broker may. `reopened`: a stream that a client opens again at the next leader while this one waits for it."""

    name: str
    request: type[Message]
    response: type[Message]
    kind: Kind = Kind.UNARY
    bound: Bound = Bound()
    led: bool = False
    reopened: bool = False

    @cached_property
    def attribute(self) -> str:
        """What the method is called in Python."""
        return _CAPITAL.sub("_", self.name).lower()


class Service:
    """A service of mq.proto. `methods` by name."""

    def __init__(self, name: str, *methods: Method) -> None:
        self.name = f"tritonmq.v1.{name}"
        self.methods: Mapping[str, Method] = {method.name: method for method in methods}

    @property
    def unary(self) -> dict[str, Method]:
        return {name: method for name, method in self.methods.items() if method.kind is Kind.UNARY}

    def path(self, method: str) -> str:
        """The method's name on the wire."""
        return f"/{self.name}/{self.methods[method].name}"


_NUMBERS: Final = Elements(limits.REQUEST_PLACES_MAX, ())
_SETTINGS: Final = Bound(lists={"settings": Elements(limits.REQUEST_SETTINGS_MAX)})
_TOPICS: Final = Bound(
    lists={
        "topics": Elements(limits.REQUEST_TOPICS_MAX, ("name",)),
        "topics.settings": Elements(limits.REQUEST_SETTINGS_MAX),
    }
)
_STAGED: Final = Bound(limits.MANIFEST_BYTES_MAX, {"uuids": Elements(limits.MANIFEST_BYTES_MAX // 16)})
_BATCHES: Final = Bound(limits.MESSAGE_BYTES_MAX)
"""What one batch may have is its topic's to say."""


def _places(*lists: str) -> Bound:
    """Of a request with lists of places: topic and partition, each once."""
    return Bound(
        limits.PLACES_REQUEST_BYTES_MAX,
        dict.fromkeys(lists, Elements(limits.REQUEST_PLACES_MAX, ("topic", "partition"))),
    )


def _manifest(lines: str, advice: str = _LESS) -> Bound:
    """Of a request with lines of a manifest, each with the UUIDs of its batches."""
    uuids = Elements(limits.MANIFEST_BYTES_MAX // 16)
    return Bound(
        limits.MANIFEST_BYTES_MAX, {lines: Elements(limits.MANIFEST_LINES_MAX), f"{lines}.uuids": uuids}, advice
    )


_METADATA: Final = Method(
    "Metadata",
    pb.MetadataRequest,
    pb.MetadataResponse,
    bound=Bound(lists={"topics": Elements(limits.REQUEST_TOPICS_MAX, ())}),
)
_TRANSACTION_STATUS: Final = Method("TransactionStatus", pb.TransactionStatusRequest, pb.TransactionStatusResponse)

BROKER: Final = Service(
    "Broker",
    _METADATA,
    Method("CreateTopic", pb.CreateTopicRequest, pb.CreateTopicResponse, bound=_SETTINGS),
    Method("CreateTopics", pb.CreateTopicsRequest, pb.CreateTopicsResponse, bound=_TOPICS),
    Method("DeleteTopic", pb.DeleteTopicRequest, pb.DeleteTopicResponse),
    Method("AlterTopic", pb.AlterTopicRequest, pb.AlterTopicResponse, bound=_SETTINGS),
    Method("PlanMoves", pb.PlanMovesRequest, pb.PlanMovesResponse),
    Method("StartMoves", pb.StartMovesRequest, pb.StartMovesResponse, bound=_places("moves")),
    Method("Moves", pb.MovesRequest, pb.MovesResponse),
    Method("Lead", pb.LeadRequest, pb.LeadResponse, led=True),
    Method("Recover", pb.RecoverRequest, pb.RecoverResponse),
    Method("Upgrade", pb.UpgradeRequest, pb.UpgradeResponse),
    Method(
        "ListOffsets",
        pb.ListOffsetsRequest,
        pb.ListOffsetsResponse,
        bound=Bound(lists={"partitions": _NUMBERS, "spans": Elements(limits.REQUEST_PLACES_MAX, ("partition",))}),
        led=True,
    ),
    Method("MoveCursors", pb.MoveCursorsRequest, pb.MoveCursorsResponse, bound=_places("positions"), led=True),
    Method("Groups", pb.GroupsRequest, pb.GroupsResponse),
    Method("DeleteGroup", pb.DeleteGroupRequest, pb.DeleteGroupResponse, bound=_places("partitions"), led=True),
    Method("Purge", pb.PurgeRequest, pb.PurgeResponse, bound=_places("positions"), led=True),
    Method("CancelScheduled", pb.CancelScheduledRequest, pb.CancelScheduledResponse, led=True),
    Method("AlterQueue", pb.AlterQueueRequest, pb.AlterQueueResponse, bound=_SETTINGS),
    Method("Queues", pb.QueuesRequest, pb.QueuesResponse),
    Method(
        "DescribeQueue",
        pb.DescribeQueueRequest,
        pb.DescribeQueueResponse,
        bound=Bound(lists={"partitions": _NUMBERS}),
        led=True,
    ),
    Method(
        "SweepQueue", pb.SweepQueueRequest, pb.SweepQueueResponse, bound=Bound(lists={"partitions": _NUMBERS}), led=True
    ),
    Method(
        "Decide",
        pb.DecideRequest,
        pb.DecideResponse,
        bound=_manifest("manifest", "write fewer, larger batches in one micro-batch"),
    ),
    _TRANSACTION_STATUS,
    Method("Staged", pb.StagedRequest, pb.StagedResponse),
    Method("Transactions", pb.TransactionsRequest, pb.TransactionsResponse),
    Method("AbortTransaction", pb.AbortTransactionRequest, pb.AbortTransactionResponse),
    Method("GiveTransaction", pb.GiveTransactionRequest, pb.GiveTransactionResponse),
    Method(
        "Work",
        pb.WorkRequest,
        pb.WorkResponse,
        Kind.CONVERSATION,
        bound=Bound(
            lists={
                "sessions": Elements(limits.WORK_SESSIONS_AT_ONCE_MAX, ("session",)),
                "sessions.open.held": Elements(limits.LEASES_HELD_MAX),
                "sessions.check": Elements(limits.LEASES_HELD_MAX),
                "sessions.settles": Elements(limits.SETTLES_MAX),
                "sessions.settles.outputs": Elements(limits.SETTLE_OUTPUTS_MAX),
                "sessions.settles.outputs.uuids": Elements(limits.REQUEST_BYTES_MAX // 16),
            }
        ),
        led=True,
        reopened=True,
    ),
    Method(
        "Observe",
        pb.ObserveRequest,
        pb.ObserveResponse,
        bound=Bound(lists={"topics": Elements(limits.REQUEST_TOPICS_MAX, ())}),
    ),
    Method("SetLogLevel", pb.SetLogLevelRequest, pb.SetLogLevelResponse),
    Method("Acls", pb.AclsRequest, pb.AclsResponse),
    Method(
        "AlterAcls",
        pb.AlterAclsRequest,
        pb.AlterAclsResponse,
        bound=Bound(lists=dict.fromkeys(("add", "remove"), Elements(limits.REQUEST_RULES_MAX))),
    ),
    Method("CheckAcl", pb.CheckAclRequest, pb.CheckAclResponse),
    Method("Quotas", pb.QuotasRequest, pb.QuotasResponse),
    Method(
        "AlterQuotas",
        pb.AlterQuotasRequest,
        pb.AlterQuotasResponse,
        bound=Bound(lists=dict.fromkeys(("set", "unset"), Elements(limits.REQUEST_SETTINGS_MAX))),
    ),
    Method(
        "Revoke",
        pb.RevokeRequest,
        pb.RevokeResponse,
        bound=Bound(lists=dict.fromkeys(("add", "remove"), Elements(limits.REQUEST_RULES_MAX))),
    ),
    Method(
        "Revoked",
        pb.RevokedRequest,
        pb.RevokedResponse,
        bound=Bound(lists={"about": Elements(limits.REQUEST_RULES_MAX)}),
    ),
    Method("Tokens", pb.TokensRequest, pb.TokensResponse),
    Method("AlterTokens", pb.AlterTokensRequest, pb.AlterTokensResponse),
    Method("SecurityFloor", pb.SecurityFloorRequest, pb.SecurityFloorResponse),
    Method(
        "AlterSecurityFloor",
        pb.AlterSecurityFloorRequest,
        pb.SecurityFloorResponse,
        bound=Bound(lists=dict.fromkeys(("add", "remove"), Elements(limits.REQUEST_SETTINGS_MAX))),
    ),
    Method("Produce", pb.ProduceRequest, pb.ProduceResponse, Kind.CONVERSATION, bound=_BATCHES, led=True),
    Method(
        "Fetch",
        pb.FetchRequest,
        pb.BatchesResponse,
        Kind.ANSWERS,
        bound=Bound(lists={"columns": Elements(limits.SCHEMA_FIELDS_MAX, ())}),
        led=True,
    ),
    Method(
        "Subscribe",
        pb.SubscribeRequest,
        pb.BatchesResponse,
        Kind.CONVERSATION,
        bound=_places("open.partitions", "close.partitions", "settled"),
        led=True,
    ),
    Method(
        "WatchOffsets",
        pb.WatchOffsetsRequest,
        pb.WatchOffsetsResponse,
        Kind.ANSWERS,
        bound=_places("partitions"),
        led=True,
    ),
    Method("Lock", pb.LockRequest, pb.LockResponse, Kind.CONVERSATION, bound=Bound(limits.LOCK_REQUEST_BYTES_MAX)),
)
"""What clients call."""

PEER: Final = Service(
    "Peer",
    _METADATA,
    Method("ReplicaStatus", pb.ReplicaStatusRequest, pb.ReplicaStatusResponse),
    Method("Publish", pb.PublishRequest, pb.PublishResponse, bound=_STAGED),
    Method(
        "Discard",
        pb.DiscardRequest,
        pb.DiscardResponse,
        bound=Bound(lists={"uuids": Elements(limits.DISCARD_UUIDS_MAX)}),
    ),
    Method("AreStaged", pb.AreStagedRequest, pb.AreStagedResponse, bound=_STAGED),
    Method("Stage", pb.StageRequest, pb.StageResponse, bound=_BATCHES),
    Method("AttemptStatus", pb.AttemptStatusRequest, pb.AttemptStatusResponse),
    Method("StreamGroups", pb.StreamGroupsRequest, pb.StreamGroupsResponse),
    Method("QueueIdle", pb.QueueIdleRequest, pb.QueueIdleResponse),
    Method("AbortKey", pb.AbortKeyRequest, pb.AbortTransactionResponse),
    Method("GiveKey", pb.GiveKeyRequest, pb.GiveTransactionResponse),
    Method("Fence", pb.FenceRequest, pb.FenceResponse, bound=_manifest("kept")),
    _TRANSACTION_STATUS,
)
"""What brokers call, of each other, on a port of its own."""
