"""Who may do what: one row for each method, which says the rights that a request of it needs.

A *right* is an operation on a resource: a topic, a group, a transaction, a lock, or the cluster. A *rule* allows or
denies one operation on one name, or on all names that begin alike. The broker's gate, the documentation and the tests
read this table; a method without a row is not served.

What a request *needs* is judged for each name in it, before the request is looked at. Where a method lists things, its
answer *shows* only those of which the asker may see each: the handler leaves out the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from google.protobuf.message import Message

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, InvalidSetting
from mq_protocol.methods import BROKER
from mq_protocol.names import quoted
from mq_protocol.queues.settings import DeadLetter, usual_dead_letter
from mq_protocol.queues.work_keys import is_of_queue, place_of


class Kind(StrEnum):
    """Of a resource."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTION = "Transaction"
    LOCK = "Lock"
    CLUSTER = "Cluster"


class Operation(StrEnum):
    DESCRIBE = "Describe"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    ALTER = "Alter"
    DELETE = "Delete"
    ABORT = "Abort"
    ACLS = "Acls"
    METRICS = "Metrics"


_O = Operation

OPERATIONS: Final[Mapping[Kind, tuple[Operation, ...]]] = {
    Kind.TOPIC: (_O.DESCRIBE, _O.READ, _O.WRITE, _O.CREATE, _O.ALTER, _O.DELETE),
    Kind.GROUP: (_O.DESCRIBE, _O.READ, _O.CREATE, _O.ALTER, _O.DELETE),
    Kind.TRANSACTION: (_O.DESCRIBE, _O.WRITE, _O.ALTER, _O.ABORT),
    Kind.LOCK: (_O.WRITE,),
    Kind.CLUSTER: (_O.DESCRIBE, _O.ALTER, _O.ACLS, _O.METRICS),
}
"""What can be done with each kind of resource. The cluster has no name: there is one."""

IMPLY_DESCRIBE: Final = frozenset((_O.READ, _O.WRITE, _O.ALTER, _O.DELETE))
"""Whoever may do one of these may describe. Whoever is denied to describe is denied everything."""

CLUSTER_NAME: Final = "cluster"
"""What the cluster is called as a resource. There is one."""


_RANDOM: Final = re.compile("(write:)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|")
"""Ids of queries that Spark has made, and of batch writes without a txnAppId; and none."""


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on each resource of a kind that `names` finds in a request; an empty name is none. `names` None: on
    any resource of that kind, whatever the request names. `of` says in words, or by the path of a field, which these
    are."""

    operation: Operation
    kind: Kind
    of: str
    names: Callable[[Any], Iterable[str]] | None

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.operation}"
            if self.kind is Kind.CLUSTER
            else f"{self.kind} {self.operation} ({self.of})"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """`needs`: of each request. `shows`: an answer, or what is done, is of those things alone to which the asker has
    this right; the handler sees to it. `says`: what is to be known beside. `waits`: the request may be under way for
    long, so that it is ended when its rights are taken away. `changes`: it is noted in the audit log whoever asks.
    `unhurried`: no quota of requests holds it up, since it acknowledges something, or since by it a quota that is too
    low is raised."""

    needs: tuple[Need, ...] = ()
    shows: tuple[tuple[Kind, Operation], ...] = ()
    says: str = ""
    waits: bool = False
    changes: bool = False
    unhurried: bool = False


# ---------------------------------------------------------------- what is named in a request


def _reader(kind: Any, path: str) -> Callable[[Any], Iterable[str]]:
    """Reads the values of the field at that path, through lists and messages, in a message of this type."""
    first, _, rest = path.partition(".")
    described = kind.fields_by_name[first]
    many = isinstance(described.default_value, list)
    if not rest:
        return (lambda message: getattr(message, first)) if many else (lambda message: (getattr(message, first),))
    within = _reader(described.message_type, rest)
    if many:
        return lambda message: (name for each in getattr(message, first) for name in within(each))
    return lambda message: within(getattr(message, first))


def _need(request: type[Message], kind: Kind, operation: Operation, path: str) -> Need:
    return Need(operation, kind, path, _reader(request.DESCRIPTOR, path))


def _cluster(operation: Operation, names: Callable[[Any], Iterable[str]] = lambda _: (CLUSTER_NAME,)) -> Need:
    return Need(operation, Kind.CLUSTER, "", names)


def _any_topic(operation: Operation) -> Need:
    return Need(operation, Kind.TOPIC, "any", None)


def _if_changes(change: int, name: Callable[[Any], str]) -> Callable[[Any], Iterable[str]]:
    return lambda request: (name(request),) if request.change == change else ()


def _dead_letters(request: pb.AlterQueueRequest) -> Iterable[str]:
    """The topic to which brokers are to send the group's dead letters."""
    named = request.settings.get("dead_letter")
    if request.change not in (pb.QUEUE_DECLARE, pb.QUEUE_ALTER) or (named is None and request.change == pb.QUEUE_ALTER):
        return ()
    target = named or usual_dead_letter(request.topic)
    return () if target in {each.value for each in DeadLetter} else (target,)


def _unless(flag: str) -> Callable[[Any], Iterable[str]]:
    return lambda request: () if getattr(request, flag) else (CLUSTER_NAME,)


def _chosen(key: Callable[[Any], pb.TransactionKey]) -> Callable[[Any], Iterable[str]]:
    """The name of a transaction that somebody chose, such as a txnAppId. A random one is known to nobody else. One of a
    queue group says which group it is of."""

    def names(request: Any) -> Iterable[str]:
        query_id = key(request).query_id
        return () if _RANDOM.fullmatch(query_id) or is_of_queue(query_id) else (query_id,)

    return names


def _of_queue(key: Callable[[Any], pb.TransactionKey]) -> Callable[[Any], Iterable[str]]:
    """The queue group of whose outputs the transaction is."""

    def names(request: Any) -> Iterable[str]:
        place = place_of(key(request).query_id)
        return () if place is None else (place.group,)

    return names


def _transaction(operation: Operation, key: Callable[[Any], pb.TransactionKey]) -> tuple[Need, Need]:
    """A transaction that has no chosen name needs no right."""
    return (
        Need(operation, Kind.TRANSACTION, "where its name was chosen", _chosen(key)),
        Need(_O.READ, Kind.GROUP, "where it is a queue group's", _of_queue(key)),
    )


def _topic(request: type[Message], operation: Operation, path: str = "topic") -> Need:
    return _need(request, Kind.TOPIC, operation, path)


def _group(request: type[Message], operation: Operation, path: str = "group") -> Need:
    return _need(request, Kind.GROUP, operation, path)


def _queue_change(change: int, operation: Operation, word: str) -> Need:
    return Need(operation, Kind.GROUP, f"group, to {word}", _if_changes(change, lambda request: str(request.group)))


def _group_named(request: pb.AlterQueueRequest) -> Iterable[str]:
    """A change that this version does not know needs what the strongest needs."""
    known = request.change in (pb.QUEUE_DECLARE, pb.QUEUE_ALTER, pb.QUEUE_DELETE)
    return () if known else (request.group,)


def _key(request: Any) -> pb.TransactionKey:
    found: pb.TransactionKey = request.key
    return found


def _staging_key(header: pb.ProduceHeader) -> pb.TransactionKey:
    return header.stage.key


_SEES_TOPICS: Final = ((Kind.TOPIC, _O.DESCRIBE),)
_SEES_GROUPS: Final = ((Kind.TOPIC, _O.DESCRIBE), (Kind.GROUP, _O.DESCRIBE))

_ALTER_QUEUE: Final = (
    Need(
        _O.READ,
        Kind.TOPIC,
        "topic, to declare",
        _if_changes(pb.QUEUE_DECLARE, lambda request: str(request.topic)),
    ),
    _topic(pb.AlterQueueRequest, _O.DESCRIBE),
    _queue_change(pb.QUEUE_DECLARE, _O.CREATE, "declare"),
    _queue_change(pb.QUEUE_ALTER, _O.ALTER, "alter"),
    _queue_change(pb.QUEUE_DELETE, _O.DELETE, "delete"),
    Need(_O.DELETE, Kind.GROUP, "group, for anything else", _group_named),
    Need(_O.WRITE, Kind.TOPIC, "where its dead letters go", _dead_letters),
)


RIGHTS: Final[Mapping[str, Row]] = {
    "Metadata": Row(
        shows=_SEES_TOPICS,
        says="A topic that may not be described is unknown. One is made by itself only with Topic Create. The brokers "
        "are told to everybody.",
    ),
    "CreateTopic": Row((_topic(pb.CreateTopicRequest, _O.CREATE, "name"),), changes=True),
    "CreateTopics": Row((_topic(pb.CreateTopicsRequest, _O.CREATE, "topics.name"),), changes=True),
    "DeleteTopic": Row((_topic(pb.DeleteTopicRequest, _O.DELETE, "name"),), changes=True),
    "AlterTopic": Row((_topic(pb.AlterTopicRequest, _O.ALTER, "name"),), changes=True),
    "PlanMoves": Row((_cluster(_O.DESCRIBE),)),
    "StartMoves": Row((_cluster(_O.ALTER),), changes=True),
    "Moves": Row((_cluster(_O.DESCRIBE),)),
    "Lead": Row((_cluster(_O.ALTER),), changes=True),
    "Recover": Row((_cluster(_O.ALTER),), changes=True),
    "Upgrade": Row(
        (_cluster(_O.DESCRIBE), _cluster(_O.ALTER, _unless("plan"))),
        says="Cluster Alter is not needed for a plan.",
        changes=True,
    ),
    "ListOffsets": Row((_topic(pb.ListOffsetsRequest, _O.DESCRIBE),)),
    "MoveCursors": Row(
        (_topic(pb.MoveCursorsRequest, _O.READ, "positions.topic"), _group(pb.MoveCursorsRequest, _O.READ)),
        unhurried=True,
    ),
    "Groups": Row(shows=_SEES_GROUPS),
    "DeleteGroup": Row(
        (_topic(pb.DeleteGroupRequest, _O.DESCRIBE, "partitions.topic"), _group(pb.DeleteGroupRequest, _O.DELETE)),
        changes=True,
    ),
    "Purge": Row((_topic(pb.PurgeRequest, _O.DELETE, "positions.topic"),), changes=True),
    "CancelScheduled": Row((_topic(pb.CancelScheduledRequest, _O.WRITE),)),
    "AlterQueue": Row(_ALTER_QUEUE, changes=True),
    "Queues": Row((_topic(pb.QueuesRequest, _O.DESCRIBE),), shows=_SEES_GROUPS),
    "DescribeQueue": Row((_topic(pb.DescribeQueueRequest, _O.DESCRIBE), _group(pb.DescribeQueueRequest, _O.DESCRIBE))),
    "SweepQueue": Row(
        (_topic(pb.SweepQueueRequest, _O.DESCRIBE), _group(pb.SweepQueueRequest, _O.ALTER)), changes=True
    ),
    "Decide": Row(
        (
            _topic(pb.DecideRequest, _O.WRITE, "manifest.topic"),
            _any_topic(_O.WRITE),
            *_transaction(_O.WRITE, _key),
        )
    ),
    "TransactionStatus": Row((_any_topic(_O.WRITE), *_transaction(_O.DESCRIBE, _key))),
    "Staged": Row((_topic(pb.StagedRequest, _O.DESCRIBE),), shows=_SEES_TOPICS),
    "Transactions": Row(
        shows=((Kind.TRANSACTION, _O.DESCRIBE),),
        says="The name of a transaction is its query's id. Listings tell a digest of it.",
    ),
    "AbortTransaction": Row(
        shows=((Kind.TRANSACTION, _O.ABORT),),
        says="A transaction that may not be aborted is unknown.",
        changes=True,
    ),
    "GiveTransaction": Row(
        shows=((Kind.TRANSACTION, _O.ALTER),),
        says="A transaction that may not be altered is unknown. Who owns it needs the right as well.",
        changes=True,
    ),
    "Work": Row(
        (
            _topic(pb.WorkRequest, _O.READ, "sessions.open.topic"),
            _group(pb.WorkRequest, _O.READ, "sessions.open.group"),
            _topic(pb.WorkRequest, _O.WRITE, "sessions.settles.outputs.topic"),
        ),
        waits=True,
    ),
    "Observe": Row(
        shows=_SEES_GROUPS,
        says="With Cluster Metrics everything is told, and numbers of the broker.",
    ),
    "SetLogLevel": Row((_cluster(_O.ALTER),), changes=True),
    "LogLevels": Row((_cluster(_O.DESCRIBE),)),
    "Acls": Row((_cluster(_O.ACLS),)),
    "AlterAcls": Row((_cluster(_O.ACLS),), changes=True),
    "CheckAcl": Row((_cluster(_O.ACLS),)),
    "Quotas": Row((_cluster(_O.ACLS),), unhurried=True),
    "AlterQuotas": Row((_cluster(_O.ACLS),), changes=True, unhurried=True),
    "Revoke": Row((_cluster(_O.ACLS),), changes=True),
    "Revoked": Row((_cluster(_O.ACLS),)),
    "Tokens": Row((_cluster(_O.ACLS),)),
    "AlterTokens": Row((_cluster(_O.ACLS),), changes=True, says="A superuser's tokens are for superusers to make."),
    "SecurityFloor": Row((_cluster(_O.ACLS),)),
    "AlterSecurityFloor": Row((_cluster(_O.ACLS),), changes=True),
    "Produce": Row(
        (_topic(pb.ProduceHeader, _O.WRITE), *_transaction(_O.WRITE, _staging_key)),
        says="Judged for each batch; the transaction is that of a batch which is staged. Whoever may write to no topic "
        "is refused when the stream is opened.",
        waits=True,
    ),
    "Fetch": Row((_topic(pb.FetchRequest, _O.READ),), waits=True),
    "Subscribe": Row(
        (
            _topic(pb.SubscribeRequest, _O.READ, "open.partitions.topic"),
            _group(pb.SubscribeRequest, _O.READ, "open.group"),
            _group(pb.SubscribeRequest, _O.READ, "open.broadcast"),
        ),
        waits=True,
    ),
    "WatchOffsets": Row((_topic(pb.WatchOffsetsRequest, _O.DESCRIBE, "partitions.topic"),), waits=True),
    "Lock": Row((_need(pb.LockRequest, Kind.LOCK, _O.WRITE, "name"),), waits=True),
}
"""Of the service that clients call, by method."""


def row_of(method: str) -> Row:
    """Raises `LookupError` for a method that has none: it is not served."""
    row = RIGHTS.get(method)
    if row is None:
        raise LookupError(f"method {method} has no row in mq_protocol/access/rights.py, which says who may call it")
    return row


def rights_table() -> list[tuple[str, str]]:
    """Of each method of the service for clients: its name, and in words what it needs."""
    return [(name, _in_words(row_of(name))) for name in BROKER.methods]


def _in_words(row: Row) -> str:
    needs = ", ".join(map(str, row.needs))
    shows = " and ".join(f"{kind} {operation}" for kind, operation in row.shows)
    told = f"only what the asker has {shows} on is told or done" if shows else ""
    return "; ".join(part for part in (needs, told) if part) + (f". {row.says}" if row.says else "")


# ---------------------------------------------------------------- in words of the command line


def check_pair(kind: Kind, operation: Operation) -> None:
    """Raises `InvalidRequest` for an operation that the kind of resource does not have."""
    if operation not in OPERATIONS[kind]:
        known = ", ".join(OPERATIONS[kind])
        raise InvalidRequest(f"{kind} has no operation {operation}: it has {known}")


def parse_kind(text: str) -> Kind:
    """Raises `InvalidSetting`."""
    try:
        return Kind(text)
    except ValueError:
        raise InvalidSetting(f"{quoted(text)} is no kind of resource: one of {', '.join(Kind)}") from None


def parse_operation(text: str) -> Operation:
    """Raises `InvalidSetting`."""
    try:
        return Operation(text)
    except ValueError:
        raise InvalidSetting(f"{quoted(text)} is no operation: one of {', '.join(Operation)}") from None


def shown_name(name: str, *, prefix: bool) -> str:
    """The name in a rule for people. One that has a `*` for a letter is marked."""
    return f"{name}*" if prefix else f"{name} (literal)" if "*" in name else name


def command(
    verb: str, principal: str, operation: Operation, kind: Kind, name: str, *, prefix: bool = False, deny: bool = False
) -> str:
    """The command that allows, denies, checks or removes that right. `prefix`: on all names that begin so. `deny`: the
    rule that is removed denies."""
    words = ["tritonmq", "acl", verb, principal, f"--{operation.lower()}", f"--{kind.lower()}"]
    if kind is not Kind.CLUSTER:
        words.append(f"{name}*" if prefix else name)
        if not prefix and "*" in name:
            words.append("--literal")
    if deny:
        words.append("--deny")
    return shlex.join(words)
