"""When a move may end and who is handed the leadership, decided from what a leader sees. The cluster is a stand-in that
says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mq_broker.broker.administration import moves
from mq_broker.broker.administration.moves import TRANSFER_MS, TRANSFERS_MAX, Moves
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import Move, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, NotEnoughReplicas, UnknownTopic
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.virtual.world import in_virtual_time

NOW_MS = 5_000


@dataclass
class Replica:
    isr: tuple[int, ...]
    leader: int = 1
    leader_epoch: int = 1


class Part:
    """A partition that broker 1 leads, and whom it was told to hand over to."""

    def __init__(self, spec: TopicSpec, number: int, *isr: int) -> None:
        self.topic = Topic.of(spec)
        self.number = number
        self.name = f"{spec.name}-{number}"
        self.serving = True
        self.replica = Replica(isr)
        self.closed = False
        self.handed_to: list[tuple[int, int]] = []

    def transfer(self, to: int, deadline_ms: int) -> None:
        self.handed_to.append((to, deadline_ms))


class Here:
    """Broker 1 of brokers 1 to 4, in racks of their own: its topics, the partitions it leads and what the nodes of
    others say."""

    def __init__(self, *specs: TopicSpec) -> None:
        self.broker = 1
        self.brokers = dict.fromkeys((1, 2, 3, 4))
        self.racks = dict.fromkeys(self.brokers, "")
        self.specs = {spec.name: spec for spec in specs}
        self.parts: dict[tuple[str, int], Part] = {}
        self.states: dict[tuple[str, int], NodeState] = {}
        self.refuses = False
        self.edits = 0
        self.before_edit: Callable[[], None] = lambda: None
        here: Any = self
        self.moves = Moves(here, here, here, here)

    def leads(self, name: str, number: int, *isr: int) -> Part:
        part = self.parts[name, number] = Part(self.specs[name], number, *isr)
        return part

    async def carries_on(self, looks: int = 1) -> None:
        """It has looked so often at what is on its way."""
        for _ in range(looks):
            await asyncio.sleep(min(await self.moves.look(), moves.LOOK_S))

    # ---- the shell

    def hosted(self, topic: Any, number: int) -> Any:
        return self.parts.get((topic.spec.name, number))

    def leader(self, topic: Any, number: int) -> Any:
        return self.parts[topic.spec.name, number]

    def now_ms(self) -> int:
        return NOW_MS

    # ---- the topics

    def all(self) -> list[Any]:
        return [Topic.of(spec) for _, spec in sorted(self.specs.items())]

    def find(self, name: str) -> Any:
        return next((topic for topic in self.all() if topic.spec.name == name), None)

    async def get(self, name: str) -> Any:
        if name not in self.specs:
            raise UnknownTopic("none")
        return self.find(name)

    async def refresh(self) -> None:
        pass

    async def edit(self, name: str, change: Callable[[TopicSpec], TopicSpec]) -> None:
        self.edits += 1
        self.before_edit()
        if self.refuses:
            raise CoordinationUnavailable("away")
        self.specs[name] = change(self.specs[name])

    # ---- the administration

    async def state(self, topic: Any, number: int) -> NodeState | None:
        return self.states.get((topic.spec.name, number))


def spec(name: str = "t", *assignment: tuple[int, ...], **fields: Any) -> TopicSpec:
    return TopicSpec(name, f"id-of-{name}", assignment or ((1, 2, 3),), **fields)


def decided(move: Move, *isr: int, live: tuple[int, ...] = (1, 2, 3, 4), looks: int = 1) -> tuple[bool, list[int]]:
    """Whether the move has ended once the leader has looked so often, and to whom it handed over."""
    found: list[tuple[bool, list[int]]] = []

    async def main() -> None:
        here = Here(spec(moving={0: move}))
        here.brokers = dict.fromkeys(live)
        part = here.leads("t", 0, *isr)
        await here.carries_on(looks)
        assert {deadline for _, deadline in part.handed_to} <= {NOW_MS + TRANSFER_MS}
        found.append((not here.specs["t"].moving, [to for to, _ in part.handed_to]))

    in_virtual_time(main())
    return found[0]


def test_a_leader_that_is_the_first_of_the_target_ends_the_move_once_all_have_arrived() -> None:
    assert decided(Move((1, 3), (1, 2)), 1, 2) == (False, [])
    assert decided(Move((1, 3), (1, 2)), 1, 2, 3) == (True, [])


def test_a_leader_that_is_to_go_hands_over_to_the_first_of_the_target_as_soon_as_that_is_in_sync() -> None:
    away = Move((3, 4), (1, 2))
    assert decided(away, 1, 2, 4) == (False, []), "another of the target is not enough while the move is not complete"
    assert decided(away, 1, 2, 3) == (False, [3])
    assert decided(away, 1, 2, 3, live=(1, 2, 4)) == (False, []), (
        "one that is in sync by name and gone is handed nothing"
    )


def test_a_leader_that_is_to_go_hands_over_to_a_live_one_of_the_target_once_it_has_arrived() -> None:
    away = Move((3, 4), (1, 3))
    assert decided(away, 1, 3, 4, live=(1, 4)) == (False, [4])
    assert decided(away, 1, 3, 4, live=(1, 2)) == (False, [])


def test_a_leader_of_the_target_hands_over_to_its_first_and_stays_where_that_is_gone() -> None:
    order = Move((3, 1), (1, 2))
    assert decided(order, 1, 2) == (False, [])
    assert decided(order, 1, 2, 3) == (False, [3])
    back = Move((3, 1), (1, 3))
    assert decided(back, 1, 3, live=(1, 2)) == (True, [])
    assert decided(back, 1) == (True, []), "its first was not in sync before, either"


def test_a_leader_is_given_time_to_hand_over_before_it_tries_again() -> None:
    assert decided(Move((3, 1), (1, 2)), 1, 2, 3, looks=10) == (False, [3])


# ---------------------------------------------------------------- asked for


def test_a_leader_of_the_target_that_could_not_hand_over_often_enough_stays_and_one_that_is_to_go_tries_for_ever() -> (
    None
):
    assert decided(Move((3, 1), (1, 2)), 1, 2, 3, looks=1_000) == (True, [3] * TRANSFERS_MAX)
    ended, handed_to = decided(Move((3, 4), (1, 2)), 1, 2, 3, looks=1_000)
    assert not ended
    assert len(handed_to) > TRANSFERS_MAX


@virtual_time
async def test_another_move_of_the_partition_has_all_its_attempts_again() -> None:
    never = Move((1, 4), (1, 2))
    here = Here(spec("t", (1, 3), (1, 2, 4), moving={0: Move((3, 1), (1, 3)), 1: never}))
    part = here.leads("t", 0, 1, 3)
    for times in (1, 2):
        await here.carries_on(looks=1_000)
        assert sorted(here.specs["t"].moving) == [1]
        assert len(part.handed_to) == times * TRANSFERS_MAX
        here.specs["t"] = spec("t", (1, 3), (1, 2, 4), moving={0: Move((3, 1), (1,)), 1: never})


@virtual_time
async def test_what_has_arrived_is_written_and_what_has_not_stays_on_its_way() -> None:
    move = Move((1, 3), (1, 2))
    here = Here(spec("t", *[(1, 2, 3)] * 4, moving=dict.fromkeys(range(4), move)))
    here.leads("t", 0, 1, 2, 3)
    here.leads("t", 1, 1, 2)
    here.leads("t", 2, 1, 2, 3).serving = False
    here.refuses = True
    await here.carries_on()
    assert len(here.specs["t"].moving) == 4, "the coordination service is away: later"
    here.refuses = False
    await here.carries_on()
    assert here.specs["t"].assignment == ((1, 3), (1, 2, 3), (1, 2, 3), (1, 2, 3))
    assert sorted(here.specs["t"].moving) == [1, 2, 3]
    edits = here.edits
    await here.carries_on(looks=10)
    assert here.edits == edits, "nothing has arrived"


@virtual_time
async def test_what_has_arrived_is_not_written_into_a_topic_that_was_made_again_meanwhile() -> None:
    here = Here(spec("t", (1, 2, 3), moving={0: Move((1, 3), (1, 2))}))
    here.leads("t", 0, 1, 2, 3)
    here.before_edit = lambda: here.specs.update(t=replace(here.specs["t"], topic_id="made again"))
    await here.carries_on()
    assert here.edits
    assert sorted(here.specs["t"].moving) == [0]


@virtual_time
async def test_leadership_is_handed_only_to_a_live_broker_that_is_in_sync() -> None:
    here = Here(spec("t", (1, 2, 3)))
    part = here.leads("t", 0, 1, 2)

    async def lead(to: int) -> None:
        request = pb.LeadRequest(topic="t", partition=0, broker=to)
        await here.moves.lead(request, asyncio.get_running_loop().time() + 60)

    with pytest.raises(InvalidRequest, match="broker 4 holds no replica"):
        await lead(4)
    with pytest.raises(NotEnoughReplicas, match="broker 3 is not in sync"):
        await lead(3)
    part.replica.isr = (1, 2, 3)
    del here.brokers[3]
    with pytest.raises(NotEnoughReplicas, match="broker 3 is not in sync"):
        await lead(3)
    await lead(1)
    assert part.handed_to == [], "it leads already, and the others were refused before anything was begun"
    with pytest.raises(NotEnoughReplicas, match="broker 2 does not lead t-0 within"):
        await lead(2)


def led_by(leader: int | None, *isr: int) -> NodeState:
    name = LeaderName(leader, 1) if leader else None
    return NodeState(name, 1, tuple((broker, "log") for broker in isr), 0, "")


@virtual_time
async def test_what_is_on_its_way_is_told_with_who_is_in_sync_and_who_leads() -> None:
    here = Here(spec("t", (1, 2), (1, 2, 3), (2, 3), moving={1: Move((2, 3), (1, 2)), 2: Move((2,), (2, 3))}))
    here.states["t", 1] = led_by(2, 1, 2)
    told = await here.moves.moves(pb.MovesRequest(), 0)
    first, second = told.moves
    assert (first.topic, first.partition, list(first.origin), list(first.target)) == ("t", 1, [1, 2], [2, 3])
    assert (list(first.isr), first.leader) == ([1, 2], 2)
    assert (second.partition, list(second.isr), second.leader) == (2, [], 0)
    assert told.held == 0
    here.states["t", 1] = led_by(None, 1)
    assert (await here.moves.moves(pb.MovesRequest(), 0)).moves[0].leader == 0


@virtual_time
async def test_a_broker_is_needed_by_what_is_on_it_and_then_by_what_names_it_still() -> None:
    here = Here(spec("t", (1, 2), (2, 3), (1, 3)), spec("u", (3, 1)))

    async def held(broker: int) -> int:
        return (await here.moves.moves(pb.MovesRequest(broker=broker), 0)).held

    for name, number in (("t", 0), ("t", 1), ("t", 2), ("u", 0)):
        here.states[name, number] = led_by(1, 1, 3)
    assert [await held(broker) for broker in (1, 2, 3, 4)] == [3, 2, 3, 0]
    here.states["t", 1] = led_by(2, 2, 4)
    assert await held(4) == 1
    del here.states["u", 0]
    assert await held(4) == 2, "what cannot be read may name it"


def plan(here: Here, **fields: Any) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    told = asyncio.run(here.moves.plan_moves(pb.PlanMovesRequest(**fields), 0))
    return {(move.topic, move.partition): (list(move.origin), list(move.target)) for move in told.moves}


def test_a_broker_is_drained_of_all_that_it_holds() -> None:
    here = Here(spec("t", (1, 2), (2, 3), (3, 1)))
    planned = plan(here, drain=2)
    assert sorted(planned) == [("t", 0), ("t", 1)]
    assert all(2 not in target for _, target in planned.values())
    assert planned["t", 0][0] == [1, 2]


def test_what_is_even_stays_and_is_led_by_its_first_replica_if_that_could() -> None:
    here = Here(spec("t", (1, 2), (2, 3), (3, 4), (4, 1)))
    assert plan(here) == {}
    for number, state in enumerate((led_by(2, 1, 2), led_by(2, 2, 3), led_by(4, 4), led_by(None, 4, 1))):
        here.states["t", number] = state
    assert plan(here) == {("t", 0): ([1, 2], [1, 2])}, (
        "1 is led as it should be, 2's first is not in sync, 3 has no leader"
    )
    told = asyncio.run(here.moves.plan_moves(pb.PlanMovesRequest(), 0))
    assert [(move.partition, move.leader) for move in told.moves] == [(0, 2)], "it says who leads now"
    here.brokers = dict.fromkeys((2, 3, 4))
    assert plan(here) == {}, "nor could one that is gone"


def test_the_coordinators_topic_is_to_have_three_replicas_where_there_are_brokers_for_them() -> None:
    two = spec(TRANSACTIONS_TOPIC, (1, 2), (2, 3), (3, 4), (4, 1))
    assert all(len(target) == 3 for _, target in plan(Here(two)).values())
    assert len(plan(Here(two))) == 4
    few = Here(two)
    few.racks = dict.fromkeys((1, 2), "")
    few.specs[TRANSACTIONS_TOPIC] = spec(TRANSACTIONS_TOPIC, (1, 2), (2, 1))
    assert plan(few) == {}
    whole = spec(TRANSACTIONS_TOPIC, (1, 2, 3), (2, 3, 4), (3, 4, 1), (4, 1, 2))
    assert plan(Here(whole)) == {}


def test_each_partition_of_the_coordinators_topic_is_to_have_three_replicas_and_those_with_more_keep_them() -> None:
    some = spec(TRANSACTIONS_TOPIC, (1, 2, 3), (2, 3), (3, 4, 1), (4, 1, 2))
    assert [len(target) for _, target in plan(Here(some)).values()] == [3]
    more = spec(TRANSACTIONS_TOPIC, (1, 2, 3, 4), (2, 3, 4), (3, 4, 1), (4, 1, 2))
    assert all(len(target) == len(origin) for origin, target in plan(Here(more)).values())


def test_a_partition_that_moves_anyway_is_not_led_by_its_first_replica_before() -> None:
    here = Here(spec(TRANSACTIONS_TOPIC, (1, 2), (2, 3), (3, 4), (4, 1)))
    here.states[TRANSACTIONS_TOPIC, 0] = led_by(2, 1, 2)
    assert len(plan(here)[TRANSACTIONS_TOPIC, 0][1]) == 3
