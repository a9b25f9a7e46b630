"""Where a proxy sends a call, and how long and how much it holds while a partition has no leader: against a cluster
that is played here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.proxy.holding import LOOK_AGAIN_S, REQUEST_BYTES, Holding
from mq_broker.broker.proxy.leaders import Leaders
from mq_broker.broker.proxy.routing import ANY, GONE, Routing, place_of
from mq_broker.broker.runtime.memory import Held
from mq_broker.coordination.interface import BrokerRegistration, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_broker.rpc.service import RefusedBatch
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, NotLeader, TritonMQError, UnknownTopic, Unreachable
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import Said
from tests.coroutines import virtual_time
from tests.mq_broker.broker.proxy.said import said

DEADLINE_S = 30.0
METHODS = BROKER.methods
NOTHING = said(pb.MetadataRequest())


class Played:
    """Three brokers and a topic `t` of two partitions. What is asked of each broker is noted in `asked`."""

    def __init__(self, hold_max: int = 1 << 20) -> None:
        self.reached = {1, 2, 3}
        self.leader: int | None = 1
        self.asked: list[tuple[int, str]] = []
        self.refusals: list[TritonMQError] = []
        self.looks = 0
        self.known = {"t"}
        self.partitions = self.partitions_now = 2  # of `t`, as this process has read it, and as it is
        self.holding = Holding(hold_max)
        self.me, self.brokers = BrokerRegistration(9, 1, "here"), dict.fromkeys((1, 2, 3))
        world: Any = self
        leaders = Leaders(world, world, world)
        self.routing = Routing(world, world, leaders, self.holding, Held(1 << 20), self.read_rules)

    def is_live(self, broker: int, _incarnation: int) -> bool:
        return broker in self.reached

    async def read_rules(self) -> None:
        self.asked.append((9, "rules"))
        if self.leader is None:
            raise CoordinationUnavailable("away")

    # -- topics, the coordination service

    def find(self, name: str) -> Any:
        return Topic.of(TopicSpec(name, "id", ((1,),) * self.partitions)) if name in self.known else None

    async def looked_for(self, name: str) -> Any:
        if name not in ("t", "new"):
            raise UnknownTopic(name)
        self.known.add(name)
        self.partitions = self.partitions_now
        return self.find(name)

    async def read_state(self, topic_id: str, _partition: int) -> tuple[int, NodeState]:
        assert topic_id == "id"
        self.looks += 1
        if self.leader is None:
            raise CoordinationUnavailable("away")
        return 1, NodeState(LeaderName(self.leader, 1) if self.leader else None, 1, (), 0, "")

    # -- forwarding

    def to(self, context: Any) -> int:
        if context < 0:
            raise Unreachable("no such broker")
        return int(context)

    async def reaches(self, to: int) -> bool:
        return to in self.reached

    async def ask(self, to: int, method: Any, request: Said, _deadline: float) -> Said:
        self.asked.append((to, method.name))
        if self.refusals:
            raise self.refusals.pop(0)
        return request

    async def answers(self, to: int, method: Any, request: Said, _left_s: float | None, send: Any) -> None:
        assert self.holding.bytes == 0, "what has been sent is not held, however long the answers last"
        self.asked.append((to, method.name))
        await send(request)
        if self.refusals:
            raise self.refusals.pop(0)

    async def converse(self, to: int, method: Any, requests: AsyncIterator[Any], _left_s: Any, send: Any) -> None:
        self.asked.append((to, method.name))
        async for request in requests:
            await send(NOTHING if isinstance(request, RefusedBatch) else request)

    async def cancel(self, to: int = ANY, partition: int = 0, left_s: float = DEADLINE_S, topic: str = "t") -> Said:
        request = said(pb.CancelScheduledRequest(topic=topic, partition=partition))
        deadline = asyncio.get_running_loop().time() + left_s
        return await self.routing.ask(to, METHODS["CancelScheduled"], request, deadline)


@asynccontextmanager
async def playing(**how: int) -> AsyncIterator[Played]:
    made = Played(**how)
    async with asyncio.timeout(DEADLINE_S * 2):
        yield made
    assert made.holding.bytes == 0, "what was held is free"


PLACES = {
    "Produce": pb.ProduceHeader(topic="t", partition=3),
    "Fetch": pb.FetchRequest(topic="t", partition=3),
    "Subscribe": pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=[pb.SubscribePartition(topic="t", partition=3)])),
    "WatchOffsets": pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic="t", partition=3)]),
    "ListOffsets": pb.ListOffsetsRequest(topic="t", partitions=[3, 4]),
    "Work": pb.WorkRequest(sessions=[pb.SessionRequest(session=1, open=pb.WorkOpen(topic="t", partition=3))]),
    "CancelScheduled": pb.CancelScheduledRequest(topic="t", partition=3),
    "Lead": pb.LeadRequest(topic="t", partition=3),
    "MoveCursors": pb.MoveCursorsRequest(positions=[pb.CursorPosition(topic="t", partition=3)]),
    "Purge": pb.PurgeRequest(positions=[pb.CursorPosition(topic="t", partition=3)]),
    "DeleteGroup": pb.DeleteGroupRequest(partitions=[pb.TopicPartition(topic="t", partition=3)]),
    "DescribeQueue": pb.DescribeQueueRequest(topic="t", partitions=[3]),
    "SweepQueue": pb.SweepQueueRequest(topic="t", partitions=[3]),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_request_to_a_leader_names_its_partition(name: str) -> None:
    method = METHODS[name]
    message = PLACES.get(name)
    if message is None:
        assert place_of(method, said(method.request())) is None
        return
    assert place_of(method, said(message, b"payload" if name == "Produce" else b"")) == ("t", 3)
    if name != "Produce":
        empty = place_of(method, said(method.request()))
        assert empty in (None, ("", 0)), "a request that names none is no fault"


@virtual_time
async def test_a_call_goes_to_the_broker_that_is_named_while_that_can_be_reached() -> None:
    async with playing() as made:
        assert await made.cancel(to=3)
        assert made.asked == [(3, "CancelScheduled")]
        assert made.looks == 0, "nobody is asked who leads"


@virtual_time
async def test_a_call_goes_to_the_leader_if_none_is_named_or_that_one_is_gone() -> None:
    async with playing() as made:
        made.leader, made.reached = 2, {1, 2}
        for to in (ANY, GONE, 3):
            await made.cancel(to=to)
        assert made.asked == [(2, "CancelScheduled")] * 3
        assert made.routing.to(0) == ANY  # type: ignore[arg-type]
        assert made.routing.to(-5) == GONE  # type: ignore[arg-type]


@pytest.mark.parametrize("leader", [1, None])
@virtual_time
async def test_rules_are_read_once_a_call_about_them_is_answered(leader: int | None) -> None:
    """Also where the coordination service is away for this proxy: what was asked for is done."""
    async with playing() as made:
        made.leader = leader
        for name in ("Acls", "AlterAcls", "Revoke", "AlterTokens", "AlterQuotas", "DeleteTopic"):
            request = said(METHODS[name].request())
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            made.asked.clear()
            assert await made.routing.ask(2, METHODS[name], request, deadline) == request
            assert made.asked == [(2, name)] + [(9, "rules")] * (name != "DeleteTopic")


@virtual_time
async def test_a_stream_of_a_member_that_names_a_broker_is_not_led_elsewhere_behind_the_members_back() -> None:
    """The member opens another at the next leader. If this one came there after that, it would end the newer one."""
    opening = said(pb.WorkRequest(sessions=[pb.SessionRequest(session=1, open=pb.WorkOpen(topic="t"))]))

    async def requests() -> AsyncIterator[Said | RefusedBatch]:
        yield opening

    async with playing() as made:
        made.leader, made.reached = 2, {1, 2}
        heard: list[Said] = []

        async def send(answer: Said) -> None:
            heard.append(answer)

        with pytest.raises(Unreachable):
            await made.routing.converse(GONE, METHODS["Work"], requests(), None, send)
        await made.routing.converse(3, METHODS["Work"], requests(), None, send)  # where it is told that nobody is there
        await made.routing.converse(ANY, METHODS["Work"], requests(), None, send)
        assert made.asked == [(3, "Work"), (2, "Work")]
        assert heard == [opening, opening]


@virtual_time
async def test_a_call_about_no_partition_goes_to_any_broker_but_not_if_it_names_one_that_is_gone() -> None:
    async with playing() as made:
        made.reached = {2}
        later = asyncio.get_running_loop().time() + DEADLINE_S
        await made.routing.ask(ANY, METHODS["Metadata"], NOTHING, later)
        await made.routing.ask(3, METHODS["Observe"], NOTHING, later)  # which says itself why not
        assert made.asked == [(2, "Metadata"), (3, "Observe")]
        with pytest.raises(Unreachable, match="metadata"):
            await made.routing.ask(GONE, METHODS["Observe"], NOTHING, later)
        made.reached = set()
        with pytest.raises(Unreachable, match="reaches no broker"):
            await made.routing.ask(ANY, METHODS["Metadata"], NOTHING, later)


@virtual_time
async def test_a_topic_or_partition_that_is_not_there_is_for_another_broker_to_refuse() -> None:
    async with playing() as made:
        await made.cancel(partition=7)
        await made.cancel(partition=-1)
        await made.cancel(topic="other")
        assert len(made.asked) == 3


@pytest.mark.parametrize("leader", [0, None, 3])
@virtual_time
async def test_a_request_is_held_until_there_is_a_leader(leader: int | None) -> None:
    """There is none, nobody can say, or it is dead and its session not yet over."""
    async with playing() as made:
        made.leader, made.reached = leader, {1, 2}
        held = [asyncio.create_task(made.cancel(to=3)) for _ in range(20)]
        await asyncio.sleep(LOOK_AGAIN_S / 2)
        assert made.holding.bytes >= 20 * REQUEST_BYTES
        looks = made.looks
        await asyncio.sleep(LOOK_AGAIN_S)
        assert looks < made.looks < looks + 20, "they share the looks"
        assert made.asked == []
        made.leader = 2
        await asyncio.gather(*held)
        assert made.asked == [(2, "CancelScheduled")] * 20


@virtual_time
async def test_a_request_that_a_former_leader_has_refused_is_held_and_asked_of_the_next() -> None:
    async with playing() as made:
        made.leader = 2
        made.refusals = [NotLeader("no more"), NotLeader("not yet")]
        await made.cancel(to=1)
        assert made.asked == [(1, "CancelScheduled"), (2, "CancelScheduled"), (2, "CancelScheduled")]
        made.refusals = [Unreachable("it may have been heard")]
        with pytest.raises(Unreachable, match="heard"):
            await made.cancel(to=1)


@virtual_time
async def test_a_request_for_answers_is_held_until_there_is_a_leader() -> None:
    async with playing() as made:
        made.leader = 0
        request = said(pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic="t", partition=1)]))
        held = asyncio.create_task(made.routing.answers(GONE, METHODS["WatchOffsets"], request, None, _drop))
        await asyncio.sleep(1)
        assert made.holding.bytes > 0
        made.leader = 3
        await held
        assert made.asked == [(3, "WatchOffsets")]


@virtual_time
async def test_answers_that_have_begun_are_not_asked_for_again() -> None:
    async with playing() as made:
        made.refusals = [NotLeader("no more")]
        sent = []

        async def send(answer: Said) -> None:
            sent.append(answer)

        request = said(pb.FetchRequest(topic="t"))
        with pytest.raises(NotLeader):
            await made.routing.answers(1, METHODS["Fetch"], request, DEADLINE_S, send)
        assert sent == [request]


@virtual_time
async def test_beyond_the_time_of_the_request_it_is_refused() -> None:
    async with playing() as made:
        made.leader = 0
        with pytest.raises(NotLeader, match="t-0 has no leader"):
            await made.cancel(left_s=5 * LOOK_AGAIN_S)
        made.leader = 1
        made.refusals = [NotLeader("its own words")] * 1_000
        with pytest.raises(NotLeader, match="its own words"):
            await made.cancel(left_s=5 * LOOK_AGAIN_S)


@virtual_time
async def test_beyond_the_bound_nothing_more_is_held() -> None:
    async with playing(hold_max=2 * REQUEST_BYTES) as made:
        made.leader = 0
        held = asyncio.create_task(made.cancel())
        await asyncio.sleep(1)
        assert made.holding.bytes > 0
        with pytest.raises(NotLeader):
            await made.cancel()
        made.leader = 1
        await held


class Saying:
    """What a client says on a stream, one after another: `said` of it has been read."""

    def __init__(self, *requests: Any) -> None:
        self.said = 0
        self._requests = requests

    async def __aiter__(self) -> AsyncIterator[Any]:
        for request in self._requests:
            self.said += 1
            yield request


def _batch(partition: int, timeout_ms: int = 30_000) -> Said:
    return said(pb.ProduceHeader(topic="t", partition=partition, timeout_ms=timeout_ms), b"payload")


@virtual_time
async def test_a_stream_is_held_with_its_first_batch_and_its_order_stays() -> None:
    async with playing() as made:
        made.leader, made.reached = 0, {1, 2}
        saying, heard = Saying(*(_batch(number) for number in range(5))), list[Said]()

        async def send(answer: Said) -> None:
            heard.append(answer)

        going = asyncio.create_task(made.routing.converse(3, METHODS["Produce"], saying.__aiter__(), None, send))
        await asyncio.sleep(1)
        assert made.holding.bytes > 0
        assert saying.said == 1, "what comes behind it waits at the client"
        made.leader = 2
        await going
        assert made.asked == [(2, "Produce")]
        assert heard == [_batch(number) for number in range(5)]


@virtual_time
async def test_a_batch_is_held_as_long_as_it_says_itself() -> None:
    async with playing() as made:
        made.leader = 0
        saying = Saying(_batch(0, timeout_ms=500))
        with pytest.raises(NotLeader):
            await made.routing.converse(ANY, METHODS["Produce"], saying.__aiter__(), None, _drop)


async def _drop(_answer: Said) -> None:
    pass


@virtual_time
async def test_a_member_of_a_group_has_a_stream_of_its_own() -> None:
    async with playing() as made:
        wanted = [pb.SubscribePartition(topic="t", partition=0)]
        credit = said(pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=1)))
        for named in ({"group": "g"}, {"broadcast": "b"}):
            opening = pb.SubscribeOpen(partitions=wanted, **named)  # type: ignore[arg-type]
            requests = [credit, said(pb.SubscribeRequest(open=opening))]
            heard: list[Said] = []

            async def send(answer: Said, heard: list[Said] = heard) -> None:
                heard.append(answer)

            await made.routing.converse(2, METHODS["Subscribe"], Saying(*requests).__aiter__(), None, send)
            assert heard == requests
        assert made.asked == [(2, "Subscribe")] * 2
