"""What a broker does for all its partitions: its clock, its links, its background work, and how it begins and ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host import shell as shells
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic
from mq_broker.core.messages import LeaderName, NodeState, PeerConnected, PeerDisconnected
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, IncompatibleVersion, OutcomeUnknown, StorageFailed
from tests.logs import said_here
from tests.mq_broker.broker.host.test_partition_life import run
from tests.mq_broker.broker.host.test_shell import HERE, shell, until


def test_its_clock_counts_whole_milliseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Shell, _partition: Partition) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(shells, "time", SimpleNamespace(monotonic_ns=lambda: 8_000_000_999_999))
            assert broker.now_ms() == 8_000_000

    run(tmp_path, scenario)


def test_a_replica_that_begins_anew_already_is_not_begun_twice(tmp_path: Path) -> None:
    async def scenario(broker: Shell, partition: Partition) -> None:
        prepared: list[str] = []
        broker.reopen(partition, "its disk failed", lambda: prepared.append("once"))
        broker.reopen(partition, "its disk failed", lambda: prepared.append("twice"))
        await until(lambda: broker.hosted(HERE, 0) is not None and not broker._settling)
        assert prepared == ["once"]
        begun = broker.hosted(HERE, 0)
        broker.reopen(partition, "too late", lambda: prepared.append("late"))
        assert broker.hosted(HERE, 0) is begun is not partition
        assert not broker._settling

    run(tmp_path, scenario)


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_a_new_log_was_never_recovered(tmp_path: Path, durability: str) -> None:
    async def main() -> None:
        async with shell(tmp_path, isr=((1, ""),)) as broker:
            topic = Topic.of(replace(HERE.spec, settings={"durability": durability}))
            broker.follow_topics({"id": topic})
            await until(lambda: broker.hosted(topic, 0) is not None)
            identity = broker.partition(topic, 0).replica.identity
            assert (identity.broker, identity.incarnation, identity.recovery) == (1, 1, 0)
            assert broker.partition(topic, 0).journal.first_index == 1

    asyncio.run(main())


def test_a_broker_waits_for_what_it_opens_and_says_what_takes_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with shell(tmp_path, isr=((1, ""),)) as broker:
            await broker.wait_until_open(0.0)
            may_open = asyncio.Event()
            opens = broker._open

            async def slowly(topic: Topic, number: int) -> None:
                await may_open.wait()
                await opens(topic, number)

            monkeypatch.setattr(broker, "_open", slowly)
            broker.follow_topics({"id": HERE})
            assert not said_here(caplog)
            await broker.wait_until_open(0.0)
            assert said_here(caplog) == ["1 partitions are not open yet after 0 s; they will be"]
            caplog.clear()
            may_open.set()
            await broker.wait_until_open(20.0)
            assert broker.hosted(HERE, 0) is not None
            assert not said_here(caplog)

    asyncio.run(main())


def test_a_link_that_is_silent_is_ended_and_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "BEAT_S", 0.0)

    async def scenario(broker: Shell, _partition: Partition) -> None:
        silent = iter([[], [2], [], [2, 3]])
        ended: list[int] = []
        contacts: Any = SimpleNamespace(silent=lambda _now_ms: next(silent, []), since=lambda _broker: None)
        monkeypatch.setattr(broker, "contacts", contacts)
        monkeypatch.setattr(broker.links, "end", ended.append)
        broker.spawn(broker.listen(), "listen")
        await until(lambda: len(ended) == 3)
        assert ended == [2, 2, 3]

    run(tmp_path, scenario)


def test_who_lost_its_session_is_not_live_itself_and_the_others_are(tmp_path: Path) -> None:
    async def scenario(broker: Shell, partition: Partition) -> None:
        broker.brokers_seen((LeaderName(1, 1), LeaderName(2, 1)))
        assert [broker.is_live(number) for number in (1, 2, 3)] == [True, True, False]
        assert partition.leading
        broker.session_lost()
        assert [broker.is_live(number) for number in (1, 2, 3)] == [False, True, False]
        assert not partition.leading

    run(tmp_path, scenario)


def test_partitions_have_until_the_deadline_to_hand_over_and_one_that_hangs_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Shell, _partition: Partition) -> None:
        deadlines: list[int] = []
        hang = False

        async def hand_over(_partition: Partition, deadline_ms: int) -> int:
            deadlines.append(deadline_ms)
            for _ in range(5):
                await asyncio.sleep(0)
            if hang:
                await asyncio.Event().wait()
            return 0

        monkeypatch.setattr(Partition, "hand_over", hand_over)
        monkeypatch.setattr(broker, "now_ms", lambda: 7_000)
        await broker.hand_over(2.5)
        assert deadlines == [9_500]
        assert not said_here(caplog)
        await broker.hand_over(0.0)  # what is handed over at once has time for it all the same
        assert not said_here(caplog)
        hang = True
        await broker.hand_over(-0.99)  # a hundredth of a second is left of the one that it may take longer
        assert said_here(caplog) == ["not every partition was handed over in -0.99 s"]
        monkeypatch.undo()

    run(tmp_path, scenario)


def test_a_broker_that_is_stopping_opens_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Shell, partition: Partition) -> None:
        await broker.hand_over(1.0)
        broker.follow_topics({})
        broker.reopen(partition, "its disk failed")
        assert not broker._settling
        assert broker.hosted(HERE, 0) is partition

    run(tmp_path, scenario)


def test_the_first_failure_stops_the_broker_and_later_ones_change_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Shell, _partition: Partition) -> None:
        async def broken() -> None:
            raise ZeroDivisionError

        await asyncio.wait({broker.spawn(broken(), "broken")})
        broker.fail(KeyError("later"))
        assert isinstance(broker.failure.exception(), ZeroDivisionError)

    run(tmp_path, scenario)


def test_a_broker_that_is_too_old_for_the_cluster_says_so_in_a_line_and_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Shell, _partition: Partition) -> None:
        async def follow() -> None:
            raise IncompatibleVersion("the cluster is at level 9 of features: start a release that knows it")

        broker.spawn(follow(), "follow brokers")
        with pytest.raises(IncompatibleVersion):
            await broker.failure

    run(tmp_path, scenario)
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert told.exc_info is None
    assert told.getMessage().endswith("start a release that knows it")


def test_partitions_are_told_in_order_also_after_one_has_come_or_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with shell(tmp_path, isr=((1, ""),)) as broker:
            assert broker.partitions() == []
            topics = {
                name: Topic.of(replace(HERE.spec, name=name, topic_id=name, assignment=((1,), (1,)))) for name in "ba"
            }
            broker.follow_topics(topics)
            await until(lambda: not broker._settling)
            assert [each.name for each in broker.partitions()] == ["a-0", "a-1", "b-0", "b-1"]
            broker.follow_topics({"b": topics["b"]})
            await until(lambda: not broker._settling)
            assert [each.name for each in broker.partitions()] == ["b-0", "b-1"]
            former = broker.partitions()
            broker.reopen(former[0], "its disk failed")
            assert [each.name for each in broker.partitions()] == ["b-1"]
            assert len(former) == 2, "a list that somebody has stays as it is"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("state", "released"),
    [
        (CoordinationUnavailable("away"), False),
        (None, False),
        (NodeState(LeaderName(1, 1), 5, ((2, "other"),), 0, ""), False),
        (NodeState(LeaderName(2, 1), 5, ((1, "mine"), (2, "other")), 0, ""), False),
        (NodeState(LeaderName(2, 1), 5, ((2, "other"),), 0, ""), True),
        (NodeState(None, 5, ((2, "other"), (3, "third")), 0, ""), True),
        (NodeState(None, 5, ((2, "other"), (1, "mine")), 0, ""), False),
    ],
    ids=["nobody can say", "no node", "it leads", "it is in sync", "moved", "moved, none leads", "none leads"],
)
def test_a_replica_is_released_only_by_a_node_that_names_it_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: NodeState | Exception | None, released: bool
) -> None:
    async def scenario(broker: Shell, partition: Partition) -> None:
        async def read_state(_topic_id: str, _number: int) -> tuple[int, NodeState] | None:
            if isinstance(state, Exception):
                raise state
            return None if state is None else (1, state)

        with monkeypatch.context() as patched:
            patched.setattr(broker.coordination, "read_state", read_state)
            assert not await broker._released(partition), "it leads"
            broker.session_lost()
            assert not partition.leading
            assert await broker._released(partition) is released

    run(tmp_path, scenario)


@pytest.mark.parametrize("same_cluster", [True, False])
def test_what_a_deleted_topic_held_is_removed_unless_the_cluster_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, same_cluster: bool
) -> None:
    async def scenario(broker: Shell, _partition: Partition) -> None:
        files = tmp_path / "data" / "partitions" / "id-0"
        assert files.exists()

        async def cluster_id() -> str:
            return "another"

        if not same_cluster:
            monkeypatch.setattr(broker.coordination, "cluster_id", cluster_id)
        broker.follow_topics({})
        await until(lambda: not broker._settling)
        assert files.exists() is not same_cluster
        assert any("holds another cluster now" in words for words in caplog.messages) is not same_cluster

    run(tmp_path, scenario)


def test_a_replica_that_the_disk_did_not_let_be_opened_or_begun_anew_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shells, "REOPEN_S", 0.0)

    async def main() -> None:
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
            broker.follow_topics({"id": HERE})
            await until(lambda: broker.hosted(HERE, 0) is not None and not broker._settling)
            assert tries == 3
            prepared = 0

            def prepare() -> None:
                nonlocal prepared
                prepared += 1
                if prepared < 3:
                    raise StorageFailed("no room")

            former = broker.partition(HERE, 0)
            broker.reopen(former, "its disk failed", prepare)
            await until(lambda: broker.hosted(HERE, 0) is not None and not broker._settling)
            assert prepared == 3
            assert former.closed
            assert not broker.failure.done()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_a_partition_that_was_recovered_from_another_log_begins_with_an_empty_log_of_its_own(
    tmp_path: Path, durability: str
) -> None:
    async def main() -> None:
        async with shell(tmp_path, isr=((2, "other"),)) as broker:
            topic = Topic.of(replace(HERE.spec, settings={"durability": durability}))
            broker.follow_topics({"id": topic})
            await until(lambda: broker.hosted(topic, 0) is not None)
            former = broker.partition(topic, 0)
            broker.start_over(former, 3)
            await until(lambda: broker.hosted(topic, 0) is not None and not broker._settling)
            partition = broker.partition(topic, 0)
            assert (partition.journal.first_index, partition.replica.identity.recovery) == (1, 3)
            assert partition.replica.identity.log_id != former.replica.identity.log_id
            assert not broker._begin_with

    asyncio.run(main())


def test_every_partition_hears_of_a_link_and_what_was_arriving_on_it_is_gone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Shell, partition: Partition) -> None:
        heard: list[object] = []
        part = pb.SnapshotPart(leader=2, part=0, parts=2, data=b"half")
        with monkeypatch.context() as patched:
            patched.setattr(partition, "feed", heard.append)
            broker.link_up(2)
            assert broker.arriving.take(part, 1 << 20) == []
            assert broker.arriving.bytes_kept == 4
            early = pb.AppendEntries(topic_id="other", leader=2, frame_bytes=[1])
            broker.hearer("other", 0).hear_entries(early, [memoryview(b"x")])
            assert len(broker.early) == 1
            broker.link_down(2)
            assert broker.arriving.bytes_kept == len(broker.early) == 0
            broker.link_dropped(2)
        assert heard == [PeerConnected(2), PeerDisconnected(2)], "who is awake sends again by itself"
        assert broker.hearer("id", 0) is partition.peers
        assert broker.hearer("id", 1) is broker.early

    run(tmp_path, scenario)


def test_a_topic_that_changes_while_its_replica_is_opened_is_the_one_that_the_replica_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with shell(tmp_path, isr=((1, ""),)) as broker:
            opening, may_open = asyncio.Event(), asyncio.Event()
            opens = broker._open

            async def slowly(topic: Topic, number: int) -> None:
                opening.set()
                await may_open.wait()
                await opens(topic, number)

            monkeypatch.setattr(broker, "_open", slowly)
            broker.follow_topics({"id": HERE})
            async with asyncio.timeout(20):
                await opening.wait()
            wider = Topic.of(replace(HERE.spec, assignment=((1, 2),)))
            broker.follow_topics({"id": wider})
            may_open.set()
            await until(lambda: not broker._settling)
            partition = broker.partition(wider, 0)
            assert partition.topic is wider
            assert partition.replica.replicas == (1, 2)

    asyncio.run(main())


def test_a_broker_that_is_closed_has_no_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Shell, partition: Partition) -> None:
        assert broker.partitions() == [partition]
        await broker.close(OutcomeUnknown("over"))
        assert partition.closed
        assert broker.partitions() == []
        assert broker.hosted(HERE, 0) is None

    run(tmp_path, scenario)
