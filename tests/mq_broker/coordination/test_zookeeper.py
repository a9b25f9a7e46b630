"""What only a server can do to us: pause, vanish, lose answers, end sessions."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from mq_broker.coordination.interface import BrokerRegistration, CoordinationEvent, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.core.messages import CasOutcome
from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, OutcomeUnknown
from tests.coroutines import real_time
from tests.mq_broker.coordination.wire import (
    LASTING_MS,
    MULTI,
    Fate,
    Heard,
    Wire,
    end_session_of,
    eventually,
    id_of,
    operation_of,
    state_of,
)

pytestmark = pytest.mark.cluster

TOPIC = TopicSpec("orders", id_of("1"), ((1,),))


@asynccontextmanager
async def session(
    hosts: str, root: str, heard: Heard | None = None, **options: int
) -> AsyncIterator[CoordinationService]:
    service = CoordinationService(ZooKeeperStore(hosts, **{"session_timeout_ms": LASTING_MS, **options}, root=root))
    await service.start(heard or Heard())
    try:
        yield service
    finally:
        await service.stop()


async def abandon(service: CoordinationService) -> None:
    """As kill -9 does: the connection goes, and the session stays until it expires."""
    client = service._store._session._client
    assert client is not None
    client._connection._socket.shutdown(socket.SHUT_RDWR)


# ------------------------------------------------------------------ nobody there


def test_nobody_listening_is_said_with_the_address_within_the_connect_timeout(root: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{unused.getsockname()[1]}"
        service = CoordinationService(ZooKeeperStore(hosts, 4_000, root, connect_timeout_ms=500))
        with pytest.raises(CoordinationUnavailable, match=hosts):
            asyncio.run(service.start(Heard()))


def test_an_address_that_makes_no_sense_is_refused(root: str) -> None:
    with pytest.raises(CoordinationUnavailable, match="HOST:PORT"):
        asyncio.run(CoordinationService(ZooKeeperStore("localhost:nonsense", root=root)).start(Heard()))


@real_time
async def test_a_prefix_in_the_address_keeps_clusters_apart(zookeeper: str, root: str) -> None:
    async with session(f"{zookeeper}/a/b", root) as one, session(f"{zookeeper}/c", root) as other:
        await one.create_topic(TOPIC, (state_of(),))
        assert list(await one.topics()) == ["orders"]
        assert await other.topics() == {}
        assert await one.cluster_id() != await other.cluster_id()


# ------------------------------------------------------------------ pauses and restarts of the server


def test_a_paused_server_is_suspended_then_connected_with_the_same_registration(tmp_path: Path, root: str) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()

    async def main() -> None:
        heard = Heard()
        async with session(server.hosts, root, heard, session_timeout_ms=18_000) as service:
            me = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400")
            await service.register(me)
            assert service.condition == "connected"
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await heard.until(CoordinationEvent.SUSPENDED)
                assert service.condition == "suspended"
                assert CoordinationEvent.CONNECTED not in heard.events
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await heard.until(CoordinationEvent.TOPICS_CHANGED)
            others = (CoordinationEvent.BROKERS_CHANGED, CoordinationEvent.SECURITY_CHANGED)
            present = [event for event in heard.events if event not in others]
            assert present[-3:] == [
                CoordinationEvent.SUSPENDED,
                CoordinationEvent.CONNECTED,
                CoordinationEvent.TOPICS_CHANGED,
            ]
            assert CoordinationEvent.SESSION_LOST not in heard.events
            assert service.condition == "connected"
            assert await service.brokers() == {1: me}

    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_a_killed_server_ends_each_question_and_comes_back_with_everything(tmp_path: Path, root: str) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()

    async def main() -> None:
        heard = Heard()
        async with session(server.hosts, root, heard) as service:
            await service.create_topic(TOPIC, (state_of(),))
            await service.write_state(id_of("1"), 0, 0, state_of(epoch=1))
            await service.topics()
            heard.forget()
            await asyncio.to_thread(server.kill)
            await heard.until(CoordinationEvent.SUSPENDED)
            timeout_s, service._store._session.request_timeout_s = service._store._session.request_timeout_s, 0.5
            assert await service.write_state(id_of("1"), 0, 1, state_of(epoch=2)) == (CasOutcome.UNKNOWN, -1)
            for question in (service.brokers(), service.read_state(id_of("1"), 0), service.begin_life(1)):
                with pytest.raises(CoordinationUnavailable, match=server.hosts):
                    await question
            with pytest.raises(CoordinationUnavailable):
                await service.create_topic(TopicSpec("never", id_of("3"), ((1,),)), (state_of(),))
            service._store._session.request_timeout_s = timeout_s
            await asyncio.to_thread(server.start)
            await heard.until(CoordinationEvent.CONNECTED)
            unknown = await service.read_state(id_of("1"), 0)  # it may have come late
            assert unknown in ((1, state_of(epoch=1)), (2, state_of(epoch=2)))
            await service.topics()
            heard.forget()
            async with session(server.hosts, root) as other:
                await other.create_topic(TopicSpec("more", id_of("2"), ((1,),)), (state_of(),))
            await heard.until(CoordinationEvent.TOPICS_CHANGED)
            assert list(await service.topics()) == ["more", "orders"]

    try:
        asyncio.run(main())
    finally:
        server.stop()


# ------------------------------------------------------------------ sessions and registrations


@real_time
async def test_a_lost_session_is_told_and_the_next_one_registers_again(zookeeper: str, root: str) -> None:
    heard = Heard()
    async with session(zookeeper, root, heard) as service:
        me = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400")
        await service.register(me)
        heard.forget()
        await asyncio.to_thread(end_session_of, service)
        await heard.until(CoordinationEvent.CONNECTED)
        states = [event for event in heard.events if not event.name.endswith("_CHANGED")]
        assert states == [CoordinationEvent.SUSPENDED, CoordinationEvent.SESSION_LOST, CoordinationEvent.CONNECTED]
        assert await service.brokers() == {}
        await service.register(me)
        assert await service.brokers() == {1: me}


@real_time
async def test_the_node_of_a_former_life_at_this_address_is_replaced_at_once_and_outlives_its_session(
    zookeeper: str, root: str
) -> None:
    async with session(zookeeper, root) as former, session(zookeeper, root) as present:
        await former.register(BrokerRegistration(1, await former.begin_life(1), "127.0.0.1:7400"))
        me = BrokerRegistration(1, await present.begin_life(1), "127.0.0.1:7400")
        await present.register(me)  # "already exists" is not "registered" (trap 2)
        await former.stop()  # what ends with the former session must not be our registration
        assert await present.brokers() == {1: me}


@real_time
async def test_a_former_life_at_another_address_is_waited_for(zookeeper: str, root: str) -> None:
    async with session(zookeeper, root) as former, session(zookeeper, root) as present:
        old = BrokerRegistration(1, await former.begin_life(1), "127.0.0.1:7400")
        await former.register(old)
        me = BrokerRegistration(1, await present.begin_life(1), "127.0.0.1:7499")
        registering = asyncio.create_task(present.register(me))
        await asyncio.wait([registering], timeout=0.5)
        assert not registering.done()
        assert await present.brokers() == {1: old}
        await former.stop()
        await registering
        assert await present.brokers() == {1: me}


@real_time
async def test_a_live_process_at_another_address_is_not_driven_out(zookeeper: str, root: str) -> None:
    async with (
        session(zookeeper, root) as running,
        session(zookeeper, root, session_timeout_ms=2_000, request_timeout_ms=2_000) as second,
    ):
        me = BrokerRegistration(1, await running.begin_life(1), "127.0.0.1:7400")
        await running.register(me)

        async def refused() -> bool:
            """Its session is short, as that is waited for, and may end in between."""
            try:
                with pytest.raises(InvalidRequest, match=r"127\.0\.0\.1:7400"):
                    await second.register(BrokerRegistration(1, await second.begin_life(1), "127.0.0.1:7499"))
            except CoordinationUnavailable:
                return False
            return True

        await eventually(refused)
        assert await running.brokers() == {1: me}


@real_time
async def test_a_former_life_replaces_nobody_once_a_newer_one_has_begun(zookeeper: str, root: str) -> None:
    async with (
        session(zookeeper, root) as stale,
        session(zookeeper, root) as older,
        session(zookeeper, root) as newer,
    ):
        await stale.register(BrokerRegistration(1, await stale.begin_life(1), "127.0.0.1:7400"))
        mine = BrokerRegistration(1, await older.begin_life(1), "127.0.0.1:7400")
        await newer.begin_life(1)
        with pytest.raises(InvalidRequest, match="newer process"):
            await older.register(mine)


@real_time
async def test_brokers_changed_follows_whoever_comes_and_goes(zookeeper: str, root: str) -> None:
    heard = Heard()
    async with session(zookeeper, root, heard) as watcher, session(zookeeper, root) as other:
        await watcher.brokers()
        it = BrokerRegistration(2, await other.begin_life(2), "127.0.0.1:7401")
        await other.register(it)
        await heard.until(CoordinationEvent.BROKERS_CHANGED)
        assert await watcher.brokers() == {2: it}
        heard.forget()
        await other.stop()
        await heard.until(CoordinationEvent.BROKERS_CHANGED)
        assert await watcher.brokers() == {}


# ------------------------------------------------------------------ lost answers


@real_time
async def test_a_write_that_is_lost_or_its_answer_is_unknown_and_the_token_tells_whose_it_was(
    zookeeper: str, root: str
) -> None:
    mine = state_of(epoch=1, token="mine")
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        await service.create_topic(TOPIC, (state_of(),))
        for fate, found in ((Fate.REQUEST_IS_LOST, (0, state_of())), (Fate.ANSWER_IS_LOST, (1, mine))):
            wire.fate_of = lambda request, fate=fate: fate if operation_of(request) == MULTI else Fate.PASSES  # type: ignore[misc]
            assert await service.write_state(id_of("1"), 0, 0, mine) == (CasOutcome.UNKNOWN, -1)
            assert await service.read_state(id_of("1"), 0) == found
        assert wire.lost == 2


@real_time
async def test_gathered_writes_whose_answer_is_lost_are_each_unknown(zookeeper: str, root: str) -> None:
    count = 40
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        for attempt in range(20):  # a request that came in one read with another before it is not seen by the wire
            topic = id_of(attempt)
            await service.create_topic(TopicSpec(f"wide{attempt}", topic, ((1,),) * count), (state_of(),) * count)
            wire.fate_of = lambda request: Fate.ANSWER_IS_LOST if operation_of(request) == MULTI else Fate.PASSES
            writes = [service.write_state(topic, p, 0, state_of(token=f"p{p}")) for p in range(count)]
            outcomes = await asyncio.gather(*writes)
            wire.fate_of = lambda _request: Fate.PASSES
            if wire.lost:
                break
        assert wire.lost == 1
        assert (CasOutcome.UNKNOWN, -1) in outcomes
        for partition in range(count):
            # What is said to be done is; what is unknown is one or the other, and the token tells which.
            found = await service.read_state(topic, partition)
            assert found in ((0, state_of()), (1, state_of(token=f"p{partition}")))
            assert found[0] == 1 or outcomes[partition][0] is not CasOutcome.DONE


@real_time
async def test_a_registration_whose_answer_is_lost_is_registered_once(zookeeper: str, root: str) -> None:
    heard = Heard()
    async with Wire(zookeeper) as wire, session(wire.hosts, root, heard) as service:
        me = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400")
        wire.fate_of = lambda request: (
            Fate.ANSWER_IS_LOST if b"brokers/live/1" in request and b"7400" in request else Fate.PASSES
        )
        await service.register(me)
        assert wire.lost == 1
        assert await service.brokers() == {1: me}


def names_the_topic(request: bytes) -> bool:
    return operation_of(request) == MULTI and b"/topics/orders" in request


@real_time
async def test_a_topic_made_although_the_answer_was_lost_is_made_and_is_like_any_other(
    zookeeper: str, root: str
) -> None:
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        wire.fate_of = lambda request: Fate.ANSWER_IS_LOST if names_the_topic(request) else Fate.PASSES
        await service.create_topic(TOPIC, (state_of(),))
        assert wire.lost == 1
        assert await service.topics() == {"orders": TOPIC}
        assert await service.update_topic(0, replace(TOPIC, settings={"durability": "os"})) == (CasOutcome.DONE, 1)
        await service.delete_topic("orders")
        assert await service.topics() == {}


@pytest.mark.parametrize("arrives", [True, False])
@real_time
async def test_topics_whose_answer_was_lost_are_each_settled(zookeeper: str, root: str, arrives: bool) -> None:
    topics = [(TopicSpec(f"t{n}", id_of(n), ((1,),)), (state_of(),)) for n in range(3)]
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        fate = Fate.ANSWER_IS_LOST if arrives else Fate.REQUEST_IS_LOST
        named = f"{root}/topics/t0".encode()
        wire.fate_of = lambda request: fate if operation_of(request) == MULTI and named in request else Fate.PASSES
        answers = await service.create_topics(topics)
        assert wire.lost == 1
        if arrives:
            assert answers == [None] * 3
            assert set(await service.topics()) == {"t0", "t1", "t2"}
        else:
            assert all(isinstance(answer, CoordinationUnavailable) for answer in answers)
            assert await service.topics() == {}
            assert [await service.read_state(id_of(n), 0) for n in range(3)] == [None] * 3


def makes_states(request: bytes) -> bool:
    return operation_of(request) == MULTI and b"/states/" in request and not names_the_topic(request)


@pytest.mark.parametrize("lost", [names_the_topic, makes_states])
@real_time
async def test_a_topic_whose_request_was_lost_is_certainly_not_made_and_leaves_nothing(
    zookeeper: str, root: str, lost: Callable[[bytes], bool]
) -> None:
    """Whichever of its two: a topic that has its name has its states."""
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        wire.fate_of = lambda request: Fate.REQUEST_IS_LOST if lost(request) else Fate.PASSES
        with pytest.raises(CoordinationUnavailable):
            await service.create_topic(TOPIC, (state_of(),))
        assert wire.lost == 1
        assert await service.topics() == {}
        assert await service.read_state(id_of("1"), 0) is None
        await service.create_topic(TopicSpec("orders", id_of("2"), ((1,),)), (state_of(),))


@real_time
async def test_a_change_of_a_topic_whose_answer_is_lost_is_unknown(zookeeper: str, root: str) -> None:
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        await service.create_topic(TOPIC, (state_of(),))
        changed = replace(TOPIC, settings={"durability": "os"})
        for fate, found in ((Fate.REQUEST_IS_LOST, (0, TOPIC)), (Fate.ANSWER_IS_LOST, (1, changed))):
            wire.fate_of = lambda request, fate=fate: fate if names_the_topic(request) else Fate.PASSES
            assert await service.update_topic(0, changed) == (CasOutcome.UNKNOWN, -1)
            wire.fate_of = lambda _request: Fate.PASSES
            assert await service.read_topic("orders") == found


@real_time
async def test_a_deletion_whose_answer_was_lost_says_that_it_does_not_know(zookeeper: str, root: str) -> None:
    async with Wire(zookeeper) as wire, session(wire.hosts, root) as service:
        await service.create_topic(TOPIC, (state_of(),))
        wire.fate_of = lambda request: Fate.ANSWER_IS_LOST if names_the_topic(request) else Fate.PASSES
        with pytest.raises(OutcomeUnknown, match="ask again"):
            await service.delete_topic("orders")
        assert await service.topics() == {}


@real_time
async def test_a_broken_connection_alone_ends_nothing(zookeeper: str, root: str) -> None:
    heard = Heard()
    async with session(zookeeper, root, heard) as service:
        me = BrokerRegistration(1, await service.begin_life(1), "127.0.0.1:7400")
        await service.register(me)
        heard.forget()
        await abandon(service)
        await heard.until(CoordinationEvent.CONNECTED)
        assert CoordinationEvent.SESSION_LOST not in heard.events

        async def registered() -> bool:
            return await service.brokers() == {1: me}

        await eventually(registered)


# ------------------------------------------------------------------ strangers' documents


@contextmanager
def stranger(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=hosts)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@real_time
async def test_a_tree_that_somebody_has_removed_is_not_taken_for_an_empty_one(zookeeper: str, root: str) -> None:
    async with session(zookeeper, root) as service:
        await service.create_topic(TOPIC, (state_of(),))
        with stranger(zookeeper) as client:
            for path in ("topics", "brokers"):
                client.delete(f"{root}/{path}", recursive=True)
        for asked in (service.topics(), service.brokers()):
            with pytest.raises(CoordinationUnavailable, match="is gone"):
                await asked


@real_time
async def test_what_cannot_be_read_is_told_once_and_is_not_taken_for_what_is_not_there(
    zookeeper: str, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "mq_broker.coordination")
    one, two = BrokerRegistration(1, 1, "h:1"), BrokerRegistration(2, 1, "h:2")
    other = replace(TOPIC, name="others", topic_id=id_of("2"))
    async with session(zookeeper, root) as first, session(zookeeper, root) as second:
        for service, registration in ((first, one), (second, two)):
            assert await service.begin_life(registration.broker) == 1
            await service.register(registration)
        for topic in (TOPIC, other):
            await first.create_topic(topic, (state_of(),))
        paths = [f"{root}/{path}" for path in ("topics/orders", f"states/{id_of('1')}/0", "brokers/live/2")]
        with stranger(zookeeper) as client:
            before = [client.get(path)[0] for path in paths]
            for path, data in zip(paths, (b"{", b"[]", b"\xff"), strict=True):
                client.set(path, data)
            for _ in range(2):
                changes = await first.topic_changes(-1)
                assert (changes.present, changes.unreadable, changes.gone) == ({"others": other}, ("orders",), ())
                assert await first.brokers() == {1: one}
                with pytest.raises(
                    CoordinationUnavailable, match=r"states/\w+/0 does not hold .* Put back what was there"
                ):
                    await first.read_state(id_of("1"), 0)
                with pytest.raises(CoordinationUnavailable, match="topics/orders does not hold"):
                    await first.read_topic("orders")
            assert [path for path in paths if sum(path in r.getMessage() for r in caplog.records) != 1] == []
            await second.register(two)
            assert await first.brokers() == {1: one, 2: two}, "who is registered there writes it anew"
            for path, data in zip(paths, before, strict=True):
                client.set(path, data)
        again = await first.topic_changes(changes.version)
        assert again.present == {"orders": TOPIC, "others": other}, "asked for all of them, until none is damaged"
        assert await first.read_state(id_of("1"), 0) is not None
