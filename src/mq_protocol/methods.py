"""Every method that brokers serve, for whoever serves it and for whoever calls it.

`mq.proto` says a method's name, the messages that go in and out, and how they go. A row here says more of it, where
there is more to say: what one request may cost, and who answers it. To add a method: its messages and its line in
`mq.proto` (`make proto`), a row here if a request of it has lists or may be large, and a method of the same name in
snake case in the part of the broker that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from google.protobuf.descriptor import MethodDescriptor
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


_KINDS: Final = {(False, False): Kind.UNARY, (False, True): Kind.ANSWERS, (True, True): Kind.CONVERSATION}
"""By whether requests are a stream, and whether answers are."""


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


class Row(NamedTuple):
    """What mq.proto does not say of a method. `bound` is that of each request. `led`: the leader of the partition that
    a request names answers it; else any broker may. `reopened`: a stream that a client opens again at the next leader
    while this one waits for it."""

    bound: Bound = Bound()
    led: bool = False
    reopened: bool = False


@dataclass(frozen=True)
class Method:
    name: str
    request: type[Message]
    response: type[Message]
    kind: Kind
    bound: Bound
    led: bool
    reopened: bool

    @cached_property
    def attribute(self) -> str:
        """What the method is called in Python."""
        return _CAPITAL.sub("_", self.name).lower()


class Service:
    """A service of mq.proto. `methods` by name."""

    def __init__(self, name: str, rows: Mapping[str, Row]) -> None:
        described = pb.DESCRIPTOR.services_by_name[name]
        self.name: str = described.full_name
        self.methods: Mapping[str, Method] = {
            method.name: _method(method, rows.get(method.name, Row())) for method in described.methods
        }
        assert rows.keys() <= self.methods.keys()

    @property
    def unary(self) -> dict[str, Method]:
        return {name: method for name, method in self.methods.items() if method.kind is Kind.UNARY}

    def path(self, method: str) -> str:
        """The method's name on the wire."""
        return f"/{self.name}/{self.methods[method].name}"


def _method(described: MethodDescriptor, row: Row) -> Method:
    request, response = (getattr(pb, each.name) for each in (described.input_type, described.output_type))
    kind = _KINDS[described.client_streaming, described.server_streaming]
    return Method(described.name, request, response, kind, *row)


_NUMBERS: Final = Elements(limits.REQUEST_PLACES_MAX, ())
_NUMBERED: Final = Row(Bound(lists={"partitions": _NUMBERS}), led=True)
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


def _named(most: int, *lists: str) -> Row:
    """Of lists of which each may have so many elements, alike ones too."""
    return Row(Bound(lists=dict.fromkeys(lists, Elements(most))))


_FEW_TOPICS: Final = Row(Bound(lists={"topics": Elements(limits.REQUEST_TOPICS_MAX, ())}))

BROKER: Final = Service(
    "Broker",
    {
        "Metadata": _FEW_TOPICS,
        "CreateTopic": Row(_SETTINGS),
        "CreateTopics": Row(_TOPICS),
        "AlterTopic": Row(_SETTINGS),
        "StartMoves": Row(_places("moves")),
        "Lead": Row(led=True),
        "ListOffsets": Row(
            Bound(lists={"partitions": _NUMBERS, "spans": Elements(limits.REQUEST_PLACES_MAX, ("partition",))}),
            led=True,
        ),
        "MoveCursors": Row(_places("positions"), led=True),
        "DeleteGroup": Row(_places("partitions"), led=True),
        "Purge": Row(_places("positions"), led=True),
        "CancelScheduled": Row(led=True),
        "AlterQueue": Row(_SETTINGS),
        "DescribeQueue": _NUMBERED,
        "SweepQueue": _NUMBERED,
        "Decide": Row(_manifest("manifest", "write fewer, larger batches in one micro-batch")),
        "Work": Row(
            Bound(
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
        "Observe": _FEW_TOPICS,
        "AlterAcls": _named(limits.REQUEST_RULES_MAX, "add", "remove"),
        "AlterQuotas": _named(limits.REQUEST_SETTINGS_MAX, "set", "unset"),
        "Revoke": _named(limits.REQUEST_RULES_MAX, "add", "remove"),
        "Revoked": _named(limits.REQUEST_RULES_MAX, "about"),
        "AlterSecurityFloor": _named(limits.REQUEST_SETTINGS_MAX, "add", "remove"),
        "Produce": Row(_BATCHES, led=True),
        "Fetch": Row(Bound(lists={"columns": Elements(limits.SCHEMA_FIELDS_MAX, ())}), led=True),
        "Subscribe": Row(_places("open.partitions", "close.partitions", "settled"), led=True),
        "WatchOffsets": Row(_places("partitions"), led=True),
        "Lock": Row(Bound(limits.LOCK_REQUEST_BYTES_MAX)),
    },
)
"""What clients call."""

PEER: Final = Service(
    "Peer",
    {
        "Metadata": _FEW_TOPICS,
        "Publish": Row(_STAGED),
        "Discard": _named(limits.DISCARD_UUIDS_MAX, "uuids"),
        "AreStaged": Row(_STAGED),
        "Stage": Row(_BATCHES),
        "Fence": Row(_manifest("kept")),
    },
)
"""What brokers call, of each other, on a port of its own."""
