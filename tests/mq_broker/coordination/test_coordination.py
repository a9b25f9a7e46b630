"""What holds of coordination whatever keeps it: one suite for ZooKeeper and for the file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.coordination.file import FileStore
from mq_broker.coordination.interface import (
    BrokerRegistration,
    CoordinationEvent,
    Move,
    NewTopic,
    TopicChanges,
    TopicSpec,
)
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, InvalidTopicName, TopicExists, UnknownTopic
from tests.coroutines import real_time
from tests.mq_broker.coordination.wire import Heard, Opener, id_of, state_of


@asynccontextmanager
async def opened_beside(opened: Opener) -> AsyncIterator[CoordinationService]:
    """Another broker's, where there can be one: a file is one broker's."""
    try:
        async with opened() as service:
            yield service
    except InvalidRequest:
        yield CoordinationService(FileStore(Path("unused")))


ORDERS = TopicSpec("orders", id_of("1"), ((1, 2), (2, 1)), schema=b"\x00\xffarrow", settings={"durability": "os"})


@real_time
async def test_cluster_id_is_made_once_and_kept(opened: Opener) -> None:
    async with opened() as service:
        first = await service.cluster_id()
        assert first
        assert await service.cluster_id() == first
    async with opened() as service:
        assert await service.cluster_id() == first


@real_time
async def test_the_secret_of_the_brokers_is_made_once_and_a_single_broker_has_none(opened: Opener) -> None:
    async with opened() as service, opened_beside(opened) as other:
        first, second = await asyncio.gather(service.peer_secret(), other.peer_secret())
        assert first == second
        if service.condition == "file":
            assert first is None
            return
        assert first is not None
        assert (len(first), len(set(first)) > 8) == (32, True)
    async with opened() as service:
        assert await service.peer_secret() == first


@real_time
async def test_every_life_of_a_broker_has_a_higher_number(opened: Opener) -> None:
    async with opened() as service:
        first = await service.begin_life(1)
        second = await service.begin_life(1)
        assert 0 < first < second
        other = await service.begin_life(2)
    async with opened() as service:
        assert await service.begin_life(1, above=second) > second
        assert await service.begin_life(1, above=40) > 40
        assert await service.begin_life(2) > other


@real_time
async def test_the_stamp_of_a_directory_outlives_the_session_where_it_is_kept_elsewhere(opened: Opener) -> None:
    async with opened() as service:
        none = await service.known_stamp(1)
        assert none in (0, None)
        await service.keep_stamp(1, 4)
        await service.keep_stamp(1, 5)
    async with opened() as service:
        assert await service.known_stamp(1) == (5 if none == 0 else None)
        assert await service.known_stamp(2) == none


@real_time
async def test_a_registration_is_seen_and_ends_with_the_session(opened: Opener) -> None:
    heard = Heard()
    async with opened(heard) as service:
        assert await service.brokers() == {}
        registration = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400", rack="a")
        await service.register(registration)
        await heard.until(CoordinationEvent.BROKERS_CHANGED)
        assert await service.brokers() == {1: registration}
    async with opened() as service:
        assert await service.brokers() == {}


@real_time
async def test_an_older_life_is_refused_where_a_newer_one_is_registered(opened: Opener) -> None:
    async with opened() as service:
        older = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400")
        newer = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400")
        await service.register(newer)
        with pytest.raises(InvalidRequest, match="broker 1"):
            await service.register(older)
        assert await service.brokers() == {1: newer}


@real_time
async def test_a_topic_comes_back_as_it_was_given(opened: Opener) -> None:
    heard = Heard()
    async with opened(heard) as service:
        assert await service.topics() == {}
        await service.create_topic(ORDERS, (state_of(1), state_of(2)))
        await heard.until(CoordinationEvent.TOPICS_CHANGED)
        assert await service.topics() == {"orders": ORDERS}
        assert await service.read_state(id_of("1"), 0) == (0, state_of(1))
        assert await service.read_state(id_of("1"), 1) == (0, state_of(2))
    async with opened() as service:
        assert await service.topics() == {"orders": ORDERS}
        assert await service.read_state(id_of("1"), 1) == (0, state_of(2))


@real_time
async def test_topics_changed_follows_every_change_after_a_read(opened: Opener) -> None:
    heard = Heard()
    async with opened(heard) as service:
        for number in range(3):
            await service.topics()
            heard.forget()
            await service.create_topic(TopicSpec(f"t{number}", id_of(number), ((1,),)), (state_of(),))
            await heard.until(CoordinationEvent.TOPICS_CHANGED)
        await service.topics()
        heard.forget()
        await service.delete_topic("t1")
        await heard.until(CoordinationEvent.TOPICS_CHANGED)
        assert list(await service.topics()) == ["t0", "t2"]


@real_time
async def test_what_changed_since_a_reading_is_told_and_nothing_else_where_that_is_known(opened: Opener) -> None:
    async with opened() as service:
        specs = {name: TopicSpec(name, id_of(name), ((1,),)) for name in ("a", "b", "c", "d")}
        for name in ("a", "b", "c"):
            await service.create_topic(specs[name], (state_of(),))
        first = await service.topic_changes(-1)
        assert (first.whole, list(first.present)) == (True, ["a", "b", "c"])
        await service.create_topic(specs["d"], (state_of(),))
        await service.delete_topic("b")
        found = await service.read_topic("a")
        assert found is not None
        altered = replace(specs["a"], settings={"retention_ms": "5000"})
        await service.update_topic(found[0], altered)
        changes = await service.topic_changes(first.version)
        if changes.whole:
            assert changes.present == {"a": altered, "c": specs["c"], "d": specs["d"]}
        else:
            assert (changes.present, changes.gone) == ({"a": altered, "d": specs["d"]}, ("b",))
            assert await service.topic_changes(changes.version) == TopicChanges(changes.version, False, {})


@real_time
async def test_a_topic_is_made_once(opened: Opener) -> None:
    async with opened() as service:
        outcomes = await asyncio.gather(
            *(
                service.create_topic(TopicSpec("orders", id_of(n), ((1,),)), (state_of(token=str(n)),))
                for n in range(5)
            ),
            return_exceptions=True,
        )
        assert outcomes.count(None) == 1
        assert all(isinstance(outcome, TopicExists) for outcome in outcomes if outcome is not None)
        winner = id_of(outcomes.index(None))
        assert (await service.topics())["orders"].topic_id == winner
        # Those that came too late have left nothing behind.
        for n in range(5):
            assert (await service.read_state(id_of(n), 0) is not None) == (id_of(n) == winner)


def numbered(count: int, partitions: int = 2) -> list[NewTopic]:
    states = tuple(state_of(number % 3 + 1) for number in range(partitions))
    return [(TopicSpec(f"t{number}", id_of(f"t{number}"), ((1,),) * partitions), states) for number in range(count)]


@real_time
async def test_topics_that_are_made_together_are_each_as_it_was_given(opened: Opener) -> None:
    heard, topics = Heard(), numbered(120)
    topics[:12] = [(replace(spec, schema=bytes(150_000)), states) for spec, states in topics[:12]]
    async with opened(heard) as service:
        await service.topics()
        heard.forget()
        assert await service.create_topics([]) == []
        assert await service.create_topics(topics) == [None] * len(topics)
        await heard.until(CoordinationEvent.TOPICS_CHANGED)
        assert await service.topics() == {spec.name: spec for spec, _ in topics}
        for spec, states in (topics[0], topics[-1]):
            assert [await service.read_state(spec.topic_id, number) for number in (0, 1)] == [
                (0, state) for state in states
            ]


@real_time
async def test_a_topic_of_thousands_of_partitions_is_made_and_deleted_whole(opened: Opener) -> None:
    count = 1_200
    topic = TopicSpec("wide", id_of("wide"), tuple((p % 3 + 1,) for p in range(count)))
    async with opened() as service:
        await service.create_topic(topic, tuple(state_of(p % 3 + 1) for p in range(count)))
        assert (await service.topics())["wide"] == topic
        assert await service.read_state(id_of("wide"), count - 1) == (0, state_of((count - 1) % 3 + 1))
        await service.delete_topic("wide")
        assert await service.topics() == {}
        assert await service.read_state(id_of("wide"), 0) is None
        assert await service.read_state(id_of("wide"), count - 1) is None


@real_time
async def test_a_topic_made_again_never_meets_the_states_of_the_old_one(opened: Opener) -> None:
    async with opened() as service:
        await service.create_topic(TopicSpec("orders", id_of("old"), ((1,),)), (state_of(),))
        assert (await service.write_state(id_of("old"), 0, 0, state_of(epoch=5)))[0] is CasOutcome.DONE
        await service.delete_topic("orders")
        await service.create_topic(TopicSpec("orders", id_of("new"), ((1,),)), (state_of(),))
        assert await service.read_state(id_of("old"), 0) is None
        assert await service.read_state(id_of("new"), 0) == (0, state_of())
        assert await service.write_state(id_of("old"), 0, 1, state_of(epoch=6)) == (CasOutcome.REFUSED, -1)


@real_time
async def test_a_topic_is_changed_only_from_the_version_that_it_has(opened: Opener) -> None:
    moved = replace(ORDERS, assignment=((1, 2, 3), (2, 1)), moving={0: Move((1, 3), (1, 2))})
    async with opened() as service:
        assert await service.read_topic("orders") is None
        await service.create_topic(ORDERS, (state_of(1), state_of(2)))
        assert await service.read_topic("orders") == (0, ORDERS)
        assert await service.update_topic(0, moved) == (CasOutcome.DONE, 1)
        assert await service.update_topic(0, ORDERS) == (CasOutcome.REFUSED, -1)
        assert await service.read_topic("orders") == (1, moved)
        assert await service.topics() == {"orders": moved}
    async with opened() as service:
        assert await service.read_topic("orders") == (1, moved)
        assert await service.update_topic(1, ORDERS) == (CasOutcome.DONE, 2)


@real_time
async def test_partitions_are_added_with_their_states_or_not_at_all(opened: Opener) -> None:
    wider = replace(ORDERS, assignment=(*ORDERS.assignment, (3, 1), (1, 3)))
    async with opened() as service:
        await service.create_topic(ORDERS, (state_of(1), state_of(2)))
        assert await service.update_topic(7, wider, (state_of(3), state_of(1))) == (CasOutcome.REFUSED, -1)
        assert await service.read_state(id_of("1"), 2) is None
        assert await service.update_topic(0, wider, (state_of(3), state_of(1))) == (CasOutcome.DONE, 1)
        assert await service.read_state(id_of("1"), 1) == (0, state_of(2))
        assert await service.read_state(id_of("1"), 2) == (0, state_of(3))
        assert await service.read_state(id_of("1"), 3) == (0, state_of(1))
        await service.delete_topic("orders")
        assert await service.read_state(id_of("1"), 3) is None


@real_time
async def test_deleting_what_is_not_there_says_so(opened: Opener) -> None:
    async with opened() as service:
        with pytest.raises(UnknownTopic, match="'nothing'"):
            await service.delete_topic("nothing")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 256])
@real_time
async def test_a_name_that_is_no_path_component_is_refused(opened: Opener, name: str) -> None:
    async with opened() as service:
        with pytest.raises(InvalidTopicName):
            await service.create_topic(TopicSpec(name, id_of(""), ((1,),)), (state_of(),))


@real_time
async def test_a_state_is_changed_only_from_the_version_that_it_has(opened: Opener) -> None:
    async with opened() as service:
        await service.create_topic(TopicSpec("orders", id_of(""), ((1,),)), (state_of(),))
        assert await service.write_state(id_of(""), 0, 0, state_of(epoch=1)) == (CasOutcome.DONE, 1)
        assert await service.write_state(id_of(""), 0, 0, state_of(epoch=9)) == (CasOutcome.REFUSED, -1)
        assert await service.write_state(id_of(""), 0, 1, state_of(epoch=2)) == (CasOutcome.DONE, 2)
        assert await service.read_state(id_of(""), 0) == (2, state_of(epoch=2))


@real_time
async def test_a_stopped_service_answers_with_an_error_at_once(opened: Opener) -> None:
    async with opened() as service:
        await service.create_topic(TopicSpec("orders", id_of(""), ((1,),)), (state_of(),))
    async with asyncio.timeout(10):
        with pytest.raises(CoordinationUnavailable):
            await service.brokers()
        assert (await service.write_state(id_of(""), 0, 0, state_of()))[0] is CasOutcome.UNKNOWN


@real_time
async def test_one_topic_that_is_refused_keeps_no_other_back(opened: Opener) -> None:
    topics = numbered(5)
    there = TopicSpec("t3", id_of("there"), ((1,),))
    async with opened() as service:
        await service.create_topic(there, (state_of(),))
        answers = await service.create_topics(topics)
        assert [type(answer) for answer in answers] == [*[type(None)] * 3, TopicExists, type(None)]
        expected = {spec.name: spec for spec, _ in topics} | {"t3": there}
        assert await service.topics() == expected
        assert await service.read_state(id_of("t3"), 0) is None, "nothing is left of the one that was refused"
        assert await service.read_state(id_of("t4"), 1) == (0, state_of(2))


@real_time
async def test_a_topic_made_again_is_not_changed_by_who_knew_the_old_one(opened: Opener) -> None:
    async with opened() as service:
        await service.create_topic(ORDERS, (state_of(1), state_of(2)))
        await service.delete_topic("orders")
        again = replace(ORDERS, topic_id=id_of("2"))
        await service.create_topic(again, (state_of(1), state_of(2)))
        assert await service.update_topic(0, replace(ORDERS, settings={})) == (CasOutcome.REFUSED, -1)
        assert await service.read_topic("orders") == (0, again)
        await service.delete_topic("orders")
        assert await service.update_topic(0, again) == (CasOutcome.REFUSED, -1)
