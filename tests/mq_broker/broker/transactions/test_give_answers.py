"""Which key is given, by whom it is written, and what is noted of it. Partitions and brokers are stand-ins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.transactions.giving import Giving
from mq_broker.broker.transactions.requests import key_to_wire, listed_name
from mq_broker.core.entries import Give, TransactionKey
from mq_broker.core.messages import Done
from mq_broker.rpc.callers import note_asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotEnoughReplicas, UnknownTransaction
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.mq_broker.broker.transactions.worlds import KEY, OTHER, World, known, run, within

OF_ANOTHER_SINK = TransactionKey(KEY.query_id, "u")
OLD, NEW = "User:etl", "User:etl-2"


class Asking:
    """Who asks: it may do everything, and what the audit log is told of it is noted."""

    text = "User:admin"

    def __init__(self) -> None:
        self.noted: list[tuple[object, ...]] = []
        stand_in: Any = self
        note_asker(stand_in)

    def may(self, *_: object) -> bool:
        return True

    def note_allowed(self, *noted: object) -> None:
        self.noted.append(noted)


def gives(world: World) -> Giving:
    world.coordinator.machine.transactions.update({key: known(4, owner=OLD) for key in (KEY, OTHER, OF_ANOTHER_SINK)})
    stand_in: Any = world
    return Giving(stand_in, world.transactions)


def request(**fields: Any) -> pb.GiveTransactionRequest:
    return pb.GiveTransactionRequest(**{"query": KEY.query_id, "sink": KEY.sink, "owner": NEW, **fields})


async def give(ours: Giving, **fields: Any) -> pb.GiveTransactionResponse:
    return await ours.give_transaction(request(**fields), asyncio.get_running_loop().time() + 5)


def test_a_key_is_found_by_any_of_its_names_for_its_sink_and_only_where_it_is_coordinated() -> None:
    """One of another sink is another key; no name means none; and a former leader may know what is no longer so."""

    async def scenario(world: World) -> None:
        ours = gives(world)
        for query, sink, found in (
            ("query", "t", [KEY]),
            (listed_name("query"), "t", [KEY]),
            ("query:u", "u", [OF_ANOTHER_SINK]),
            ("query", "v", []),
            ("", "t", []),
            ("nobody", "t", []),
        ):
            assert await ours._keys(query, sink) == found, (query, sink)
        world.coordinator.serving = False
        assert await ours._keys("query", "t") == []
        assert not (await give(ours)).known
        assert world.coordinator.asked == []

    run(scenario)


def test_a_key_is_given_where_it_is_coordinated_and_that_is_noted() -> None:
    async def scenario(world: World) -> None:
        asking, ours = Asking(), gives(world)
        world.coordinator.answer = Done(9, former=OLD)
        answer = await give(ours)
        assert (answer.known, answer.former) == (True, OLD)
        assert world.coordinator.asked == [Give(KEY, NEW)]
        assert within(world.coordinator.deadlines, 5)
        [noted] = asking.noted
        assert noted[2:] == (listed_name("query"), f"{OLD!r} -> {NEW!r}")

    run(scenario)


def test_a_give_of_what_its_coordinator_does_not_know_is_not_noted_as_done() -> None:
    """It was forgotten meanwhile, or the coordinator has moved and this broker does not know yet."""

    async def scenario(world: World) -> None:
        asking, ours = Asking(), gives(world)
        world.coordinator.refuse = [UnknownTransaction("no such key")]
        assert not (await give(ours)).known
        assert asking.noted == []
        world.coordinator.refuse = [NotEnoughReplicas("later")]
        with pytest.raises(NotEnoughReplicas):
            await give(ours)
        assert asking.noted == []

    run(scenario)


def test_another_broker_that_coordinates_is_asked_so_that_its_answer_comes_in_time() -> None:
    async def scenario(world: World) -> None:
        asking, ours = Asking(), gives(world)
        world.elsewhere[TRANSACTIONS_TOPIC, world.coordinator.number] = 2
        world.answers["GiveKey"] = pb.GiveTransactionResponse(known=True, former=OLD)
        assert (await give(ours, timeout_ms=2_000)).former == OLD
        [(address, method, asked)] = world.calls
        assert (address, method, asked.key, asked.owner) == ("broker-2", "GiveKey", key_to_wire(KEY), NEW)
        assert 0 < asked.timeout_ms <= 1_800, "a part of what there is: the answer has a way to go"
        assert within(world.call_deadlines, 2)
        assert len(asking.noted) == 1

    run(scenario)


def test_the_coordinator_takes_no_longer_than_it_was_given() -> None:
    async def scenario(world: World) -> None:
        ours = gives(world)
        asked = pb.GiveKeyRequest(key=key_to_wire(KEY), owner=NEW, timeout_ms=1_000)
        assert (await ours.give_key(asked, asyncio.get_running_loop().time() + 60)).known
        assert within(world.coordinator.deadlines, 1)

    run(scenario)
