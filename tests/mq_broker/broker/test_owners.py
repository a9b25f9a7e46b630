"""What belongs to the user who came first: the cursor by which a query shows how far it is, and a member of a group.
Whoever else may use the group, and knows the id, can neither move the one nor take the place of the other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, PermissionDenied
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.queues.members import Member, ranges
from tests.mq_broker.broker.queues.spoken import ack, speaking
from tests.mq_broker.broker.test_cursors import cursors, is_at, move

pytestmark = pytest.mark.usefixtures("named")

ANN, BOB = "User:ann", "User:bob"
KEY, OTHER_KEY = b"k" * 16, b"o" * 16


@contextlib.asynccontextmanager
async def with_both(data: Path, *, queue: bool = False) -> AsyncIterator[tuple[As, As, As]]:
    """A superuser, and two users who may read topic `t` in every group. `queue`: group `g` is a queue's."""
    async with judging(data) as broker:
        root = As(broker, ROOT)
        if not (await root.metadata("t")).topics:
            await root.create_topic("t")
            if queue:
                await root.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))
            kinds = ("Topic", "Group")
            rules = [
                pb.AclRule(principal=who, operation="Read", kind=kind, prefix=True)
                for who in (ANN, BOB)
                for kind in kinds
            ]
            await root.allow(*rules)
            await root.produce("t", *range(10))
        yield root, As(broker, ANN), As(broker, BOB)


async def are_denied(data: Path, expected: list[tuple[str, ...]]) -> bool:
    """As the audit log tells it, and nothing else."""
    lines = map(json.loads, (data / "audit.log").read_text().splitlines())
    told = ("principal", "method", "operation", "resource", "reason")
    return [tuple(line[name] for name in told) for line in lines if line["verdict"] == "denied"] == expected


# ---------------------------------------------------------------- cursors


async def moved(who: Broker, offset: int, **fields: object) -> pb.PartitionOffsets:
    return await move(who, offset, **{"kind": "spark", **fields})  # type: ignore[arg-type]


async def is_led_and_at(broker: Broker, offset: int) -> bool:
    """A new start tells cursors before its leader serves, and moves none until then."""
    return bool(await broker.end("t")) and await is_at(broker, offset)


@virtual_time
async def test_a_querys_cursor_is_moved_by_its_user_and_by_a_superuser_who_does_not_take_it(tmp_path: Path) -> None:
    attempts: list[dict[str, Any]] = [
        {},
        {"kind": "consumer", "member_id": "m"},
        {"kind": "ephemeral", "member_id": "m"},
        {"kind": "", "reset": True},
        {"kind": "", "reset": True, "unless_read": True},
    ]
    async with with_both(tmp_path) as (root, ann, bob):
        await moved(root, 1, reset=True)  # before the query is there
        await moved(ann, 4)
        await moved(root, 5)
        await moved(root, 3, kind="", reset=True)
        for fields in attempts:
            with pytest.raises(PermissionDenied, match="query of another user"):
                await moved(bob, 9, **fields)
            assert await cursors(root) == [(3, "spark")], fields
        await moved(ann, 2)
        await moved(ann, 6, reset=True)
        assert await cursors(root) == [(6, "spark")]
        reason = "the cursor is of another user's query, who moved it first"
        expected = [(BOB, "MoveCursors", "Read", "group 'g'", reason)] * len(attempts)
        await until(lambda: are_denied(tmp_path, expected))


@virtual_time
async def test_nobody_else_consumes_in_the_group_of_a_query(tmp_path: Path) -> None:
    """What it settles would move the query's cursor."""
    async with with_both(tmp_path) as (root, ann, bob):
        await moved(ann, 4)
        async with bob.subscribing() as theirs:
            await theirs.open("t", group="g", member="m", earliest=True)
            [opened] = await theirs.read_opened()
            error = from_wire(opened.error)
            assert isinstance(error, PermissionDenied)
            assert "query of another user" in str(error)
        reason = "the cursor is of another user's query, who moved it first"
        await until(lambda: are_denied(tmp_path, [(BOB, "Subscribe", "Read", "group 'g'", reason)]))
        async with ann.subscribing() as mine:
            await mine.open("t", group="g", member="m", earliest=True)
            [opened] = await mine.read_opened()
            assert (opened.active, opened.offset) == (True, 4)
            await mine.read_numbers(10)
            await mine.settle("t", 10)
            await until(lambda: is_at(root, 10))
        assert await cursors(root) == [(10, "consumer")]
        with pytest.raises(InvalidRequest, match="one of consumers"):
            await moved(bob, 9)


@virtual_time
async def test_owners_of_cursors_outlast_the_broker_and_do_not_count_where_rights_are_not_judged(
    tmp_path: Path,
) -> None:
    async with with_both(tmp_path) as (_, ann, _bob):
        await moved(ann, 4)
    async with with_both(tmp_path) as (root, ann, bob):
        await until(lambda: is_led_and_at(root, 4))
        with pytest.raises(PermissionDenied):
            await moved(bob, 5)
        await moved(ann, 5)
    async with standalone(tmp_path) as broker:
        await until(lambda: is_led_and_at(broker, 5))
        await moved(broker, 6)


# ---------------------------------------------------------------- members


async def members_of(root: Broker) -> list[tuple[str, int]]:
    request = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0])
    [told] = (await root.ask("DescribeQueue", request)).partitions
    return [(each.member, each.records) for each in told.members]


@virtual_time
async def test_nobody_else_settles_what_a_member_was_lent(tmp_path: Path) -> None:
    """Not at a later leader either, which knows no keys: whose a lease is, is in the journal."""
    async with with_both(tmp_path, queue=True) as (root, ann, bob):
        lent = await Member(ann, "m").lease(4, member_key=KEY)
        assert ranges(lent) == [0, 4]
        await _stays_anns(bob, lent.lease)
        assert await members_of(root) == [("m", 4)]
    async with with_both(tmp_path, queue=True) as (root, ann, bob):
        await until(lambda: members_of(root))
        await _stays_anns(bob, lent.lease)
        await Member(ann, "m").lease(0, wait_ms=0, member_key=KEY, held=[lent.lease])
        assert await members_of(root) == [("m", 4)], "the member goes on with what it has"
        await Member(ann, "m").ack(lent.lease, 0, 4)
        assert await members_of(root) == []


async def _stays_anns(bob: As, lease: pb.LeaseId) -> None:
    for outcome in (pb.OUTCOME_ACK, pb.OUTCOME_FAIL, pb.OUTCOME_REJECT, pb.OUTCOME_RELEASE, pb.OUTCOME_EXTEND):
        settle = pb.SettleOne(lease=lease, ranges=[0, 4], outcome=outcome)
        [answer] = await Member(bob, "m").settle(settle)
        assert list(answer.lost) == [0, 4], outcome


@virtual_time
async def test_nobody_else_takes_a_members_place(tmp_path: Path) -> None:
    async with with_both(tmp_path, queue=True) as (_, ann, bob), speaking(ann) as at_work, speaking(bob) as other:
        await at_work.open(member="m", records=4)
        mine = await at_work.lease()
        await other.open(member="m", records=3, key=OTHER_KEY)
        theirs = await other.lease()
        assert (ranges(mine), ranges(theirs)) == ([0, 4], [4, 3])
        await other.settle(ack(mine.lease, 0, 4))
        answered = await other.hear(lambda said: said.answers)
        assert list(answered.answers[0].answer.lost) == [0, 4]
        asked = await Member(bob, "m").lease(1, member_key=OTHER_KEY)  # ends the session of bob's, not ann's
        assert ranges(asked)
        await at_work.settle(ack(mine.lease, 0, 4))
        answered = await at_work.hear(lambda said: said.answers)
        assert answered.answers[0].answer == pb.SettleAnswer()


@virtual_time
async def test_a_process_of_the_same_user_takes_the_place_of_one_that_ended(tmp_path: Path) -> None:
    async with with_both(tmp_path, queue=True) as (_, ann, _bob):
        first = await Member(ann, "m").lease(4, member_key=KEY)
        second = await Member(ann, "m").lease(10, member_key=OTHER_KEY)
        assert ranges(first) == [0, 4]
        assert ranges(second)[0] < 4, "what the former process had is lent to it"


@virtual_time
async def test_nobody_else_takes_the_place_of_a_consumer(tmp_path: Path) -> None:
    async with with_both(tmp_path) as (root, ann, bob), ann.subscribing() as mine:
        await mine.open("t", group="g", member="m", earliest=True)
        assert await mine.read_numbers(10) == list(range(10))
        async with bob.subscribing() as theirs:
            await theirs.open("t", group="g", member="m", earliest=True)
            [opened] = await theirs.read_opened()
            assert not opened.active

            async def told() -> bool:
                cursors = (await root.ask("Groups", pb.GroupsRequest(group="g"))).cursors
                return [list(each.members) for each in cursors] == [["m", "m"]]

            await until(told)
            await root.produce("t", 10)
            assert await mine.read_numbers(11) == list(range(11))
            move = pb.MoveCursorsRequest(
                group="g",
                kind="consumer",
                member_id="m",
                member_key=b"k" * 16,
                positions=[pb.CursorPosition(topic="t", partition=0, offset=10)],
            )
            await bob.ask("MoveCursors", move)
            [cursor] = (await root.ask("Groups", pb.GroupsRequest(group="g"))).cursors
            assert cursor.offset == 0, "the word of another user's member does not count"
            await ann.ask("MoveCursors", move)
            [cursor] = (await root.ask("Groups", pb.GroupsRequest(group="g"))).cursors
            assert cursor.offset == 10


@virtual_time
async def test_attempts_on_members_are_denials_in_the_audit_log(tmp_path: Path) -> None:
    """Of one that settles, and of a consumer that moves a cursor in the name of another's member."""
    async with with_both(tmp_path, queue=True) as (_, ann, bob):
        lent = await Member(ann, "m").lease(4, member_key=KEY)
        await Member(bob, "m").settle(ack(lent.lease, 0, 4))
        await Member(ann, "m").ack(lent.lease, 0, 2)
        lent_to = "the records are lent to a member of another user"
        expected = [(BOB, "Work", "Read", "group 'g'", lent_to)]
        await until(lambda: are_denied(tmp_path, expected))
        async with ann.subscribing() as mine:
            await mine.open("t", group="h", member="m", earliest=True)
            await mine.read_numbers(10)
            position = pb.CursorPosition(topic="t", partition=0, offset=10)
            move = pb.MoveCursorsRequest(
                group="h", kind="consumer", member_id="m", member_key=KEY, positions=[position]
            )
            await bob.ask("MoveCursors", move)
        expected.append((BOB, "MoveCursors", "Read", "group 'h'", "the member is another user's"))
        await until(lambda: are_denied(tmp_path, expected))
