"""What a broker does for all its partitions: its clock, its links, its background work, and how it begins and ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.broker.host import shell as shells
from mq_broker.broker.metadata.topics import Topic
from mq_broker.core.messages import LeaderName
from mq_protocol.errors import IncompatibleVersion, StorageFailed
from tests.coroutines import virtual_time
from tests.mq_broker.broker.host.test_partition_life import led
from tests.mq_broker.broker.host.test_shell import HERE, ID, later, shell


@virtual_time
async def test_who_lost_its_session_is_not_live_itself_and_the_others_are(tmp_path: Path) -> None:
    async with led(tmp_path) as (broker, partition):
        broker.brokers_seen((LeaderName(1, 1), LeaderName(2, 1)))
        assert [broker.is_live(number) for number in (1, 2, 3)] == [True, True, False]
        assert partition.leading
        broker.session_lost()
        assert [broker.is_live(number) for number in (1, 2, 3)] == [False, True, False]
        assert not partition.leading


@virtual_time
async def test_the_first_failure_stops_the_broker_and_later_ones_change_nothing(tmp_path: Path) -> None:
    async with led(tmp_path) as (broker, _partition):

        async def broken() -> None:
            raise ZeroDivisionError

        await asyncio.wait({broker.spawn(broken(), "broken")})
        broker.fail(KeyError("later"))
        assert isinstance(broker.failure.exception(), ZeroDivisionError)


@virtual_time
async def test_a_broker_that_is_too_old_for_the_cluster_says_so_in_a_line_and_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with led(tmp_path) as (broker, _partition):

        async def follow() -> None:
            raise IncompatibleVersion("the cluster is at level 9 of features: start a release that knows it")

        broker.spawn(follow(), "follow brokers")
        with pytest.raises(IncompatibleVersion):
            await broker.failure
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert told.exc_info is None
    assert told.getMessage().endswith("start a release that knows it")


@pytest.mark.parametrize("same_cluster", [True, False])
@virtual_time
async def test_what_a_deleted_topic_held_is_removed_unless_the_cluster_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, same_cluster: bool
) -> None:
    async with led(tmp_path) as (broker, _partition):
        files = tmp_path / "data" / "partitions" / f"{ID}-0"
        assert files.exists()

        async def cluster_id() -> str:
            return "another"

        if not same_cluster:
            monkeypatch.setattr(broker.coordination, "cluster_id", cluster_id)
        broker.follow_topics({})
        await later()
        assert not broker._settling
        assert files.exists() is not same_cluster
        assert any("holds another cluster now" in words for words in caplog.messages) is not same_cluster


@virtual_time
async def test_a_replica_that_the_disk_did_not_let_be_opened_or_begun_anew_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        tries = 0
        opens = broker._open

        async def fails_twice(topic: Topic, number: int) -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise StorageFailed("a bad sector")
            await opens(topic, number)

        monkeypatch.setattr(broker, "_open", fails_twice)
        broker.follow_topics({ID: HERE})
        await later(4 * shells.REOPEN_S)
        assert broker.hosted(HERE, 0) is not None
        assert tries == 3
        prepared = 0

        def prepare() -> None:
            nonlocal prepared
            prepared += 1
            if prepared < 3:
                raise StorageFailed("no room")

        former = broker.partition(HERE, 0)
        broker.reopen(former, "its disk failed", prepare)
        await later(4 * shells.REOPEN_S)
        assert broker.hosted(HERE, 0) is not None
        assert prepared == 3
        assert former.closed
        assert not broker.failure.done()


@virtual_time
async def test_a_topic_that_changes_while_its_replica_is_opened_is_the_one_that_the_replica_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        opening, may_open = asyncio.Event(), asyncio.Event()
        opens = broker._open

        async def slowly(topic: Topic, number: int) -> None:
            opening.set()
            await may_open.wait()
            await opens(topic, number)

        monkeypatch.setattr(broker, "_open", slowly)
        broker.follow_topics({ID: HERE})
        async with asyncio.timeout(20):
            await opening.wait()
        wider = Topic.of(replace(HERE.spec, assignment=((1, 2),)))
        broker.follow_topics({ID: wider})
        may_open.set()
        await later()
        assert not broker._settling
        partition = broker.partition(wider, 0)
        assert partition.topic is wider
        assert partition.replica.replicas == (1, 2)
