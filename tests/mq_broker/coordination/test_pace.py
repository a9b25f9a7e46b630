"""Questions to ZooKeeper that would follow one another closely are asked together."""

from __future__ import annotations

import asyncio

from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.pace import AT_ONCE, PERIOD_S, Pace
from tests.mq_broker.coordination.test_zookeeper import session
from tests.mq_broker.coordination.wire import Fate, Wire, id_of, operation_of, state_of

SYNC, SET_DATA, MULTI = 9, 5, 14


def test_a_few_questions_go_at_once_and_then_one_in_each_period() -> None:
    pace = Pace(period_s=1.0, at_once=3)
    assert [pace.delay_s(10.0) for _ in range(5)] == [0, 0, 0, 1.0, 1.0]
    assert [pace.delay_s(11.0), pace.delay_s(11.25)] == [0, 0.75]
    assert [pace.delay_s(12.0), pace.delay_s(12.0)] == [0, 1.0]
    assert [pace.delay_s(99.0) for _ in range(4)] == [0, 0, 0, 1.0], "rest is saved up to that many, not more"


def test_nodes_that_are_read_and_written_one_after_another_share_questions(zookeeper: str, root: str) -> None:
    partitions = 100
    wide = TopicSpec("wide", id_of("w"), ((1,),) * partitions)
    states = tuple(state_of(epoch=number) for number in range(partitions))

    async def main() -> None:
        asked: list[int] = []

        def passes(request: bytes) -> Fate:
            asked.append(operation_of(request))
            return Fate.PASSES

        async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
            await service.create_topic(wide, states)
            wire.fate_of = passes

            async def claim(number: int) -> object:
                await asyncio.sleep(number * 0.005)
                found = await service.read_state(id_of("w"), number)
                assert found == (0, states[number])
                return await service.write_state(id_of("w"), number, 0, states[number])

            loop = asyncio.get_running_loop()
            began = loop.time()
            await asyncio.gather(*map(claim, range(partitions)))
            questions = AT_ONCE + (loop.time() - began) / PERIOD_S + 1
            assert asked.count(SYNC) <= questions
            assert asked.count(MULTI) + asked.count(SET_DATA) <= questions
            assert asked.count(SYNC) < partitions / 2, "else nothing was shown"

    asyncio.run(main())
