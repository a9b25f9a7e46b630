"""A stream of sessions of a queue group without a broker: what is heard of a client that does not read, and how much it
is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from mq_broker.broker.queues.asked import Asked
from mq_broker.broker.queues.letters.outputs import Outputs
from mq_broker.broker.queues.sessions import ANSWER_BYTES, Sessions
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.memory import COPIES_SENT, Held
from mq_broker.core.work.steps import Begin
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import StorageFailed
from mq_protocol.limits import FETCH_CHUNK_BYTES, SETTLES_MAX
from mq_protocol.wire.envelope import Envelope
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Around, Declares, Led, rounds

NOBODYS = pb.LeaseId(leader_epoch=1, entry=1)


class World:
    """A leader of ten records with the queue group `g`, of which each message to the client waits until it `reads`.
    `heard`: requests that were taken from the client; `sent`: what it was told, and `counted`: what was counted of the
    memory then."""

    def __init__(self) -> None:
        self.led: Any = Led(10)
        self.led.apply("g", 1, Begin(0))
        self.led.read = self._unreadable
        self.held = Held(1 << 30)
        around, declared = Around(self.led.topic), Declares()
        around.leds = [self.led]
        here: Any = around
        declares: Any = declared
        self.sessions = Sessions(
            Asked(here, here, declares), Working(here, declares, lambda: 1), Outputs(here, here), self.held
        )
        self.reads, self.goes = asyncio.Event(), asyncio.Event()
        self.heard = 0
        self.sent: list[Envelope[pb.WorkHeader]] = []
        self.counted: list[int] = []

    @staticmethod
    def _unreadable(*_: object) -> None:
        raise StorageFailed("rows are fetched by the member")

    def says(self, *sessions: pb.SessionRequest) -> asyncio.Task[None]:
        """Each in a message of its own; then the client says nothing until it `goes`."""
        return asyncio.create_task(self.sessions.work(self._requests(sessions), self.send))

    async def _requests(self, sessions: Iterable[pb.SessionRequest]) -> AsyncIterator[pb.WorkRequest]:
        for said in sessions:
            self.heard += 1
            yield pb.WorkRequest(sessions=[said])
        await self.goes.wait()

    async def send(self, message: Envelope[pb.WorkHeader]) -> None:
        await self.reads.wait()
        self.sent.append(message)
        self.counted.append(self.held.bytes)

    @property
    def told(self) -> list[pb.SessionResponse]:
        return [said for message in self.sent for said in message.header.sessions]


def opened(member: str, records: int = 0) -> pb.SessionRequest:
    first = pb.WorkOpen(topic="t", group="g", member=member, member_key=b"k" * 16)
    return pb.SessionRequest(session=1, open=first, credit=pb.WorkCredit(records=records))


async def passed() -> None:
    for _ in range(10):
        await rounds()


@virtual_time
async def test_of_a_client_that_does_not_read_no_more_is_heard_until_it_does() -> None:
    """It says more and more, of which each word has an answer; what it says waits then, in TCP."""
    world = World()
    extend = [pb.SettleOne(ranges=[offset, 1], outcome=pb.OUTCOME_EXTEND) for offset in range(10)] * 4
    stream = world.says(opened("a"), *[pb.SessionRequest(session=1, settles=extend)] * 1_000)
    await passed()
    assert world.heard < 1_001  # of as many; how many more before it stops is a matter of turns
    world.reads.set()
    await passed()
    assert sum(len(said.answers) for said in world.told) == 1_000 * len(extend)
    world.goes.set()
    await stream


@virtual_time
async def test_answers_do_not_all_go_into_one_message_and_each_message_is_counted_until_it_is_sent() -> None:
    """An answer takes the time of some hundred bytes, and others wait meanwhile."""
    world = World()
    world.reads.set()
    many = pb.SessionRequest(session=1, settles=[pb.SettleOne(lease=NOBODYS)] * SETTLES_MAX)
    stream = world.says(opened("a"), many)
    await passed()
    answers = [sum(len(said.answers) for said in message.header.sessions) for message in world.sent]
    assert sum(answers) == SETTLES_MAX
    assert max(answers) <= FETCH_CHUNK_BYTES // ANSWER_BYTES < SETTLES_MAX
    sizes = [sum(map(len, message.parts)) + message.header.ByteSize() for message in world.sent]
    assert world.counted == [COPIES_SENT * size for size in sizes]
    assert world.held.bytes == 0
    world.goes.set()
    await stream


@virtual_time
async def test_the_number_of_a_session_that_was_closed_may_be_given_to_the_next_one() -> None:
    """What the former was still to be told is not told, and the end of it is not the end of the next one."""
    world = World()
    recall = pb.SessionRequest(session=1, credit=pb.WorkCredit(recall=True))
    close = pb.SessionRequest(session=1, close=True)
    stream = world.says(opened("a", 3), recall, close, opened("b", 2))
    await passed()
    world.reads.set()
    await passed()
    leases = [list(said.lease.ranges) for said in world.told if said.HasField("lease")]
    assert leases[-1][1::2] == [2]
    assert sum(said.HasField("credit") for said in world.told) == 0
    assert world.led.state.leased == 2
    assert not any(said.HasField("error") for said in world.told)
    world.goes.set()
    await stream


@virtual_time
async def test_a_lease_that_says_there_is_more_is_not_contradicted_by_what_held_before_it() -> None:
    """A client that reads slowly is told both in one message: that nothing is ready, and then a lease. It took the
    partition for empty, and asked it for nothing more."""
    world = World()

    async def requests() -> AsyncIterator[pb.WorkRequest]:
        """Nothing is read but by the next message; so what the second member is told shares one."""
        yield pb.WorkRequest(sessions=[opened("a", 10)])
        await passed()
        second = opened("b", 1)
        second.session, second.credit.watch = 2, True
        yield pb.WorkRequest(sessions=[second])
        await passed()
        [(epoch, entry, step)] = world.led.state.leases
        back = pb.SettleOne(ranges=[0, 10], outcome=pb.OUTCOME_RELEASE)
        back.lease.CopyFrom(pb.LeaseId(leader_epoch=epoch, entry=entry, step=step))
        yield pb.WorkRequest(sessions=[pb.SessionRequest(session=1, settles=[back])])
        await passed()
        world.reads.set()
        await world.goes.wait()

    stream = asyncio.create_task(world.sessions.work(requests(), world.send))
    for _ in range(5):
        await passed()
    [told] = [said for said in world.told if said.session == 2]
    assert told.lease.ready
    assert not told.HasField("ready")
    world.goes.set()
    await stream
