"""Readings of many nodes are few questions, and each finds what it would have found alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kazoo.client import KazooClient

from mq_broker.coordination import documents, kazoo_session
from mq_broker.coordination import zookeeper as zookeeper_store
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.zookeeper import READS_TOGETHER
from mq_protocol.errors import CoordinationUnavailable
from tests.coroutines import real_time
from tests.mq_broker.coordination.test_zookeeper import session
from tests.mq_broker.coordination.wire import GET_DATA, SYNC, Fate, Wire, id_of, operation_of, state_of

MULTI_READ = 22
PARTITIONS = 250
WIDE = TopicSpec("wide", id_of("w"), ((1,),) * PARTITIONS)
STATES = tuple(state_of(epoch=number) for number in range(PARTITIONS))


@real_time
async def test_readings_that_come_together_are_few_questions(zookeeper: str, root: str) -> None:
    asked: list[int] = []

    def passes(request: bytes) -> Fate:
        asked.append(operation_of(request))
        return Fate.PASSES

    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        await service.create_topic(WIDE, STATES)
        with KazooClientOf(zookeeper) as other:
            other.set(f"{root}/states/{id_of('w')}/7", b"not what TritonMQ writes")
            other.set(f"{root}/states/{id_of('w')}/8", None)  # nothing at all, which ZooKeeper tells from no bytes
        wire.fate_of = passes
        wanted = [*range(PARTITIONS), 1_000]
        found = await asyncio.gather(*(service.read_state(id_of("w"), p) for p in wanted), return_exceptions=True)
        assert GET_DATA not in asked
        assert asked.count(MULTI_READ) == -(-len(wanted) // READS_TOGETHER)
        assert all(isinstance(found[p], CoordinationUnavailable) for p in (7, 8)), "they alone"
        assert found[-1] is None
        assert all(found[p] == (0, STATES[p]) for p in range(PARTITIONS) if p not in (7, 8))
        with pytest.raises(CoordinationUnavailable):
            await service.read_state(id_of("w"), 8)
        assert await service.read_state(id_of("w"), 3) == (0, STATES[3])
        assert asked[-1] == GET_DATA, "one alone needs no more than before"


class KazooClientOf:
    """A client of the server itself, for a block."""

    def __init__(self, hosts: str) -> None:
        self._client = KazooClient(hosts=hosts)

    def __enter__(self) -> KazooClient:
        self._client.start(timeout=30)
        return self._client

    def __exit__(self, *_error: object) -> None:
        self._client.stop()
        self._client.close()


def test_a_reading_is_never_older_than_its_asking(zookeeper: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for once a question is being put belongs to the next one, and each goes behind a sync."""
    questions: list[list[str]] = []
    asked: list[int] = []
    put = zookeeper_store._multi_read

    def noted(client: KazooClient, paths: Any) -> Any:
        questions.append([path.rpartition("/")[2] for path in paths])
        return put(client, paths)

    def passes(request: bytes) -> Fate:
        if operation_of(request) in (MULTI_READ, SYNC):
            asked.append(operation_of(request))
        return Fate.PASSES

    async def main() -> None:
        async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
            await service.create_topic(WIDE, STATES)
            wire.fate_of = passes
            monkeypatch.setattr(zookeeper_store, "_multi_read", noted)
            ask, late = service._store._session.ask_synced, list[asyncio.Task[Any]]()

            async def and_meanwhile(question: Any, deadline: float) -> Any:
                if not late:
                    late.extend(asyncio.create_task(service.read_state(id_of("w"), p)) for p in (10, 11))
                    await asyncio.sleep(0)
                return await ask(question, deadline)

            monkeypatch.setattr(service._store._session, "ask_synced", and_meanwhile)
            await asyncio.gather(*(service.read_state(id_of("w"), p) for p in (0, 1, 2)))
            await asyncio.gather(*late)

    asyncio.run(main())
    assert sorted(questions) == [["0", "1", "2"], ["10", "11"]]
    assert asked == [SYNC, MULTI_READ] * 2


@real_time
async def test_an_answer_whose_sync_is_lost_is_asked_for_again(zookeeper: str, root: str) -> None:
    """Kazoo sends what it has not sent yet over the next connection, and that may lead to a server that is behind."""
    answered: list[Any] = []

    class Lost:
        """A sync whose connection broke."""

        def successful(self) -> bool:
            return len(answered) > 2

    async with session(zookeeper, root) as service:
        await service.create_topic(WIDE, STATES)

        def ask(client: KazooClient) -> Any:
            answered.append(client.get_async(f"{root}/states/{id_of('w')}/3"))
            return kazoo_session._AfterSync(Lost(), answered[-1])

        data, _ = await service._store._session.ask_again(ask, service._store._session.deadline())
        assert len(answered) == 3
        assert data == documents.dump(documents.state_to_json(STATES[3]))
