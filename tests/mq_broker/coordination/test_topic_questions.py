"""What the making of a topic asks ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.coordination.interface import TopicSpec
from mq_protocol.errors import TopicExists
from tests.mq_broker.coordination.test_zookeeper import session
from tests.mq_broker.coordination.wire import GET_DATA, MULTI, SET_DATA, SYNC, Fate, Wire, id_of, operation_of, state_of

pytestmark = pytest.mark.cluster


def test_a_topic_is_made_with_two_questions_unless_somebody_else_has_changed_one_meanwhile(
    zookeeper: str, root: str
) -> None:
    async def main() -> None:
        asked: list[int] = []

        def passes(request: bytes) -> Fate:
            if operation_of(request) in (MULTI, SET_DATA, GET_DATA, SYNC):
                asked.append(operation_of(request))
            return Fate.PASSES

        def topic(name: str) -> TopicSpec:
            return TopicSpec(name, id_of(name), ((1,),))

        async with Wire(zookeeper) as wire, session(wire.hosts, root) as service, session(zookeeper, root) as other:
            version = (await other.topic_changes(-1)).version
            assert await service.topics() == {}
            wire.fate_of = passes
            await service.create_topic(topic("a"), (state_of(),))
            await service.create_topic(topic("b"), (state_of(),))
            assert asked == [MULTI] * 4
            await other.create_topic(topic("c"), (state_of(),))
            asked.clear()
            await service.create_topic(topic("d"), (state_of(),))
            assert asked == [MULTI, MULTI, GET_DATA, MULTI]
            with pytest.raises(TopicExists):
                await service.create_topic(TopicSpec("c", id_of("another"), ((1,),)), (state_of(),))
            assert await service.read_state(id_of("another"), 0) is None, "nothing of it is left"
            await service.create_topic(topic("e"), (state_of(),))
            changes = await other.topic_changes(version)
            assert (changes.whole, list(changes.present)) == (False, ["a", "b", "c", "d", "e"]), "the note is true"

    asyncio.run(main())
