"""A partition that is led here, as queue groups see it: its admission, its state and its index are the real ones. What
is written is committed when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.group.requests import Asking, Item, Lent, Settling
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.policy.ordering import ByKey
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import Append, Attributes, Entry, Operation, Stage, TransactionKey, Trim, Work
from mq_broker.core.machine.admission import Admit, judge
from mq_broker.core.machine.admission import Answer as Answered
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Done, Propose, Published, Refused, Result, Trimmed
from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.settling import Ack, Answer, Outcome, Settle
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Begin, LeaseId, Step
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch, schema_to_bytes
from mq_protocol.errors import NotLeader, TritonMQError, UnknownTopic
from mq_protocol.queues.settings import QueueSettings

EPOCH = 3
BYTES_PER_RECORD = 10


TOPIC = Topic.of(TopicSpec("t", "0" * 32, ((1,),)))


@dataclass
class Replica:
    """As the core shows it."""

    machine: PartitionMachine
    leader_epoch: int = EPOCH
    trimming: bool = False
    last_index: int = 0


class Led:
    """A partition of topic `t`. `proposed`: every entry of a group that was asked for; `refuses`: what new ones are
    refused with. `keeps_up`: entries are committed in the turn in which they are asked for. `reads`: what was read;
    `unreadable`: what reads are refused with, one after another."""

    def __init__(self, records: int = 0, topic: Topic = TOPIC, number: int = 0) -> None:
        self.name, self.number, self.topic = f"t-{number}", number, topic
        self.machine = PartitionMachine(WindowBounds(1_000, None))
        self.replica = Replica(self.machine)
        self.unreadable: list[TritonMQError] = []
        self.reads: list[tuple[int, int]] = []
        self._payloads: dict[int, bytes] = {}
        self.index = OffsetIndex()
        self.observers: set[Callable[[], None]] = set()
        self.serving, self.closed = True, False
        self.proposed: list[Work] = []
        self.refuses: TritonMQError | None = None
        self.keeps_up = True
        self._overlay = Overlay([])
        self._tail: list[tuple[Entry, Callable[[Result], None]]] = []
        self._doubtful: list[Callable[[Result], None]] = []
        if records:
            self.append(records)

    @property
    def epoch(self) -> int:
        """Of this leadership."""
        return int(self.replica.leader_epoch)

    @property
    def next_offset(self) -> int:
        return self.machine.next_offset

    def offsets(self) -> pb.PartitionOffsets:
        start, end = self.machine.log_start_offset, self.next_offset
        return pb.PartitionOffsets(
            partition=self.number, log_start_offset=start, log_end_offset=end, leader_epoch=self.epoch
        )

    def not_leader(self) -> NotLeader:
        return NotLeader("t-0 is led by broker 2: ask there", 2, EPOCH + 1)

    def append(self, records: int, priority: int = 4, at_us: int = 0, ttl_ms: int = 0) -> None:
        """A batch becomes readable. `at_us`: its time."""
        self._last += 1
        batch = Append(attributes=Attributes(priority, ttl_ms))
        uuid, size = self._last.to_bytes(16), records * BYTES_PER_RECORD
        entry = Entry(self._last, self.epoch, at_us, batch, uuid, records, size)
        for change in self.machine.apply(entry):
            assert isinstance(change, Published)
            self.index.append(change)
        self.tell()

    def put(self, rows: pa.RecordBatch | bytes, records: int = 0) -> None:
        """A batch becomes readable, with its rows; or so many records in bytes that are no batch."""
        payload = rows if isinstance(rows, bytes) else encode_batch(rows).to_pybytes()
        self._payloads[self.next_offset] = payload
        self.append(records or rows.num_rows)  # type: ignore[union-attr]

    def read(self, start: int, end: int, bytes_max: int) -> list[tuple[Published, memoryview]]:
        self.reads.append((start, end))
        if self.unreadable:
            raise self.unreadable.pop(0)
        found = self.index.range(start, end, bytes_max)
        return [(each, memoryview(self._payloads[each.base_offset])) for each in found]

    def trim(self, start: int) -> None:
        """Retention drops what is before."""
        self._last += 1
        for change in self.machine.apply(Entry(self._last, self.epoch, 0, Trim(start))):
            assert isinstance(change, Trimmed)
            self.index.trim(change.log_start_offset)
        self.tell()

    def tell(self) -> None:
        for observer in list(self.observers):
            observer()

    def apply(self, group: str, life: int, *steps: Step, epoch: int = EPOCH) -> None:
        """An entry that another leader wrote, or this one before the test began."""
        self._last += 1
        self.machine.apply(Entry(self._last, epoch, 0, Work(group, life, steps)))

    def stage(self, uuid: bytes, key: TransactionKey, run: str) -> None:
        """A batch is staged, and nobody has decided it."""
        self._last += 1
        self.machine.apply(Entry(self._last, self.epoch, 0, Stage(key, 0, run), uuid, 1, BYTES_PER_RECORD))

    def propose(self, operation: Operation, on_reply: Callable[[Result], None], _deadline: float) -> None:
        if self.refuses is not None:
            on_reply(Refused(self.refuses))
            return
        verdict = judge(Propose(1, operation, 0), self.machine, self._overlay, 1)
        if isinstance(verdict, Admit):
            if isinstance(operation, Work):
                self.proposed.append(operation)
            self._last += 1
            entry = Entry(self._last, self.epoch, 0, operation)
            self._overlay.add(entry)
            self._tail.append((entry, on_reply))
            if self.keeps_up:
                asyncio.get_running_loop().call_soon(self.commit)
        else:
            assert isinstance(verdict, Answered)
            if not verdict.of_absence:
                on_reply(verdict.result)
            elif self.keeps_up:
                asyncio.get_running_loop().call_soon(on_reply, verdict.result)
            else:
                self._doubtful.append(on_reply)

    async def ask(self, operation: Operation, deadline: float) -> Done:
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.propose(operation, answered.set_result, deadline)
        result = await answered
        if isinstance(result, Refused):
            raise result.error
        assert isinstance(result, Done)
        return result

    def why_not(self, _operation: Operation) -> TritonMQError | None:
        return self.refuses

    @property
    def _last(self) -> int:
        return int(self.replica.last_index)

    @_last.setter
    def _last(self, index: int) -> None:
        self.replica.last_index = index

    @property
    def in_flight(self) -> int:
        return len(self._tail)

    def commit(self, entries: int | None = None) -> None:
        """What was asked for is committed, and this leader knows that it leads; or the first entries alone."""
        entries = len(self._tail) if entries is None else entries
        tail, self._tail = self._tail[:entries], self._tail[entries:]
        for entry, on_reply in tail:
            self._overlay.remove(entry)
            for change in self.machine.apply(entry):
                if isinstance(change, Trimmed):
                    self.index.trim(change.log_start_offset)
            on_reply(Done(entry.index))
        if not self._tail:
            self.confirm()

    def confirm(self) -> None:
        """This leader knows that it leads."""
        doubtful, self._doubtful = self._doubtful, []
        for on_reply in doubtful:
            on_reply(Done(0, duplicate=True))

    def cut(self, error: TritonMQError, kept: int = 0) -> None:
        """The disk refuses what is on its way but the first entries, and this broker leads on."""
        tail, self._tail = self._tail[kept:], self._tail[:kept]
        for entry, on_reply in tail:
            self._overlay.remove(entry)
            on_reply(Refused(error))
        self._last -= len(tail)

    def lose(self, error: TritonMQError) -> None:
        """Another broker leads."""
        self.serving = False
        tail, self._tail = self._tail, []
        doubtful, self._doubtful = self._doubtful, []
        for on_reply in [*(each for _, each in tail), *doubtful]:
            on_reply(Refused(error))
        self.tell()

    @property
    def state(self) -> WorkState:
        return self.machine.work["g"]


class Asked(Asking):
    """What a member asks. The test waits for its answer."""

    def __init__(
        self,
        member: str,
        key: bytes,
        records_max: int,
        *,
        bytes_max: int = 0,
        held: Mapping[LeaseId, Ranges] = {},
        watches: bool = False,
        once: bool = False,
        **terms: Any,
    ) -> None:
        has_room = bool(records_max) or watches
        of = pb.WorkTerms(**terms)
        super().__init__(member, key, of, records_max, bytes_max, held, has_room=has_room, returns=True, once=once)
        self.answered: asyncio.Future[Lent] = asyncio.get_running_loop().create_future()

    def note_judged(self) -> None:
        pass

    def answer(self, lent: Lent) -> None:
        if not self.answered.done():
            self.answered.set_result(lent)

    def refuse(self, error: TritonMQError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class Settled(Settling):
    """What a member settles at once. The test waits for all answers, or for the error of all."""

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__(items)
        self.answers: list[Answer | None] = [None] * len(items)
        self.answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def answer(self, number: int, answer: Answer) -> None:
        assert self.answers[number] is None, "it has its answer"
        self.answers[number] = answer
        if None not in self.answers and not self.answered.done():
            self.answered.set_result([each for each in self.answers if each is not None])

    def refuse(self, error: TritonMQError) -> None:
        if len(self.todo) == len(self.items) and not self.answered.done():
            self.answered.set_exception(error)
            self.todo.clear()
        super().refuse(error)


class Group:
    """The led_group of group `g` in a partition, with clocks that the test sets. `told_of_doomed`: grows with each word
    that there are records for the dead-letter topic; `refused`: with each entry that was. `keys`: what is known of an
    order by key."""

    def __init__(self, records: int = 100, led: Led | None = None, **settings: Any) -> None:
        self.led: Any = led or Led(records)
        self.led.apply("g", 1, Begin(0))
        self.queue: Queue | None = Queue("g", 1, 0, QueueSettings(**settings))
        self.ms, self.us = 1_000_000, 1_000_000_000
        self.told_of_doomed: list[LedGroup] = []
        self.on_doomed: Callable[[LedGroup], None] = self.told_of_doomed.append
        self.on_outbox: Callable[[LedGroup, WorkState], None] = lambda *_: None
        self.on_rows: Callable[[LedGroup, Policy], None] = self._read
        self.refused: list[TritonMQError] = []
        self.led_group = self._gathering()
        self.key_of: Callable[[int], int | None] = lambda _: None
        self.reads = True
        self.keys: ByKey | None = None

    def _gathering(self) -> LedGroup:
        return LedGroup(
            self.led,
            "g",
            lambda: self.queue,
            lambda: self.ms,
            lambda: self.us,
            lambda: None,
            lambda: False,
            on_outbox=lambda *told: self.on_outbox(*told),
            on_doomed=lambda told: self.on_doomed(told),
            on_rows=lambda *told: self.on_rows(*told),
            on_refused=lambda _, error: self.refused.append(error),
        )

    def lead_anew(self) -> None:
        """Somebody leads who knows the state alone, and nothing of members, clocks and keys."""
        self.led_group.close(self.led.not_leader())
        self.led_group = self._gathering()
        self.led_group.wake()

    def _read(self, led_group: LedGroup, policy: Policy) -> None:
        """As many keys as it wants, at once."""
        keys = policy.ready
        self.keys = keys if isinstance(keys, ByKey) else None
        while self.reads and isinstance(keys, ByKey) and (wanted := keys.to_read(self.led.next_offset)) is not None:
            known = [(offset, key) for offset in range(*wanted) if (key := self.key_of(offset)) is not None]
            keys.add(wanted[1], [offset for offset, _ in known], [key for _, key in known])
        led_group.wake()

    def declare(self, life: int = 1, **settings: Any) -> None:
        """From now on these are the settings."""
        assert self.queue is not None
        self.queue = Queue("g", life, 0, replace(self.queue.settings, **settings))
        self.led_group.wake()

    def ask(
        self, member: str, records_max: int = 10, *, key: bytes = b"", held: Iterable[LeaseId] = (), **fields: Any
    ) -> Asked:
        """`held`: whole leases."""
        asking = Asked(member, key, records_max, held=dict.fromkeys(held, ()), **fields)
        self.led_group.ask(asking)
        return asking

    def hurry(self, asking: Asking) -> None:
        """It waits no longer."""
        asking.once = True
        self.led_group.wake()

    def settle(self, *items: Item) -> Settled:
        settling = Settled(items)
        self.led_group.settle(settling)
        return settling

    def ack(self, member: str, lease: LeaseId | None, *ranges: tuple[int, int]) -> Settled:
        return self.outcome(Ack(), member, lease, *ranges)

    def outcome(self, outcome: Outcome, member: str, lease: LeaseId | None, *ranges: tuple[int, int]) -> Settled:
        assert lease is not None
        return self.settle(Settle(lease, member, ranges, outcome))

    def pass_ms(self, ms: int) -> None:
        self.ms += ms
        self.us += ms * 1_000
        self.led_group.beat(self.ms)

    @property
    def state(self) -> WorkState:
        state: WorkState = self.led.state
        return state

    def leased(self) -> dict[str, Ranges]:
        """What each member has."""
        found: dict[str, Ranges] = {}
        for first, end, lease in self.state.lent:
            member = self.state.leases[lease].member
            found[member] = (*found.get(member, ()), *self.state.settled.missing(first, end))
        return found


class Declares:
    """That `g` is a queue group, with these settings."""

    def __init__(self) -> None:
        self.settings = QueueSettings()

    def find(self, *_: object) -> Queue:
        return Queue("g", 1, 0, self.settings)

    get = find


class Around:
    """The rooms around that of queues: tasks, topics, partitions that are led here (`leds`), and leaders elsewhere.
    `asked`: of those, method and request; `says`: what they answer a method next, an error or None, and then all is
    well; `holds`: a method whose answer waits. `unknown`: topics that this broker has not heard of; `gone`: that are no
    more."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = list(topics)
        self.leds: list[Any] = []
        self.on_role: list[Callable[[Any], None]] = []
        self.ms = 1_000_000
        self.asked: list[tuple[str, Any]] = []
        self.says: dict[str, list[TritonMQError | None]] = {}
        self.holds: dict[str, asyncio.Event] = {}
        self.answers: dict[str, Any] = {}
        self.on_ask: Callable[[str, Any], None] = lambda *_: None
        self.unknown: set[str] = set()
        self.gone: set[str] = set()
        self.on_get: Callable[[str], None] = lambda _: None
        self.on_renewed: Callable[[Topic], None] = lambda _: None
        self._tasks: set[asyncio.Task[None]] = set()

    publish = discard = stage = None  # how it is done here: all of it is asked

    def of(self, method: str) -> list[Any]:
        """What was asked by that method."""
        return [request for asked, request in self.asked if asked == method]

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def leader(self, _topic: Topic, number: int) -> Any:
        return next(led for led in self.leds if led.number == number)

    partition = leader

    def partitions_of(self, _changed: object) -> list[Any]:
        return self.leds

    def now_ms(self) -> int:
        return self.ms

    def with_id(self, topic_id: str) -> Topic | None:
        known = [each for each in self.topics if each.spec.topic_id == topic_id]
        return known[0] if known and topic_id not in self.unknown | self.gone else None

    async def get(self, name: str) -> Topic:
        self.on_get(name)
        known = [each for each in self.topics if each.spec.name == name and each.spec.topic_id not in self.gone]
        if not known:
            raise UnknownTopic(f"there is no topic {name}")
        return known[0]

    async def renewed(self, topic: Topic) -> Topic:
        self.on_renewed(topic)
        return await self.get(topic.spec.name)

    async def make_like(self, source: Topic, name: str, schema: pa.Schema, _deadline: float) -> Topic:
        columns = schema_to_bytes(schema) if source.spec.schema else b""
        made = Topic.of(TopicSpec(name, f"{len(self.topics):032}", source.spec.assignment, columns))
        self.topics.append(made)
        return made

    async def meant(self, name: str, _topic_id: str) -> Topic:
        return await self.get(name)

    async def is_gone(self, topic_id: str) -> bool:
        return topic_id in self.gone

    async def ask_leader(self, name: str, number: int, method: str, request: Any, response: Any, *_: object) -> Any:
        assert (request.topic, request.partition) == (name, number)
        self.asked.append((method, request))
        self.on_ask(method, request)
        if method in self.holds:
            await self.holds[method].wait()
        answers = self.says.get(method, [])
        error = answers.pop(0) if answers else None
        if error is not None:
            raise error
        return self.answers.get(method, response())


async def lease_of(group: Group, member: str, records: int, **fields: Any) -> LeaseId:
    lent = await group.ask(member, records, **fields).answered
    assert lent.lease is not None
    return lent.lease


async def rounds() -> None:
    """All that is due now has been done."""
    for _ in range(30):
        await asyncio.sleep(0)


def offsets(asking: Asked) -> list[tuple[int, int]]:
    """What the member was lent."""
    return [(run.first, run.end) for run in asking.answered.result().runs]
