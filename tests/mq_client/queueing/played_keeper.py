"""The keeper of a queue's leases: the test takes its turns, sets its clock and plays the leaders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mq_client.cluster.connection import TopicView
from mq_client.errors import TritonMQError
from mq_client.queueing.holdings import Credit, Place, Terms
from mq_client.queueing.keeper import GATHER_S, Keeper
from mq_client.queueing.leases import HeldLease
from mq_client.queueing.shares import Round
from mq_client.queueing.shelf import Rows
from mq_client.queueing.work_streams import Told
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info

SCHEMA = pa.schema([("n", pa.int64())])


@dataclass
class Saying:
    """Outcomes and extensions that a leader was told. `reply`: gives it the answers to all of them."""

    address: str
    settles: list[pb.SettleOne]
    reply: Callable[[list[pb.SettleAnswer]], None]

    @property
    def lines(self) -> list[tuple[int, list[int]]]:
        """What was said, and of which gaps and lengths."""
        return [(one.outcome, list(one.ranges)) for one in self.settles]

    def done(self, *lost: int) -> None:
        """All of it is committed, and these gaps and lengths of the first line are lost."""
        answers = [pb.SettleAnswer() for _ in self.settles]
        answers[0].lost.extend(lost)
        self.reply(answers)

    def refuse(self, error: TritonMQError) -> None:
        self.reply([pb.SettleAnswer(error=to_wire(error)) for _ in self.settles])


class Leaders(Scripted):
    """`looks`: how often somebody looked who leads."""

    def __init__(self, *leaders: int) -> None:
        super().__init__(Clock())
        self.looks = 0
        self.lead(*leaders)

    def leader_address(self, topic: TopicView, partition: int) -> str | None:
        self.looks += 1
        return super().leader_address(topic, partition)

    def lead(self, *leaders: int, epoch: int = 1, topic_id: str = "x") -> None:
        """The partitions have these leaders now, and everybody has heard of it."""
        answer = told(topic_info(*leaders, epoch=epoch, topic_id=topic_id, schema=SCHEMA))
        self.brokers_say = {f"b:{number}": answer for number in (1, 2, 3)}
        self._learn(answer)


@dataclass
class _Timer:
    at: float
    function: Callable[[], Any]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class _Loop:
    """In the place of `EventLoop`. `due`: what it calls in its next turn."""

    def __init__(self, clock: Clock) -> None:
        self.due: deque[Callable[[], Any]] = deque()
        self._clock = clock
        self._timers: list[_Timer] = []

    def soon(self, function: Callable[[], Any]) -> None:
        self.due.append(function)

    def later(self, seconds: float, function: Callable[[], Any]) -> _Timer:
        self._timers.append(_Timer(self._clock.now + seconds, function))
        return self._timers[-1]

    def run(self) -> float:
        """All that is due. For how many seconds nothing is; 0 if nothing ever will be."""
        for _ in range(100):
            self._timers = [timer for timer in self._timers if not timer.cancelled]
            over = [timer for timer in self._timers if timer.at <= self._clock.now]
            self._timers = [timer for timer in self._timers if timer not in over]
            self.due.extend(timer.function for timer in over)
            if not self.due:
                return min((timer.at - self._clock.now for timer in self._timers), default=0.0)
            self.due.popleft()()
        raise AssertionError("it never comes to rest")


@dataclass
class Stream:
    """In the place of `WorkStream`: what sessions say to one broker, and what they are told."""

    address: str
    said: list[pb.SessionRequest] = field(default_factory=list)
    listeners: dict[int, Callable[[Any], None]] = field(default_factory=dict)
    sessions: dict[int, int] = field(default_factory=dict)  # the last one of each partition
    opened: int = 0

    def open(self, listener: Callable[[Any], None]) -> int:
        self.opened += 1
        self.listeners[self.opened] = listener
        return self.opened

    def say(self, request: pb.SessionRequest) -> None:
        if request.HasField("open"):
            self.sessions[request.open.partition] = request.session
        self.said.append(request)

    def forget(self, number: int) -> None:
        self.listeners.pop(number, None)


class _Refreshes:
    """In the place of what asks who leads. `asked`: the addresses that were doubted, "" for a look."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refused: TritonMQError | None = None
        self.stopped = False

    def ask(self, topic: str, doubted: str = "") -> None:
        assert topic == "t"
        self.asked.append(doubted)

    def refusal(self, topic: str) -> TritonMQError | None:
        assert topic == "t"
        return self.refused

    def stop(self) -> None:
        self.stopped = True


class Played:
    """A keeper whose turns the test takes. Bytes: a record takes 10 once it was read."""

    def __init__(
        self,
        *leaders: int,
        in_flight_max: int = 10,
        bytes_max: int = 1_000_000,
        accept: bool = False,
        lease_ms: int = 0,
        priority: int = 0,
        filter_text: str = "",
    ) -> None:
        self.clock = Clock()
        self.leaders = Leaders(*(leaders or (1,)))
        credit = Credit(in_flight_max, bytes_max)
        terms = Terms("t", "g", "m", b"k" * 16, credit, 1, lease_ms, accept, priority, filter_text)
        self.keeper = Keeper(self.leaders, terms, self.clock.monotonic)
        self.refreshes: Any = _Refreshes()
        self.keeper._refresher = self.refreshes
        self.loop: Any = _Loop(self.clock)
        self.streams: dict[str, Stream] = {}
        self._round = Round()
        self._numbers: Counter[tuple[str, int]] = Counter()  # of what was said in each session
        self.start()

    def start(self) -> None:
        streams: Any = self
        with self.keeper.lock:
            self.keeper.ensure_started("x", self.loop, lambda _loop: streams)

    def to(self, address: str, *_: object) -> Stream:
        """As `WorkStreams` does."""
        return self.streams.setdefault(address, Stream(address))

    def round(self, *_: object) -> Round:
        """As `WorkStreams` does."""
        return self._round

    @property
    def place(self) -> Place:
        return self.keeper.holdings.places[0]

    @property
    def ended(self) -> bool:
        return self.keeper.over

    def rest(self) -> float:
        """Take turns until there is nothing to do. For how many seconds it would wait then; 0 at the end."""
        seconds: float = self.loop.run()
        return 0.0 if self.ended else seconds

    def pass_s(self, seconds: float) -> float:
        self.clock.now += seconds
        return self.rest()

    # ------------------------------------------------------------------ what leaders hear

    def said(self, address: str = "b:1") -> list[pb.SessionRequest]:
        """What is new in sessions there, after all turns that are due."""
        self.rest()
        stream = self.streams[address]
        said, stream.said = stream.said, []
        return said

    def sayings(self) -> list[Saying]:
        """Outcomes and extensions since the last call, after all turns that are due."""
        self.rest()
        found: list[Saying] = []
        for address in list(self.streams):
            found += self.sayings_in(address, self.said(address))
        return found

    def sayings_in(self, address: str, requests: Iterable[pb.SessionRequest]) -> list[Saying]:
        return [self._saying(address, request) for request in requests if request.settles]

    def _saying(self, address: str, request: pb.SessionRequest) -> Saying:
        key = address, request.session
        first = self._numbers[key] + 1
        self._numbers[key] += len(request.settles)

        def reply(answers: list[pb.SettleAnswer]) -> None:
            numbered = [pb.NumberedAnswer(number=first + at, answer=answer) for at, answer in enumerate(answers)]
            self._tell(address, pb.SessionResponse(session=request.session, answers=numbered))

        return Saying(address, list(request.settles), reply)

    def one(self) -> Saying:
        """The only one, once what is gathered has been."""
        self.clock.now += GATHER_S
        [saying] = self.sayings()
        return saying

    # ------------------------------------------------------------------ what leaders say

    def tell(self, partition: int = 0, payloads: list[memoryview] | None = None, **fields: Any) -> None:
        """In the session of that partition, which is open."""
        self.rest()
        [stream] = [each for each in self.streams.values() if each.sessions.get(partition) in each.listeners]
        self._tell(stream.address, pb.SessionResponse(session=stream.sessions[partition], **fields), payloads)

    def _tell(self, address: str, response: pb.SessionResponse, payloads: list[memoryview] | None = None) -> None:
        self.streams[address].listeners[response.session](Told(response, payloads or ()))

    def refuse(self, error: TritonMQError, partition: int = 0) -> None:
        """The session of that partition ends with it."""
        self.tell(partition, error=to_wire(error))
        self.rest()

    def break_off(self, error: TritonMQError, address: str = "b:1") -> None:
        """The stream to that broker breaks."""
        self.rest()
        for listener in list(self.streams[address].listeners.values()):
            listener(error)
        self.rest()

    def lend(self, count: int, entry: int = 5, first: int = 0, partition: int = 0, **fields: Any) -> HeldLease:
        """So many records are lent, and their rows are read."""
        self.lend_unread(lent(entry, first, count, **fields), partition)
        return self.read()

    def lend_unread(self, lease: pb.LeaseResponse, partition: int = 0) -> None:
        self.tell(partition, lease=lease, lent_bytes=10 * sum(lease.ranges[1::2]))
        self.rest()

    def read(self, rows: list[int] | None = None) -> HeldLease:
        """As the reading thread does. `rows`: the column, offsets if not given."""
        holdings = self.keeper.holdings
        lease, first = holdings.unread.popleft()
        with self.keeper.lock:
            self.keeper.note_size(lease, 10.0)
            offsets = lease.offsets[first:].tolist()
            batch = pa.RecordBatch.from_pydict({"n": rows or offsets}, schema=SCHEMA)
            holdings.put(Rows(lease, first, batch, 1, "t", True))
        return lease

    def take(self) -> tuple[HeldLease, int]:
        """The application is given the next record."""
        with self.keeper.lock:
            found = self.keeper.holdings.shelf.take()
            assert found is not None
            lease, index, _ = found
            if self.keeper.terms.accept:
                self.keeper.holdings.finish(lease, index)
            else:
                lease.begin(index)
            self.keeper.want_more()
        return lease, index


def lent(
    entry: int,
    first: int,
    count: int,
    *,
    lease_ms: int = 30_000,
    ready: bool = False,
    order: pb.QueueOrder.ValueType = pb.ORDER_NONE,
    order_by: str = "",
) -> pb.LeaseResponse:
    return pb.LeaseResponse(
        lease=pb.LeaseId(leader_epoch=1, entry=entry),
        ranges=[first, count],
        deliveries=[1],
        failures=[0],
        lease_ms=lease_ms,
        ready=ready,
        order=order,
        order_by=order_by,
    )


def places(*indexes: int) -> Any:
    return np.array(indexes, dtype=np.int64)
