"""One partition with stand-ins for its core, its journal and its broker: what each event and each effect leads to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host import partition as partitions
from mq_broker.broker.host.opened import JournalEvents, Opened
from mq_broker.broker.host.partition import FOLLOW_S, SHORTEN_AGAIN_S, Partition
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core import entries
from mq_broker.core.entries import MoveCursor
from mq_broker.core.machine.due_times import DueTimes
from mq_broker.core.messages import (
    Audit,
    CasOutcome,
    DiskRefused,
    Done,
    Event,
    Flushed,
    HandedOver,
    HandOver,
    JournalBegins,
    LogReplaced,
    NodeRead,
    OffsetsSkipped,
    Propose,
    Published,
    ReadNode,
    RecoveredLog,
    RecoveryAdopted,
    Refused,
    Reply,
    Result,
    RoleChanged,
    Tick,
    TransferLeadership,
    Trimmed,
    Truncate,
)
from mq_broker.storage.interface import OpenJournal
from mq_protocol.errors import (
    CoordinationUnavailable,
    IncompatibleVersion,
    NotLeader,
    StorageFailed,
)

TOPIC = Topic.of(TopicSpec("t", "id", ((1, 2, 3),)))
MOVE = MoveCursor("g", 0, "consumer")


class World:
    """Broker 1 with partition 0 of `t`, and all that is around the partition. `answers`: the effects of each event."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.answers: Callable[[Any], list[Any]] = lambda _event: []
        self.broker, self.incarnation, self.level = 1, 1, 99
        self.clock_ms = 1_000_000
        self.live = {1, 2, 3}
        self.contact: dict[int, int] = {}
        self.beats: dict[int, int] = {}
        self.contacts = SimpleNamespace(since=self.contact.get, last_beat_ms=lambda broker: self.beats.get(broker, -1))
        self.works: list[Coroutine[Any, Any, None]] = []
        self.node: Any = None
        self.shortens: Callable[[int], int] = lambda first: first
        shell: Any = self
        self.links = self.arriving = None
        self.machine = SimpleNamespace(next_offset=10, oldest_staged_index=lambda: None, due_times=DueTimes())
        self.replica: Any = SimpleNamespace(
            epoch_start=0,
            leading=True,
            ready=True,
            leader=1,
            leader_epoch=5,
            at_rest=True,
            applied_index=20,
            first_index=1,
            replicas=(1, 2, 3),
            isr=(1, 2, 3),
            machine=self.machine,
            step=self._step,
        )
        self.journal: Any = SimpleNamespace(
            log_id="log",
            first_index=1,
            truncate=lambda index: self.did.append(("truncate", index)),
            adopt=self._adopt,
            shorten_to=self._shorten_to,
            close=self._close,
        )
        self.index: Any = SimpleNamespace(
            log_start_offset=3,
            append=lambda published: self.did.append(("append", published)),
            trim=lambda offset: self.did.append(("trim", offset)),
            skip=lambda *offsets: self.did.append(("skip", *offsets)),
            close=lambda: self.did.append(("close index",)),
            oldest_index=lambda _offset: None,
        )
        self.reports = JournalEvents("t-0")
        opened = Opened(OpenJournal(self.journal, RecoveredLog((), None)), self.reports, self.index)
        self.partition = Partition(shell, TOPIC, 0, opened)
        self.partition.replica = self.replica
        settings: Any = SimpleNamespace(window="window")
        self.partition._settings = settings

    # ---- its core and its journal

    def _step(self, event: Event) -> list[Any]:
        self.events.append(event)
        return self.answers(event)

    async def _adopt(self, recovery: int) -> None:
        self.did.append(("adopt", recovery))

    async def _shorten_to(self, first_index: int, window: object) -> int:
        assert window == "window"
        self.did.append(("shorten", first_index))
        return self.shortens(first_index)

    async def _close(self) -> None:
        self.did.append(("close journal",))

    # ---- its broker

    def now_ms(self) -> int:
        return self.clock_ms

    def touch(self, partition: Partition) -> None:
        self.did.append(("touch", partition.name))

    def is_live(self, broker: int) -> bool:
        return broker in self.live

    def fail(self, error: Exception) -> None:
        raise error

    def role_changed(self, partition: Partition) -> None:
        self.did.append(("role", partition.name))

    def decision_committed(self, _partition: Partition, decision: object) -> None:
        self.did.append(("decided", decision))

    def reopen(self, _partition: Partition, *why: object) -> None:
        self.did.append(("reopen", *why))

    def install(self, _partition: Partition, *what: object) -> None:
        self.did.append(("install", *what))

    def start_over(self, _partition: Partition, *recovery: object) -> None:
        self.did.append(("start over", *recovery))

    def write_node(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.did.append(("write node",))
        self.spawn(work, name)

    async def write_state(self, *written: object) -> tuple[CasOutcome, int]:
        self.did.append(("written", *written))
        return CasOutcome.DONE, 8

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> None:
        self.works.append(work)

    async def work(self) -> None:
        """What was begun in the background runs to its end."""
        works, self.works = self.works, []
        for each in works:
            await each

    @property
    def coordination(self) -> Any:
        return self

    async def read_state(self, topic_id: str, number: int) -> Any:
        assert (topic_id, number) == ("id", 0)
        if isinstance(self.node, Exception):
            raise self.node
        return self.node

    def answer(self, *effects: object) -> None:
        """Have the core ask for that."""
        self.answers = lambda event: list(effects) if isinstance(event, Tick) else []
        self.partition.feed(Tick(1))
        self.answers = lambda _event: []


# ---------------------------------------------------------------- what it knows


def test_it_is_at_rest_only_while_its_core_is_and_nobody_waits_for_it() -> None:
    world = World()
    assert world.partition.at_rest
    world.replica.at_rest = False
    assert not world.partition.at_rest
    world.replica.at_rest = True
    told: list[Result] = []
    world.partition.propose(MOVE, told.append, 1e9)
    assert not world.partition.at_rest
    [proposed] = world.events
    assert isinstance(proposed, Propose)
    done = Done(proposed.request, 0, 0, False)
    world.answer(Reply(proposed.request, done))
    assert told == [done]
    assert world.partition.at_rest
    world.answer(Reply(proposed.request, done))
    assert told == [done], "it is answered once"


@pytest.mark.parametrize(
    ("applied", "first", "closed", "knows"), [(4, 5, False, False), (5, 5, False, True), (6, 5, True, False)]
)
def test_a_replica_knows_something_committed_once_it_applied_an_entry_of_its_journal(
    applied: int, first: int, closed: bool, knows: bool
) -> None:
    world = World()
    world.replica.applied_index, world.replica.first_index, world.partition.closed = applied, first, closed
    assert world.partition.knows_committed is knows


@pytest.mark.parametrize("lacks", ["", "leading", "ready", "open"])
def test_it_serves_only_while_it_leads_and_is_ready_and_open(lacks: str) -> None:
    world = World()
    if lacks == "open":
        world.partition.closed = True
    elif lacks:
        setattr(world.replica, lacks, False)
    assert world.partition.serving is not bool(lacks)


def test_a_follower_counts_on_its_leader_and_a_leader_on_every_registered_replica_but_itself() -> None:
    world = World()
    world.contact[2] = 7
    assert not world.partition.in_contact, "broker 3 is registered and does not beat"
    world.live = {1, 2}
    assert world.partition.in_contact
    world.live = {1, 2, 3}
    world.contact[3] = 8
    assert world.partition.in_contact
    world.replica.leading, world.replica.leader = False, 2
    del world.contact[3]
    assert (world.partition.in_contact, world.partition.contact_ms, world.partition.led_by) == (True, 7, (2, 5))
    world.replica.leader = 3
    assert (world.partition.in_contact, world.partition.contact_ms) == (False, None)


@pytest.mark.parametrize(
    ("leader", "words"), [(1, "broker 1 is taking up"), (2, "is led by broker 2"), (0, "has no leader at the moment")]
)
def test_who_cannot_be_answered_here_is_told_who_leads(leader: int, words: str) -> None:
    world = World()
    world.replica.leader = leader
    error = world.partition.not_leader()
    assert words in str(error)
    assert (error.leader, error.leader_epoch) == (leader, 5)


@pytest.mark.parametrize(("written_us", "behind_us"), [(4_000_000, 1_000_000), (5_000_000, 0), (6_000_000, 0)])
def test_a_reader_is_as_far_behind_as_the_oldest_record_that_it_has_not_read_is_old(
    monkeypatch: pytest.MonkeyPatch, written_us: int, behind_us: int
) -> None:
    monkeypatch.setattr(partitions, "time", SimpleNamespace(time_ns=lambda: 5_000_000_999))
    world = World()
    world.index.kept_from = lambda offset: offset + 1
    world.index.find = lambda offset: SimpleNamespace(timestamp_us=written_us if offset == 5 else 0)
    world.index.bytes_between = lambda start, end: 100 * start + end
    assert world.partition.lag(4) == (510, behind_us)
    assert world.partition.lag(9) == (0, 0), "nothing is kept from there on"
    assert world.partition.lag(10) == (0, 0)


# ---------------------------------------------------------------- what is asked of it


def test_an_operation_that_the_clusters_level_does_not_know_is_refused_and_reaches_no_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(entries.LEVELS, MoveCursor, 4)
    for level, known in ((3, False), (4, True)):
        world = World()
        world.level = level
        told: list[Result] = []
        world.partition.propose(MOVE, told.append, 1e9)
        assert len(world.events) == known
        assert [isinstance(result, Refused) and type(result.error) for result in told] == (
            [] if known else [IncompatibleVersion]
        )


def test_what_is_proposed_has_the_wall_clocks_time_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "time", SimpleNamespace(time_ns=lambda: 5_000_000_999))
    world = World()
    world.partition.propose(MOVE, lambda _result: None, 1e9, payload=b"abc", record_count=2)
    [proposed] = world.events
    assert isinstance(proposed, Propose)
    assert (proposed.timestamp_us, proposed.payload_bytes, proposed.record_count) == (5_000_000, 3, 2)


def test_who_asked_and_went_away_is_answered_without_harm() -> None:
    async def scenario() -> None:
        world = World()
        asking = asyncio.create_task(world.partition.ask(MOVE, 1e9))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        [proposed] = world.events
        assert isinstance(proposed, Propose)
        world.answer(Reply(proposed.request, Done(proposed.request, 0, 0, False)))
        assert world.partition.at_rest

    asyncio.run(scenario())


def test_what_happens_during_a_step_waits_until_the_step_is_carried_out() -> None:
    world = World()
    carried: list[tuple[str, int]] = []

    def step(event: Any) -> list[Any]:
        carried.append(("step", event.now_ms))
        return [Truncate(1), Truncate(2)] if event.now_ms == 1 else []

    def truncate(index: int) -> None:
        carried.append(("truncate", index))
        if index == 1:
            world.partition.feed(Tick(9))

    world.replica.step, world.journal.truncate = step, truncate
    world.partition.feed(Tick(1))
    assert carried == [("step", 1), ("truncate", 1), ("truncate", 2), ("step", 9)]


def test_what_the_journal_says_reaches_the_core() -> None:
    world = World()
    world.reports.flushed(7, 5)
    world.reports.refused(8, "no room")
    world.reports.replaced("log", "damaged")
    world.partition.transfer(2, 77)
    assert world.events == [
        Flushed(7, 5),
        DiskRefused(8, "no room"),
        LogReplaced("log", "damaged"),
        TransferLeadership(2, 77),
    ]
    assert world.did == [("touch", "t-0")], "the broker is told once a turn"


# ---------------------------------------------------------------- what the core asks for


def test_what_the_core_says_of_records_changes_what_readers_see() -> None:
    world = World()
    looked: list[int] = []
    world.partition.observers.add(lambda: looked.append(1))
    published = Published(10, 1, 21, 5, 8, 8)
    for effect, done in (
        (published, ("append", published)),
        (OffsetsSkipped(10, 30), ("skip", 10, 30)),
        (Trimmed(4), ("trim", 4)),
    ):
        assert not world.partition.shorten_due
        world.did.clear()
        looked.clear()
        world.answer(effect)
        assert done in world.did
        world.partition.end_turn(1)
        assert looked == [1]
    assert world.partition.shorten_due, "records went: the journal may begin later"


def test_a_role_is_told_to_the_broker_and_a_leader_that_leads_no_more_says_so_once() -> None:
    world = World()
    said: list[int] = []
    monkey: Any = world.partition
    monkey.speak = lambda: said.append(1)
    for leading, speaks in ((False, 0), (True, 0), (True, 0), (False, 1), (False, 1)):
        world.answer(RoleChanged(1, 5, leading, True))
        assert len(said) == speaks
    assert world.did.count(("role", "t-0")) == 5


def test_a_log_that_goes_on_as_a_recovered_one_remembers_it() -> None:
    async def scenario() -> None:
        world = World()
        world.answer(RecoveryAdopted(4))
        await world.work()
        assert ("adopt", 4) in world.did

    asyncio.run(scenario())


def test_an_audit_is_a_warning_only_where_an_operator_must_look(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.INFO):
        world.answer(Audit("claimed"), Audit("lost", alarm=True))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "claimed"),
        ("WARNING", "lost"),
    ]


def test_who_hands_over_is_told_the_first_successor() -> None:
    async def scenario() -> None:
        world = World()
        world.answer(HandedOver(3))  # nobody waits
        handing = asyncio.create_task(world.partition.hand_over(77))
        await asyncio.sleep(0)
        assert HandOver(77) in world.events
        world.answer(HandedOver(2), HandedOver(3))
        assert await handing == 2

    asyncio.run(scenario())


def test_the_node_is_read_once_at_a_time_and_again_after_a_failure() -> None:
    async def scenario() -> None:
        world = World()
        world.answer(ReadNode(), ReadNode())
        assert len(world.works) == 1
        await world.work()
        assert world.events[-1] == NodeRead(-1, None), "there is none"
        world.node = CoordinationUnavailable("away")
        heard = len(world.events)
        world.partition.look()
        await world.work()
        assert len(world.events) == heard
        world.node = (7, "state")
        world.partition.look()
        await world.work()
        assert world.events[-1] == NodeRead(7, "state")  # type: ignore[arg-type]
        world.partition.closed = True
        world.partition.look()
        assert not world.works

    asyncio.run(scenario())


# ---------------------------------------------------------------- the journal's beginning


@pytest.mark.parametrize(
    ("readable", "staged", "begins", "due"),
    [
        (None, None, 21, False),
        (15, None, 15, False),
        (30, None, 21, False),
        (15, 12, 12, True),
        (15, 18, 15, False),
        (None, 15, 15, True),
    ],
)
def test_a_journal_is_shortened_to_the_first_entry_that_somebody_needs(
    readable: int | None, staged: int | None, begins: int, due: bool
) -> None:
    async def scenario() -> None:
        world = World()
        world.index.oldest_index = lambda offset: readable if offset == 3 else 99
        world.machine.oldest_staged_index = lambda: staged
        await world.partition.shorten()
        assert ("shorten", begins) in world.did
        assert world.partition.could_begin == min(21, readable or 21)
        assert world.partition.shorten_due is due, "more may go once the staged batch is decided"
        assert world.events == [JournalBegins(begins)]
        world.did.clear()
        world.journal.first_index = world.replica.first_index = begins
        world.events.clear()
        await world.partition.shorten()
        assert ("shorten", begins) not in world.did
        assert not world.events, "it begins there already"

    asyncio.run(scenario())


def test_what_was_shortened_by_a_turn_that_nobody_waited_for_is_told_by_the_next() -> None:
    async def scenario() -> None:
        world = World()
        world.journal.first_index = 21
        await world.partition.shorten()
        assert world.did == [("touch", "t-0")]
        assert world.events == [JournalBegins(21)]

    asyncio.run(scenario())


@pytest.mark.parametrize("leading", [True, False])
def test_a_leader_gives_a_live_replica_that_is_behind_time_to_follow(leading: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.replica.isr, world.replica.leading = (1, 2), leading
        await world.partition.shorten()
        assert ("shorten", 21) in world.did
        world.did.clear()
        world.replica.applied_index = 30
        world.clock_ms += int(FOLLOW_S * 1000) - 1
        await world.partition.shorten()
        assert (("shorten", 31) in world.did) is not leading
        assert world.partition.shorten_due is leading
        world.did.clear()
        world.journal.first_index = 21
        world.live = {1, 2}
        await world.partition.shorten()
        assert ("shorten", 31) in world.did, "broker 3 is gone"

    asyncio.run(scenario())


def test_a_full_disk_is_asked_for_room_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_first_index: int) -> int:
        raise StorageFailed("no room")

    async def scenario() -> None:
        world = World()
        world.shortens = refuse
        later: list[tuple[float, Callable[[], None]]] = []
        loop = SimpleNamespace(call_later=lambda seconds, call: later.append((seconds, call)))
        monkeypatch.setattr(partitions, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
        with pytest.raises(StorageFailed):
            await world.partition.shorten()
        [(seconds, call)] = later
        assert seconds == SHORTEN_AGAIN_S
        assert not world.partition.shorten_due
        call()
        assert world.partition.shorten_due
        world.partition.closed = True
        world.did.clear()
        await world.partition.shorten()
        assert not world.did

    asyncio.run(scenario())


def test_a_partition_that_is_closed_while_its_journal_is_shortened_tells_its_core_nothing() -> None:
    async def scenario() -> None:
        world = World()

        def close(first_index: int) -> int:
            world.partition.closed = True
            return first_index

        world.shortens = close
        await world.partition.shorten()
        assert not world.events

    asyncio.run(scenario())


def test_a_partition_is_closed_once_its_journal_before_its_index() -> None:
    async def scenario() -> None:
        world = World()
        looked: list[bool] = []
        world.partition.observers.add(lambda: looked.append(world.partition.closed))
        await world.partition.close(NotLeader("moved"))
        await world.partition.close(NotLeader("again"))
        assert world.did == [("close journal",), ("close index",)]
        assert looked == [True]
        told: list[Result] = []
        world.partition.propose(MOVE, told.append, 1e9)
        assert [str(each.error) for each in told if isinstance(each, Refused)] == ["moved"]
        assert world.partition.at_rest, "it waits for nothing"

    asyncio.run(scenario())
