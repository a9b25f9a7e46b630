"""A member that has a partition and does nothing with it: an operator is told, and it gives way where the topic says
so. Members are stand-ins and the time is an argument; at the end a whole broker."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from mq_broker.broker.groups.sharing import IDLE_ALARM_MS
from mq_broker.measured import ALARMS
from mq_protocol.partitioner import member_of_partition
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import standalone
from tests.mq_broker.broker.groups.test_sharing import Case, Reader
from tests.virtual.world import in_virtual_time

IDLE_MS = 5_000


def told() -> float:
    return ALARMS.rows()["member_idle",]


def joined(case: Case, *names: str, position: int = 5) -> list[Reader]:
    """Members; the first one has the partition, holds what is between 0 and `position`, and is alone at first."""
    members = [Reader(name) for name in names]
    for member in members:
        case.share.join(member)
        if member is members[0]:
            member.position = position
    return members


@virtual_time
async def test_a_member_that_has_nothing_to_do_keeps_the_partition_for_ever(case: Case) -> None:
    a, b = joined(case, "a", "b")
    a.position = case.led.next_offset
    case.settles(a, a.position)
    before = told()
    for now_ms in (0, 10**6, 10**9):
        case.share.look(now_ms, IDLE_MS)
    assert (a.told, b.told, told()) == (["activate 0"], [], before)
    case.led.next_offset += 1  # it is idle from when there is something
    case.share.look(10**9, IDLE_MS)
    case.share.look(10**9 + IDLE_MS - 1, IDLE_MS)
    assert a.told == ["activate 0"]
    case.share.look(10**9 + IDLE_MS, IDLE_MS)
    assert a.told[-1] == "deactivate"


@virtual_time
async def test_without_the_setting_an_operator_is_told_once_and_nobody_gives_way(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    a, b = joined(case, "a", "b")
    before = told()
    for now_ms in range(0, 4 * IDLE_ALARM_MS, 1_000):
        case.share.look(now_ms, None)
        assert told() - before == (now_ms >= IDLE_ALARM_MS)
    assert (a.told, b.told) == (["activate 0"], [])
    [line] = [record.getMessage() for record in caplog.records if "nothing for" in record.getMessage()]
    assert "t-0: member 'a' of group 'g' has taken and settled nothing for 60 s, from offset 0 on" in line
    case.settles(a, 1)
    case.share.look(10**9, None)
    case.share.look(10**9 + IDLE_ALARM_MS, None)
    assert told() - before == 2, "it did something, and stands still again"


@virtual_time
async def test_who_is_alone_keeps_the_partition_and_an_operator_is_told(case: Case) -> None:
    [a] = joined(case, "a")
    before = told()
    case.share.look(0, IDLE_MS)
    case.share.look(IDLE_ALARM_MS, IDLE_MS)
    assert (a.told, told() - before) == (["activate 0"], 1)
    b = Reader("b")
    case.share.join(b)
    case.share.look(IDLE_ALARM_MS + 1, IDLE_MS)
    assert (a.told[-1], b.told) == ("deactivate", ["activate 0"])


@virtual_time
async def test_who_gave_way_is_passed_over_until_it_comes_anew_or_nobody_else_is_left(case: Case) -> None:
    a, b = joined(case, "a", "b")
    case.share.look(0, IDLE_MS)
    case.share.look(IDLE_MS, IDLE_MS)
    c = Reader("c")
    case.share.join(c)
    assert (a.told[-1], b.told, c.told) == ("deactivate", ["activate 0"], [])
    case.share.join(again := Reader("a"))  # a stream of its own, so it lives
    assert (again.told, b.told) == (["activate 0"], ["activate 0", "deactivate"])
    again.position = 5
    case.share.look(IDLE_MS, IDLE_MS)
    case.share.look(2 * IDLE_MS, IDLE_MS)
    assert b.told[-1] == "activate 0"
    case.share.leave(c)
    case.share.leave(b)
    assert again.told == ["activate 0", "deactivate", "activate 0"], "nobody else is left"


@virtual_time
async def test_at_any_time_one_member_has_the_partition_and_it_is_one_that_lives(case: Case) -> None:
    """Members come, go, work and hang by chance. Who hangs has it no longer than that while somebody works."""
    chance = random.Random(7)
    members: dict[str, Reader] = {}
    hanging: set[str] = set()
    former, looks = Reader("nobody"), 0
    for step in range(3_000):
        now_ms = step * 1_000
        name = chance.choice("abcde")
        match chance.randrange(12):
            case 0 if name not in members:
                members[name] = Reader(name)
                case.share.join(members[name])
            case 1 if name in members:
                case.share.leave(members.pop(name))
                hanging.discard(name)
            case 2 if name in members:
                hanging.add(name)
        owners = [each for each in members.values() if each.told and each.told[-1] != "deactivate"]
        assert len(owners) == (1 if members else 0)
        if owners:
            [owner] = owners
            is_paused = owner.told[-1] == "pause"
            if owner.member_id not in hanging:
                owner.position = case.led.next_offset = case.led.next_offset + (not is_paused)
                case.settles(owner, owner.position - (not is_paused))
            elif is_paused:
                case.share._switch()  # its time to settle is over
                continue
            others = members.keys() - hanging - case.share._passed_over
            stands_in_the_way = owner.member_id in hanging and others and owner.settled < case.led.next_offset
            looks = looks + 1 if stands_in_the_way and owner is former else 0
            former = owner
            assert looks <= IDLE_MS // 1_000 + 1
        case.share.look(now_ms, IDLE_MS)


def test_at_a_broker_the_next_member_is_pushed_what_one_that_hangs_has_not_settled(tmp_path: Path) -> None:
    assert member_of_partition(["a", "b"], 0) == "a"

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", member_idle_ms="3s")
            for number in range(4):
                await broker.produce("t", number)
            async with broker.subscribing() as hangs, broker.subscribing() as works:
                await hangs.open("t", group="g", member="a", earliest=True)
                assert await hangs.read_numbers(4) == [0, 1, 2, 3]
                await hangs.settle("t", 2)
                await works.open("t", group="g", member="b", earliest=True)
                assert await works.read_numbers(2) == [2, 3]
                assert [told.active for told in await hangs.read_opened(2)] == [True, False]

    in_virtual_time(scenario())
