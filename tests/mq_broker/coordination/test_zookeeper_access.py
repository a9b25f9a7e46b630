"""Nodes in ZooKeeper that only brokers may read and write: real servers, real strangers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, make_acl

from mq_broker.coordination import zookeeper_closing
from mq_broker.coordination.credential import Credential
from mq_broker.coordination.interface import BrokerRegistration, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.coordination.zookeeper_closing import Closing
from mq_broker.core.messages import CasOutcome
from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, InvalidSetting
from tests.coroutines import real_time
from tests.mq_broker.coordination.wire import LASTING_MS, WAIT_S, Heard, eventually, id_of, state_of

pytestmark = pytest.mark.cluster

OURS = Credential("tritonmq", "0f1e2d3c4b5a", "zookeeper.auth")
OTHER = Credential("tritonmq", "guessed", "other.auth")


@asynccontextmanager
async def session(hosts: str, root: str, credential: Credential | None = None) -> AsyncIterator[CoordinationService]:
    service = CoordinationService(ZooKeeperStore(hosts, LASTING_MS, root=root, credential=credential))
    await service.start(Heard())
    try:
        yield service
    finally:
        await service.stop()


@contextmanager
def kazoo(hosts: str, credential: Credential | None = None) -> Iterator[KazooClient]:
    client = KazooClient(hosts, auth_data=[credential.auth] if credential is not None else None)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def nodes_of(client: KazooClient, root: str) -> list[str]:
    found = [root]
    for path in found:
        found += [f"{path}/{child}" for child in client.get_children(path)]
    return found


def open_nodes(hosts: str, root: str) -> list[str]:
    with kazoo(hosts, OURS) as client:
        return [path for path in nodes_of(client, root) if client.get_acls(path)[0] != OURS.acl]


async def make_one_of_each(service: CoordinationService, broker: int = 1, topic: str = "orders") -> None:
    """Each kind of node that a broker makes."""
    await service.cluster_id()
    await service.peer_secret()
    has = service._store._session._credential is not None
    incarnation = await service.begin_life(broker)
    registration = BrokerRegistration(broker, incarnation, f"127.0.0.1:{7400 + broker}", zookeeper_auth=has)
    await service.register(registration)
    await service.create_topic(TopicSpec(topic, id_of(topic[0]), ((1,), (1,))), (state_of(), state_of()))
    assert (await service.write_state(id_of(topic[0]), 0, 0, state_of()))[0] is CasOutcome.DONE
    place = await service.queue_for_lock(f"lock-{topic}")
    await place.first(WAIT_S)
    documents = await service.security.read()
    version = documents.documents["acls/0"][0] if "acls/0" in documents.documents else -1
    assert (await service.security.write({"acls/0": (version, b"{}")}))[0] is CasOutcome.DONE


async def told(service: CoordinationService, access: str) -> None:
    async def so() -> bool:
        return service.access == access

    await eventually(so)


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except NoAuthError:
        return True
    return False


def test_a_cluster_that_begins_with_a_credential_is_closed_to_strangers_in_every_node(
    zookeeper: str, root: str
) -> None:
    async def main() -> None:
        async with session(zookeeper, root, OURS) as service:
            await make_one_of_each(service)
            assert service.access == "closed"
            await asyncio.to_thread(strangers_are_refused)

    def strangers_are_refused() -> None:
        with kazoo(zookeeper, OURS) as ours:
            nodes = nodes_of(ours, root)
            assert len(nodes) > 15
        assert open_nodes(zookeeper, root) == []
        for credential in (None, OTHER):
            with kazoo(zookeeper, credential) as stranger:
                for path in nodes:
                    for call in (
                        lambda path=path: stranger.get(path),
                        lambda path=path: stranger.get_children(path),
                        lambda path=path: stranger.set(path, b"mine"),
                        lambda path=path: stranger.create(f"{path}/mine", b""),
                        lambda path=path: stranger.set_acls(path, OTHER.acl),
                        lambda path=path: stranger.get_acls(path),
                    ):
                        assert refused(call), path
                    if path != root:
                        assert refused(lambda path=path: stranger.delete(path, recursive=False)), path

    asyncio.run(main())


def documented() -> list[tuple[str, list[ACL]]]:
    """What docs/zookeeper.md has an operator say to close `/`: paths, and the lists they are given."""
    page = Path(__file__).parents[3] / "docs/zookeeper.md"
    given = [line.split()[1:] for line in page.read_text().splitlines() if line.startswith("setAcl ")]
    lists = {"auth::cdrwa": OURS.acl, "world:anyone:r,auth::cdrwa": [make_acl("world", "anyone", read=True), *OURS.acl]}
    return [(path, lists[acl]) for path, acl in given]


def test_what_the_manual_says_closes_what_is_beside_the_tree(tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()

    def close() -> None:
        with kazoo(zookeeper.hosts, OURS) as ours:
            for path, acl in documented():
                ours.set_acls(path, acl)

    def strangers_are_refused() -> None:
        for credential in (None, OTHER):
            with kazoo(zookeeper.hosts, credential) as stranger:
                for call in (
                    lambda stranger=stranger: stranger.create("/beside", b""),
                    lambda stranger=stranger: stranger.create("/zookeeper/beside", b""),
                    lambda stranger=stranger: stranger.create("/zookeeper/quota/tritonmq", b""),
                    lambda stranger=stranger: stranger.set_acls("/", OTHER.acl),
                ):
                    assert refused(call)

    async def main() -> None:
        assert len(documented()) == 3
        await asyncio.to_thread(close)
        await asyncio.to_thread(strangers_are_refused)
        for _ in range(2):  # it begins, and goes on
            async with session(zookeeper.hosts, "/tritonmq", OURS) as service:
                await service.cluster_id()
                assert service.access == "closed"

    try:
        asyncio.run(main())
    finally:
        zookeeper.stop()


@pytest.mark.parametrize(("credential", "said"), [(None, "--zookeeper-auth FILE"), (OTHER, "other.auth")])
@real_time
async def test_a_broker_without_the_right_credential_is_told_what_to_do(
    zookeeper: str, root: str, credential: Credential | None, said: str
) -> None:
    async with session(zookeeper, root, OURS):
        pass
    with pytest.raises(CoordinationUnavailable, match=said) as error:
        async with session(zookeeper, root, credential):
            pass
    assert "guessed" not in str(error.value)


@real_time
async def test_another_credential_is_refused_while_the_cluster_is_still_open(zookeeper: str, root: str) -> None:
    async with session(zookeeper, root) as before:
        await before.cluster_id()
    async with session(zookeeper, root, OURS) as service:
        assert service.access == "open"
    with pytest.raises(CoordinationUnavailable, match="belong to another"):
        async with session(zookeeper, root, OTHER):
            pass


@real_time
async def test_brokers_with_and_without_a_credential_work_together_until_the_cluster_is_closed(
    zookeeper: str, root: str
) -> None:
    async with session(zookeeper, root) as old, session(zookeeper, root, OURS) as new:
        await make_one_of_each(old, 1, "orders")
        await make_one_of_each(new, 2, "payments")
        assert (old.access, new.access) == ("open", "open")
        assert (await old.write_state(id_of("p"), 0, 1, state_of()))[0] is CasOutcome.DONE
        assert sorted(await old.topics()) == sorted(await new.topics()) == ["orders", "payments"]
        async with Closing(zookeeper, OURS, root) as closing:
            assert (await closing.check()).opened > 15
            with pytest.raises(InvalidRequest, match="broker 1 runs without"):
                await closing.close()
        assert new.access == "open"
    async with session(zookeeper, root, OURS) as new:
        await new.register(BrokerRegistration(2, 9, "127.0.0.1:7402", zookeeper_auth=True))
        async with Closing(zookeeper, OURS, root) as closing:
            done = await closing.close()
            assert done.opened > 15
            assert (await closing.check()).opened == 0
            assert (await closing.close()).opened == 0  # once more does no harm
        await told(new, "closed")
        await make_one_of_each(new, 2, "returns")
        assert await asyncio.to_thread(open_nodes, zookeeper, root) == []


@real_time
async def test_work_that_is_broken_off_anywhere_does_no_harm_and_is_gone_on_with(
    zookeeper: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kill -9 of the command: what it keeps is in ZooKeeper alone."""
    monkeypatch.setattr(zookeeper_closing, "HEAR_S", 0.0)
    monkeypatch.setattr(zookeeper_closing, "SIDE_BY_SIDE", 1)

    async def broken_off_after(count: int) -> bool:
        done = 0

        async with Closing(zookeeper, OURS, root) as closing:
            set_acl = closing._close_one

            async def close_one(path: str) -> None:
                nonlocal done
                if done == count:
                    raise asyncio.CancelledError
                done += 1
                await set_acl(path)

            monkeypatch.setattr(closing, "_close_one", close_one)
            try:
                await closing.close()
            except asyncio.CancelledError:
                return True
        return False

    async with session(zookeeper, root) as old:
        await make_one_of_each(old)
    async with session(zookeeper, root, OURS) as broker, session(zookeeper, root, OURS) as watching:
        for turn, count in enumerate((0, 2, 8)):
            assert await broken_off_after(count)
            await told(broker, "closing")
            topic = TopicSpec(f"t{turn}", id_of(f"{turn}"), ((1,),))
            await broker.create_topic(topic, (state_of(),))
            assert f"t{turn}" in await watching.topics()
            async with session(zookeeper, root, OURS) as restarted:
                assert (await restarted.write_state(topic.topic_id, 0, 0, state_of()))[0] is CasOutcome.DONE
            with pytest.raises(CoordinationUnavailable):
                async with session(zookeeper, root, OTHER):
                    pass
        assert await asyncio.to_thread(open_nodes, zookeeper, root) != []
        assert not await broken_off_after(1_000)
        await told(broker, "closed")
        assert await asyncio.to_thread(open_nodes, zookeeper, root) == []


@real_time
async def test_a_broker_that_is_locked_out_while_it_runs_is_told_so_and_loses_nothing(
    zookeeper: str, root: str
) -> None:
    async with session(zookeeper, root) as without:
        await make_one_of_each(without)
        with kazoo(zookeeper) as client:
            for path in await asyncio.to_thread(nodes_of, client, root):
                await asyncio.to_thread(client.set_acls, path, OURS.acl)
        for asked in (without.topics(), without.brokers(), without.level(), without.read_state(id_of("o"), 0)):
            with pytest.raises(CoordinationUnavailable, match="--zookeeper-auth"):
                await asyncio.wait_for(asked, 20)
        both = await asyncio.gather(*(without.read_state(id_of("o"), each) for each in (0, 1)), return_exceptions=True)
        assert [type(error) for error in both] == [CoordinationUnavailable] * 2
        assert (await without.write_state(id_of("o"), 0, 1, state_of()))[0] is CasOutcome.UNKNOWN
        with pytest.raises(CoordinationUnavailable, match="--zookeeper-auth"):
            await without.create_topic(TopicSpec("more", id_of("m"), ((1,),)), (state_of(),))
        assert (await without.security.write({"acls/1": (-1, b"{}")}))[0] is CasOutcome.UNKNOWN


@real_time
async def test_a_session_that_connects_again_shows_its_credential_again(zookeeper: str, root: str) -> None:
    async with session(zookeeper, root, OURS) as service:
        service._store._session._client._connection._socket.shutdown(2)
        assert await service.topics() == {}, "which is asked again until it is connected"
        await service.create_topic(TopicSpec("orders", id_of("o"), ((1,),)), (state_of(),))
        assert list(await service.topics()) == ["orders"]
    assert await asyncio.to_thread(open_nodes, zookeeper, root) == []


def test_neither_a_password_nor_a_secret_is_logged(zookeeper: str, root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    logging.getLogger("mq_broker.coordination.kazoo_session.kazoo").setLevel(1)

    async def main() -> bytes:
        async with session(zookeeper, root, OURS) as service:
            await make_one_of_each(service)
            return await service.peer_secret() or b""

    secret = asyncio.run(main())
    assert "Connecting to" in caplog.text  # kazoo was heard
    assert OURS.password not in caplog.text
    assert secret.hex() not in caplog.text


# ------------------------------------------------------------------ the file


def test_a_credential_is_made_once_and_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "below" / "zookeeper.auth"
    made = Credential.make(path)
    assert Credential.make(path) == made == Credential.read(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert made.password not in repr(made)
    assert len(made.password) == 64


@pytest.mark.parametrize(
    "line", ["", "tritonmq", ":secret", "a b:c", "user:", "user:pässword", "u:a\nu:b", "u:" + "x" * 2_000]
)
def test_a_file_that_holds_no_credential_is_refused_and_not_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "zookeeper.auth"
    path.write_text(line)
    path.chmod(0o600)
    with pytest.raises(InvalidSetting, match="USER:PASSWORD") as error:
        Credential.read(path)
    assert "pässword" not in str(error.value)


def test_a_file_that_others_may_read_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.auth"
    path.write_text("tritonmq:secret\n")
    path.chmod(0o644)
    with pytest.raises(InvalidSetting, match="chmod 600"):
        Credential.read(path)
    with pytest.raises(InvalidSetting):
        Credential.read(tmp_path / "none")
    with pytest.raises(InvalidSetting, match="give its path") as told:
        Credential.read(Path("ann:hunter2"))
    assert "hunter2" not in str(told.value)
