"""Queues for locks, whatever keeps them: one suite for ZooKeeper and for the file, and what only ZooKeeper has."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.coordination.interface import CoordinationEvent
from mq_broker.coordination.locks import LockPlace, distance
from mq_broker.coordination.service import CoordinationService
from mq_protocol.errors import CoordinationUnavailable, LockLost, LockNotAcquired
from tests.coroutines import real_time
from tests.mq_broker.coordination.test_zookeeper import abandon, session
from tests.mq_broker.coordination.wire import MULTI, WAIT_S, Fate, Heard, Opener, Wire, end_session_of, operation_of


async def waiting(place: LockPlace) -> asyncio.Task[int]:
    """A task that waits for its turn, and has begun to."""
    task = asyncio.create_task(place.first(WAIT_S))
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done
    return task


@real_time
async def test_places_come_first_in_the_order_in_which_they_were_taken_and_each_has_a_higher_token(
    opened: Opener,
) -> None:
    async with opened() as service:
        places = [await service.queue_for_lock("nightly") for _ in range(4)]
        tokens = [await places[0].first(WAIT_S)]
        turns = [await waiting(place) for place in places[1:]]
        for n, turn in enumerate(turns):
            assert [each.done() for each in turns] == [True] * n + [False] * (3 - n)
            await places[n].leave()
            async with asyncio.timeout(WAIT_S):
                tokens.append(await turn)
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0


@real_time
async def test_a_place_that_is_given_up_in_the_middle_lets_nobody_pass(opened: Opener) -> None:
    async with opened() as service:
        first, second, third = [await service.queue_for_lock("nightly") for _ in range(3)]
        await first.first(WAIT_S)
        turn = await waiting(third)
        await second.leave()
        done, _ = await asyncio.wait({turn}, timeout=0.3)
        assert not done
        await first.leave()
        async with asyncio.timeout(WAIT_S):
            await turn


@real_time
async def test_who_would_not_wait_is_told_that_the_lock_is_not_free(opened: Opener) -> None:
    async with opened() as service:
        holder = await service.queue_for_lock("nightly")
        await holder.first(0)  # it is free: no wait is needed
        for wait_s in (0, 0.1):
            other = await service.queue_for_lock("nightly")
            with pytest.raises(LockNotAcquired, match="nightly"):
                await other.first(wait_s)
            await other.leave()
        await holder.leave()
        await (await service.queue_for_lock("nightly")).first(0)


@real_time
async def test_tokens_grow_over_lives_of_the_broker_and_an_empty_queue(opened: Opener) -> None:
    tokens = []
    for _ in range(3):
        async with opened() as service:
            for _ in range(2):
                place = await service.queue_for_lock("nightly")
                tokens.append(await place.first(WAIT_S))
                await place.leave()
            left = await service.queue_for_lock("nightly")  # the session ends with the place in it
            tokens.append(await left.first(WAIT_S))
    assert tokens == sorted(set(tokens))


@real_time
async def test_a_holder_is_told_when_its_broker_stops(opened: Opener) -> None:
    async with opened() as service:
        holder, waiter = [await service.queue_for_lock("nightly") for _ in range(2)]
        await holder.first(WAIT_S)
        holding, turn = asyncio.create_task(holder.hold()), await waiting(waiter)
        await service.stop()
        for task in (holding, turn):
            with pytest.raises(LockLost, match="nightly"):
                async with asyncio.timeout(WAIT_S):
                    await task
        with pytest.raises(CoordinationUnavailable):
            await service.queue_for_lock("nightly")


# ------------------------------------------------------------------ ZooKeeper's


async def below(service: CoordinationService, path: str = "locks") -> list[str]:
    return await service._store.children(path) or []


async def lost(place: LockPlace) -> str:
    with pytest.raises(LockLost) as raised:
        async with asyncio.timeout(WAIT_S):
            await place.hold()
    return str(raised.value)


@real_time
async def test_places_of_all_brokers_are_one_queue_and_a_session_that_ends_gives_its_places_up(
    zookeeper: str, root: str
) -> None:
    heard = Heard()
    async with session(zookeeper, root, heard) as one, session(zookeeper, root) as two:
        holder, next_one, last = [await service.queue_for_lock("nightly") for service in (one, two, one)]
        token = await holder.first(WAIT_S)
        turn = await waiting(next_one)
        await asyncio.to_thread(end_session_of, one)
        assert "session" in await lost(holder)
        with pytest.raises(LockLost):
            await last.first(WAIT_S)
        async with asyncio.timeout(WAIT_S):
            assert await turn > token
        await heard.until(CoordinationEvent.CONNECTED)
        again = await one.queue_for_lock("nightly")
        await next_one.leave()
        assert await again.first(WAIT_S) > turn.result()


@real_time
async def test_a_holder_whose_broker_is_cut_off_is_told_before_the_next_one_has_the_lock(
    zookeeper: str, root: str
) -> None:
    async with (
        Wire(zookeeper) as wire,
        session(wire.hosts, root, session_timeout_ms=16_000) as one,  # two thirds of it outlast a stall
        session(zookeeper, root) as two,
    ):
        holder, next_one = [await service.queue_for_lock("nightly") for service in (one, two)]
        token = await holder.first(WAIT_S)
        turn = await waiting(next_one)
        wire.open = False
        await abandon(one)
        assert "does not answer" in await lost(holder)
        async with asyncio.timeout(8):  # half of its session; nothing more is waited for before its client is told
            await holder.leave()
        assert not turn.done()
        with pytest.raises(CoordinationUnavailable):
            await one.queue_for_lock("nightly")
        async with asyncio.timeout(WAIT_S):
            assert await turn > token


@real_time
async def test_a_place_that_was_given_up_while_nobody_answered_goes_once_somebody_does(
    zookeeper: str, root: str
) -> None:
    async with (
        Wire(zookeeper) as wire,
        session(zookeeper, root) as two,
        session(wire.hosts, root) as one,
    ):
        holder, next_one = [await service.queue_for_lock("nightly") for service in (one, two)]
        await holder.first(WAIT_S)
        turn = await waiting(next_one)
        wire.open = False
        await abandon(one)
        leaving = asyncio.create_task(holder.leave())
        done, _ = await asyncio.wait({turn, leaving}, timeout=0.5)
        assert not done
        wire.open = True
        async with asyncio.timeout(WAIT_S):  # and not only after the session
            await turn
            await leaving


@real_time
async def test_a_place_whose_making_was_not_answered_is_one_place(zookeeper: str, root: str) -> None:
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as one, session(zookeeper, root) as two:
        before = await two.queue_for_lock("nightly")
        await before.first(WAIT_S)
        for fate in (Fate.ANSWER_IS_LOST, Fate.REQUEST_IS_LOST):
            already = wire.lost
            wire.fate_of = lambda request, fate=fate: (
                fate if operation_of(request) == MULTI and b"/locks/nightly/" in request else Fate.PASSES
            )  # type: ignore[misc]
            place = await one.queue_for_lock("nightly")
            assert wire.lost == already + 1
            assert len(await below(two, "locks/nightly")) == 2
            await place.leave()
            assert len(await below(two, "locks/nightly")) == 1


@real_time
async def test_the_queue_of_a_lock_that_nobody_wants_is_removed(zookeeper: str, root: str) -> None:
    async with session(zookeeper, root) as service:
        places = [await service.queue_for_lock("nightly") for _ in range(2)]
        await places[0].leave()
        assert await below(service) == ["nightly"]
        await places[1].leave()
        assert await below(service) == []


def test_the_order_of_places_outlives_the_end_of_zookeepers_numbers() -> None:
    assert [distance(number, 5) for number in (3, 5, 9)] == [-2, 0, 4]
    assert distance(2**31 - 1, -(2**31)) == -1  # what comes behind the highest is the lowest
