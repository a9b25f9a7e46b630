"""What a broker says of itself, gathered once for all who ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.metrics import observing as observing_module
from mq_broker.broker.metrics.observing import SLICE
from mq_broker.core.entries import SCHEDULED, TransactionKey
from mq_broker.core.machine.state import StagedBatch
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, InvalidTopicName
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.metrics.observed import holder, observing, part, topic

ALL = pb.ObserveRequest(detail=pb.PARTITIONS)


async def asked(observed: Any, request: pb.ObserveRequest = ALL) -> pb.ObserveResponse:
    answer: pb.ObserveResponse = await observed.observe(request, asyncio.get_running_loop().time() + 10)
    return answer


async def told_by(data: Path, *parts: Any, **more: Any) -> pb.ObserveResponse:
    return await asked(observing(data, *parts, **more))


@virtual_time
async def test_a_broker_tells_what_it_holds_in_as_much_detail_as_it_is_asked_for(tmp_path: Path) -> None:
    async with standalone(tmp_path, rack="r1") as broker:
        await broker.create_topic("a")
        await broker.create_topic("t", partitions=2)
        await broker.produce("t", 0, 1, 2)
        positions = [pb.CursorPosition(topic="t", partition=0, offset=1)]
        await broker.ask("MoveCursors", pb.MoveCursorsRequest(group="g", kind="spark", positions=positions))

        told = await broker.ask("Observe", pb.ObserveRequest())
        assert (told.broker, told.incarnation, told.state, told.coordination) == (1, 1, "serving", "file")
        assert (len(told.topics), len(told.partitions), told.cluster_id != "") == (0, 0, True)
        assert told.values["partitions_leader"] == 3
        assert 0 < told.values["disk_free_bytes"] < told.values["disk_size_bytes"]
        assert told.values["brokers_live"] == 1

        told = await until(lambda: told_of(broker, pb.TOPICS, records=3))
        assert [(row.name, row.led) for row in told.topics] == [("a", 1), ("t", 2)]
        assert told.topics[0].bytes == 0 < told.topics[1].bytes
        [group] = told.groups
        assert (group.group, group.topic, group.kind, group.lag, group.members) == ("g", "t", "spark", 2, 0)
        assert group.lag_bytes > 0
        assert group.lag_us > 0

        request = pb.ObserveRequest(detail=pb.PARTITIONS, topics=["t", "gone"])
        told = await broker.ask("Observe", request)
        assert [row.name for row in told.topics] == ["t"]
        assert [(row.topic, row.log_end_offset, row.leader, list(row.isr)) for row in told.partitions] == [
            ("t", 3, 1, [1]),
            ("t", 0, 1, [1]),
        ]


async def told_of(broker: Broker, detail: Any, records: int) -> pb.ObserveResponse | None:
    """Once the broker has looked again."""
    told: pb.ObserveResponse = await broker.ask("Observe", pb.ObserveRequest(detail=detail))
    return told if sum(row.records for row in told.topics) == records and told.groups else None


@virtual_time
async def test_what_no_broker_can_be_asked_is_refused(tmp_path: Path) -> None:
    observed = observing(tmp_path)
    with pytest.raises(InvalidTopicName):
        await asked(observed, pb.ObserveRequest(topics=["no topic\n"]))
    with pytest.raises(InvalidRequest, match="detail 9"):
        await asked(observed, pb.ObserveRequest(detail=9))  # type: ignore[arg-type]


def test_partitions_are_counted_by_their_role_and_by_what_they_lack(tmp_path: Path) -> None:
    parts = [
        part(number=0),
        part(number=1, isr=(1, 2), asleep=False),
        part(number=2, isr=(1,)),
        part(number=3, replicas=(1,), isr=(1,)),
        part(number=4, leader=2, serving=False, isr=()),
        part(number=5, leader=0, serving=False, isr=()),
        part(number=6, moving_to=(4, 5)),
    ]
    told = asyncio.run(told_by(tmp_path, *parts))
    assert {name: value for name, value in told.values.items() if name.startswith("partitions")} == {
        "partitions_leader": 5,
        "partitions_follower": 2,
        "partitions_without_leader": 1,
        "partitions_under_replicated": 2,
        "partitions_at_min_isr": 1,
        "partitions_under_min_isr": 1,
        "partitions_moving": 1,
        "partitions_awake": 1,
    }
    assert dict(told.links) == {2: True, 3: False}
    assert [(row.led, row.records, row.bytes) for row in told.topics] == [(5, 450, 22_500)]
    assert [list(row.moving_to) for row in told.partitions] == [[], [], [], [], [], [], [4, 5]]


def test_a_partition_has_no_leader_if_the_one_that_is_named_is_dead_or_does_not_serve(tmp_path: Path) -> None:
    parts = [
        part(number=0),
        part(number=1, leader=3, serving=False),  # a follower names a leader until another one is elected
        part(number=2, leader=4, serving=False),  # and broker 4 is dead
        part(number=3, leader=1, serving=False),  # what it needs to begin its epoch is on dead brokers
        part(number=4, leader=0, serving=False),
    ]
    told = asyncio.run(told_by(tmp_path, *parts))
    assert told.values["partitions_without_leader"] == 3


def test_partitions_all_of_whose_brokers_are_dead_are_counted_by_the_living(tmp_path: Path) -> None:
    topics = (
        topic("elsewhere", (2, 3), (3, 4), (4, 5), (6,)),  # the last two
        topic("here", (1, 4), (1, 4)),  # the second, which is not open
        topic("opening", (1, 2)),
    )
    told = asyncio.run(told_by(tmp_path, part("here", 0), topics=topics))
    assert told.values["partitions_without_leader"] == 3


def test_a_dead_replica_that_is_still_named_in_sync_does_not_count_as_one(tmp_path: Path) -> None:
    here = holder(part(number=0, isr=(1, 3)), part(number=1), part(number=2, isr=(1, 2)), live=(1, 2))
    told = asyncio.run(told_by(tmp_path, here=here)).values
    names = ("under_replicated", "at_min_isr", "under_min_isr")
    assert [told[f"partitions_{name}"] for name in names] == [3, 2, 1]


def test_what_is_staged_is_told_without_what_is_scheduled(tmp_path: Path) -> None:
    def batch(name: bytes, timestamp_us: int, due_us: int = 0) -> StagedBatch:
        key = SCHEDULED if due_us else TransactionKey("q", "t")
        return StagedBatch(name, key, 0, "", 1, 1, timestamp_us, 10, 10, due_us)

    parts = [
        part(number=0, staged=[batch(b"a", 5, due_us=9), batch(b"b", 70), batch(b"c", 80)]),
        part(number=1, staged=[batch(b"d", 60)]),
        part(number=2, staged=[batch(b"e", 1, due_us=2)]),
    ]
    told = asyncio.run(told_by(tmp_path, *parts))
    assert [(row.staged_batches, row.oldest_staged_us) for row in told.partitions] == [(2, 70), (1, 60), (0, 0)]
    assert [(row.staged_batches, row.oldest_staged_us) for row in told.topics] == [(3, 60)]


def test_a_group_is_told_of_once_a_topic_by_the_leaders_of_its_partitions(tmp_path: Path) -> None:
    parts = [
        part("t", 0, cursors={"g": 90, "h": 100}),
        part("t", 1, cursors={"g": 3}),  # its first records are gone
        part("t", 2, cursors={"g": 0}, serving=False),
        part("u", 0, cursors={"g": 99}),
    ]
    told = asyncio.run(told_by(tmp_path, *parts, members={"g": ["m1", "m2"]})).groups
    assert sorted((row.group, row.topic, row.members, row.lag, row.lag_us, row.moved_us) for row in told) == [
        ("g", "t", 2, 10 + 90, 97_000, 160),
        ("g", "u", 2, 1, 1_000, 169),
        ("h", "t", 0, 0, 0, 170),
    ]


@virtual_time
async def test_many_who_ask_at_once_cost_one_gathering_and_so_do_those_who_ask_soon_after(tmp_path: Path) -> None:
    here = holder(part())
    observed = observing(tmp_path, here=here)
    answers = await asyncio.gather(*(asked(observed) for _ in range(10)))
    answers.append(await asked(observed, pb.ObserveRequest()))
    assert (len({answer.now_us for answer in answers}), here.looked) == (1, 1)
    observed.state = "draining"  # that is not held back
    assert (await asked(observed)).state == "draining"
    assert here.looked == 2
    await asyncio.sleep(1)
    await asked(observed)
    assert here.looked == 3


def test_cursors_beyond_the_bound_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing_module, "CURSORS_MAX", 3)
    parts = [part(number=number, cursors={"g": 10, "h": 10}) for number in range(3)]
    told = asyncio.run(told_by(tmp_path, *parts))
    assert dict(told.left_out) == {"cursors": 3}
    assert [(row.group, row.lag) for row in told.groups] == [("g", 180), ("h", 90)]
    assert len(told.partitions) == 3


@virtual_time
async def test_what_does_not_fit_one_answer_is_counted_and_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [part(name, number, cursors={"g": 10}) for name in ("a", "b", "c") for number in range(2)]
    observed = observing(tmp_path, *parts)
    monkeypatch.setattr(observing_module, "ANSWER_BYTES_MAX", told_bytes := 12)
    told = await asked(observed)
    assert [row.name for row in told.topics] == ["a", "b"]
    assert told.topics[0].ByteSize() < told_bytes <= 2 * told.topics[0].ByteSize()
    assert told.left_out == {"topics": 1, "groups": 3, "partitions": 6}
    monkeypatch.setattr(observing_module, "ANSWER_BYTES_MAX", 120)
    told = await asked(observed, pb.ObserveRequest(detail=pb.PARTITIONS, topics=["c"]))
    assert [row.name for row in told.topics] == [row.topic for row in told.groups] == ["c"]
    assert [row.partition for row in told.partitions] == [0, 1]
    assert not told.left_out


@virtual_time
async def test_who_gives_up_does_not_end_the_gathering_for_others(tmp_path: Path) -> None:
    """Else who asks again and again with no patience has it begun anew each time, and it never ends."""
    here = holder(*(part(number=number) for number in range(2 * SLICE)))
    observed = observing(tmp_path, here=here)
    impatient = [asyncio.create_task(asked(observed)) for _ in range(3)]
    await asyncio.sleep(0)
    for each in impatient:
        each.cancel()
    told = await asked(observed)
    assert (len(told.partitions), here.looked) == (2 * SLICE, 1)
    impatient = [asyncio.create_task(asked(observed, pb.ObserveRequest(detail=pb.TOPICS))) for _ in range(3)]
    await asyncio.sleep(0)
    for each in impatient:
        each.cancel()
    first, second = await asyncio.gather(asked(observed), asked(observed))
    assert first is second  # told once


def test_a_leader_tells_for_how_long_it_has_not_heard_of_whom(tmp_path: Path) -> None:
    parts = [part(number=0, isr=(1,), unheard_ms={2: 500, 3: 9_000}), part(number=1), part(number=2, unheard_ms={2: 1})]
    told = asyncio.run(told_by(tmp_path, *parts)).partitions
    assert [dict(row.unheard_ms) for row in told] == [{2: 500, 3: 9_000}, {}, {2: 1}]


def test_a_disk_that_does_not_say_how_much_room_it_has_hides_nothing_else(tmp_path: Path) -> None:
    told = asyncio.run(told_by(tmp_path / "gone", part()))
    assert "disk_free_bytes" not in told.values
    assert told.values["partitions_leader"] == 1
