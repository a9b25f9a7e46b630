"""What a member knows of each partition of its queue. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mq_client.cluster.deadline import Backoff
from mq_client.consuming.slices import StoredSlice
from mq_client.queueing.leases import HeldLease, LeaseId
from mq_client.queueing.settling import Line, Outbox
from mq_protocol import mq_pb2 as pb


def extends(line: Line) -> bool:
    """Whether it sets clocks anew, rather than saying what becomes of records."""
    return line.word.outcome == pb.OUTCOME_EXTEND


@dataclass(eq=False, slots=True)
class Call:
    """What was said to the leader at `address`. `lines`: the outcomes that it tells. Of a lease, `records` and `bytes`:
    the most that it may be; `rows`: that came with it; `losses`: those of its place when its leader had heard all."""

    address: str
    sent_at: float
    records: int = 0
    bytes: int = 0
    lines: list[Line] = field(default_factory=list)
    rows: Sequence[StoredSlice] = ()
    cancel: Callable[[], object] = lambda: None
    doubted_at: float = 0.0
    losses: int = 0


@dataclass(eq=False, slots=True)
class Place:
    """One partition.

    `settling`: a request with outcomes on its way, one at a time. `losses`: how often its leaders have said that
    something is lost. `epoch`: of the leader that was known last. `number`: of the last ack with outputs, also of a
    former process of this member. `unsure`: leases may have run out, or another broker leads: it is to be told soon
    which leases this member holds. `ask_after`: when a session may be opened. Times: of the monotonic clock.
    """

    partition: int
    leases: dict[LeaseId, HeldLease] = field(default_factory=dict)
    settles: Outbox = field(default_factory=Outbox)
    extensions: Outbox = field(default_factory=Outbox)
    settling: Call | None = None
    losses: int = 0
    epoch: int = 0
    number: int = 0
    unsure: bool = False
    ask_after: float = 0.0
    settle_after: float = 0.0
    extend_after: float = 0.0
    extend_at: float = math.inf
    check_at: float = math.inf
    ask_backoff: Backoff = field(default_factory=Backoff)
    settle_backoff: Backoff = field(default_factory=Backoff)

    @property
    def quiet(self) -> bool:
        """Nothing is to be said to its leader, and the answer to no request is waited for."""
        return not (self.settles or self.extensions or self.settling)

    def put_back(self, lines: Sequence[Line], *, again: bool) -> None:
        """They are said again, before all others. `again`: nobody knows what came of the first time."""
        self.settles.put_back([line for line in lines if not extends(line)], again=again)
        self.extensions.put_back([line for line in lines if extends(line)], again=again)


@dataclass(frozen=True, slots=True)
class Credit:
    """How many records and bytes a member may hold."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Terms:
    """As whom and on which terms a member asks. `key`: random, and another one for each process. `working`: how many
    records the application works on at a time. `lease_ms` 0: as the group says. `accept`: records are settled by being
    lent. `filter`: they match it; empty: any."""

    topic: str
    group: str
    member: str
    key: bytes
    credit: Credit
    working: int
    lease_ms: int
    accept: bool
    priority: int = 0
    filter: str = ""
