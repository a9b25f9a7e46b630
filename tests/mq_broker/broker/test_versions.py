"""Versions: what a broker says of itself, who may take part, and what the cluster's level of features lets leaders
write."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.coordination.service import CoordinationService
from mq_broker.core import entries
from mq_broker.core.entries import DeleteGroup
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion
from mq_protocol.versions import LEVEL, PROTOCOL, PROTOCOL_OLDEST, Versions, check_overlap, ours
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import standalone
from tests.mq_broker.coordination.conftest import opened as opened
from tests.mq_broker.coordination.conftest import root as root
from tests.mq_broker.coordination.wire import Heard
from tests.mq_broker.releases import next_level as next_level
from tests.virtual.world import in_virtual_time

MINE = Versions(3, 2, "0.4.0", 3)


@pytest.mark.parametrize(
    ("theirs", "overlap"),
    [
        (Versions(3, 2), True),
        (Versions(2, 1), True),
        (Versions(5, 3), True),
        (Versions(), False),
        (Versions(5, 4), False),
    ],
)
def test_two_versions_overlap_if_one_protocol_is_spoken_by_both(theirs: Versions, overlap: bool) -> None:
    assert MINE.overlaps(theirs) is theirs.overlaps(MINE) is overlap


def test_a_mismatch_names_both_versions_and_which_of_them_to_upgrade() -> None:
    with pytest.raises(IncompatibleVersion) as older:
        check_overlap("broker 1", MINE, "broker 2", Versions(1, 1, "0.2.0"))
    assert str(older.value).startswith(
        "broker 1 (release 0.4.0, protocol 2 to 3) and broker 2 (release 0.2.0, protocol 1) have no protocol "
        "in common: upgrade broker 2"
    )
    with pytest.raises(IncompatibleVersion, match="upgrade broker 1"):
        check_overlap("broker 1", MINE, "broker 2", Versions(5, 4, "0.6.0"))


def test_what_is_not_said_or_is_nonsense_counts_as_the_first_version() -> None:
    assert Versions.said(0, 0) == Versions.said(-5, -9, "", -1) == Versions()
    assert Versions.said(2, 7) == Versions(2, 2)
    assert len(Versions.said(2, 1, "x" * 10_000).release) == 64
    assert "\n" not in str(Versions(2, 1, "0.3\nforged"))


@virtual_time
async def test_a_client_that_speaks_no_common_protocol_is_refused_and_a_newer_one_answered(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.ask("Metadata", pb.MetadataRequest(protocol=PROTOCOL + 5, protocol_oldest=PROTOCOL))
        with pytest.raises(IncompatibleVersion, match=r"this client .* have no protocol in common: upgrade broker 1"):
            await broker.ask("Metadata", pb.MetadataRequest(protocol=PROTOCOL + 2, protocol_oldest=PROTOCOL + 1))


@virtual_time
async def test_metadata_tell_the_versions_of_brokers_and_the_level_of_the_cluster(
    tmp_path: Path, next_level: int
) -> None:
    async with standalone(tmp_path) as broker:
        answer = await broker.metadata()
        (info,) = answer.brokers
        assert (answer.level, answer.protocol, answer.protocol_oldest) == (LEVEL, PROTOCOL, PROTOCOL_OLDEST)
        assert (info.release, info.protocol, info.level) == (ours().release, PROTOCOL, next_level)
        planned = await broker.ask("Upgrade", pb.UpgradeRequest(plan=True))
        assert (planned.level, planned.target, list(planned.absent)) == (LEVEL, next_level, [])
        assert (await broker.ask("Upgrade", pb.UpgradeRequest())).level == next_level
        assert (await broker.ask("Upgrade", pb.UpgradeRequest())).level == next_level
    async with standalone(tmp_path) as broker:
        assert (await broker.metadata()).level == next_level


def test_a_leader_writes_no_operation_above_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_level: int
) -> None:
    monkeypatch.setitem(entries.LEVELS, DeleteGroup, next_level)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 1)
            moved = pb.MoveCursorsRequest(group="g", kind="spark", positions=[pb.CursorPosition(topic="t", offset=1)])
            await broker.ask("MoveCursors", moved)
            deleted = pb.DeleteGroupRequest(group="g", force=True, partitions=[pb.TopicPartition(topic="t")])
            (refused,) = (await broker.ask("DeleteGroup", deleted)).partitions
            error = from_wire(refused.error)
            assert isinstance(error, IncompatibleVersion)
            assert f"DeleteGroup needs level {next_level} of the cluster's features" in str(error)
            await broker.ask("Upgrade", pb.UpgradeRequest())
            (done,) = (await broker.ask("DeleteGroup", deleted)).partitions
            for _ in range(200):  # the broker learns of the level by a hint
                if not done.HasField("error"):
                    break
                await asyncio.sleep(0.05)
                (done,) = (await broker.ask("DeleteGroup", deleted)).partitions
            assert not done.HasField("error")

    in_virtual_time(scenario())


def test_a_broker_that_does_not_know_the_level_does_not_start(tmp_path: Path) -> None:
    async def raise_it() -> None:
        service = CoordinationService(FileStore(tmp_path))
        await service.start(Heard())
        await service.raise_level(LEVEL + 1)
        await service.stop()

    async def start() -> None:
        async with standalone(tmp_path):
            raise AssertionError("it started")

    in_virtual_time(raise_it())
    with pytest.raises(
        IncompatibleVersion, match=rf"at level {LEVEL + 1} of features, and this broker .* knows up to {LEVEL}"
    ):
        in_virtual_time(start())


class Registered(CoordinationService):
    """Others are registered beside the one broker that a file is for."""

    others: tuple[BrokerRegistration, ...] = ()

    async def brokers(self) -> dict[int, BrokerRegistration]:
        return await super().brokers() | {other.broker: other for other in self.others}


def test_a_broker_that_does_not_know_the_level_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    newer = Versions(release="9.0.0", level=LEVEL + 1)
    me = BrokerRegistration(1, 1, "h:1", versions=newer)
    old = BrokerRegistration(2, 5, "h:2", peer_address="h:3", versions=Versions(release="8.0.0", level=LEVEL))
    new = replace(old, broker=3, versions=newer)

    async def scenario() -> None:
        service = Registered(FileStore(tmp_path))
        service.others = (old, new)
        await service.start(Heard())
        cluster = Cluster(service, me, lambda: None, lambda: None)
        await cluster.join()
        assert sorted(cluster.brokers) == [1, 2, 3]
        await service.raise_level(LEVEL + 1)
        await cluster.join()
        await cluster.join()
        assert sorted(cluster.brokers) == [1, 3]
        told = [record.getMessage() for record in caplog.records if "takes no part" in record.getMessage()]
        assert told == [
            f"broker 2 (release 8.0.0, protocol 1) knows features up to level {LEVEL}, and the cluster is at level "
            f"{LEVEL + 1}: it takes no part. Start a newer release there"
        ]
        await service.stop()

    in_virtual_time(scenario())
