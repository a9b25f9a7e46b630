"""Who may move a group's cursor where, who may delete it, and how groups are listed: each answer for itself, with
stand-ins."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.groups.cursors import Groups
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import DeleteGroup, MoveCursor
from mq_broker.core.machine.state import Cursor
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import GroupInUse, InvalidRequest, NotEnoughReplicas, NotLeader, TritonMQError, UnknownPartition
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.groups.partitions import BEGUN, Led


class Part(Led):
    """Answers what it is asked at once."""

    def __init__(self, name: str = "t", number: int = 0, **kinds: str) -> None:
        super().__init__(number)
        self.name = f"{name}-{number}"
        self.topic = Topic.of(TopicSpec(name, "0" * 32, ((1,),)))
        self.cursors.update({group: Cursor(10, kind, 77) for group, kind in kinds.items()})
        self.serving = True
        self.asked: list[tuple[Any, float]] = []
        self.refuses: TritonMQError | None = None

    async def ask(self, operation: Any, deadline: float, *, for_anybody: bool = False) -> None:
        self.asked.append((operation, deadline))
        if self.refuses is not None:
            raise self.refuses

    def lag(self, offset: int) -> tuple[int, int]:
        return 1_000 + offset, 2_000 + offset


class World:
    """A broker with these partitions. `counting`: whether a member's word counts. `members`: of each group,
    everywhere."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.counting = True
        self.spoken: list[tuple[str, str, bytes, int]] = []
        self.members: dict[str, list[str]] = {}
        self.ended: list[tuple[str, str]] = []
        world: Any = self
        self.groups = Groups(
            world,
            world,
            lambda _part, group: self.members.get(group, []),
            self._counts,
            self._end,
            lambda *_: False,
            BEGUN,
        )

    def _counts(self, _part: object, group: str, member: str, key: bytes, offset: int) -> bool:
        self.spoken.append((group, member, key, offset))
        return self.counting

    def _end(self, part: Any, group: str, error: TritonMQError) -> None:
        assert "was deleted" in str(error)
        self.ended.append((part.name, group))

    async def get(self, name: str) -> Any:
        return name

    def leader(self, topic: str, number: int) -> Any:
        found = [part for part in self.parts if (part.topic.spec.name, part.number) == (topic, number)]
        if not found:
            raise UnknownPartition("none")
        if not found[0].serving:
            raise NotLeader("ask broker 2", 2)
        return found[0]

    def partitions(self) -> list[Any]:
        return list(reversed(self.parts))

    async def move(self, offset: int = 20, group: str = "g", number: int = 0, **fields: Any) -> pb.PartitionOffsets:
        position = pb.CursorPosition(topic="t", partition=number, offset=offset)
        fields = {"member_key": b"k" * 16, **fields}
        answer = await self.groups.move_cursors(pb.MoveCursorsRequest(group=group, positions=[position], **fields), 5.0)
        [told] = answer.partitions
        if told.HasField("error"):
            raise from_wire(told.error)
        return told


@pytest.mark.parametrize(
    ("present", "fields", "written"),
    [
        (None, {"kind": "consumer", "member_id": "a"}, MoveCursor("g", 20, "consumer", forward=True)),
        (None, {"kind": "ephemeral", "member_id": "a"}, MoveCursor("g", 20, "ephemeral", forward=True)),
        ("ephemeral", {"kind": "consumer", "member_id": "a"}, MoveCursor("g", 20, "ephemeral", forward=True)),
        ("spark", {"kind": "consumer", "member_id": "a"}, MoveCursor("g", 20, "consumer", forward=True)),
        (None, {"kind": "spark"}, MoveCursor("g", 20, "spark")),
        ("spark", {"kind": "spark"}, MoveCursor("g", 20, "spark")),
        (None, {"reset": True}, MoveCursor("g", 20, "consumer")),
        (None, {"reset": True, "kind": "spark"}, MoveCursor("g", 20, "spark")),
        ("spark", {"reset": True}, MoveCursor("g", 20, "spark")),
        ("consumer", {"reset": True, "kind": "spark"}, MoveCursor("g", 20, "consumer")),
        (None, {"reset": True, "kind": "consumer"}, MoveCursor("g", 20, "consumer")),
    ],
)
@virtual_time
async def test_what_is_written_for_whose_word(present: str | None, fields: dict[str, Any], written: MoveCursor) -> None:
    part = Part(**({"g": present} if present else {}))
    told = await World(part).move(**fields)
    assert part.asked == [(written, 5.0)]
    assert (told.log_end_offset, told.leader_epoch) == (100, 1)


@pytest.mark.parametrize(
    ("present", "fields", "words"),
    [
        (None, {}, "kind '' is not known"),
        (None, {"kind": "nobody"}, "kind 'nobody' is not known"),
        (None, {"kind": "nobody", "reset": True}, "kind 'nobody' is not known"),
        (None, {"kind": "consumer"}, "name the member"),
        (None, {"kind": "ephemeral"}, "name the member"),
        (None, {"kind": "spark", "group": ""}, "group name"),
        (None, {"kind": "spark", "group": "e\u0301"}, "looks like"),
        (None, {"kind": "consumer", "member_id": "a", "member_key": b"short"}, "key"),
        ("consumer", {"kind": "spark"}, "another kafka"),
        ("ephemeral", {"kind": "spark"}, "another kafka"),
    ],
)
@virtual_time
async def test_what_is_refused(present: str | None, fields: dict[str, Any], words: str) -> None:
    part = Part(**({"g": present} if present else {}))
    with pytest.raises(InvalidRequest, match=words):
        await World(part).move(**fields)
    assert part.asked == []


@virtual_time
async def test_a_members_word_that_does_not_count_is_no_error_and_is_not_written() -> None:
    part = Part(g="consumer")
    world = World(part)
    world.counting = False
    told = await world.move(kind="consumer", member_id="a", member_key=b"k" * 16)
    assert part.asked == []
    assert told.log_end_offset == 100
    assert world.spoken == [("g", "a", b"k" * 16, 20)]


@pytest.mark.parametrize("kinds", [{}, {"g": "consumer"}], ids=["no cursor yet", "a cursor"])
@virtual_time
async def test_an_administrator_may_ask_to_move_a_group_only_where_nobody_reads(kinds: dict[str, str]) -> None:
    part = Part(**kinds)
    world = World(part)
    world.members["g"] = ["a", "b"]
    with pytest.raises(GroupInUse, match=r"members in t-0 \(a, b\): stop them first, or move it by force"):
        await world.move(reset=True, unless_read=True)
    assert not part.asked
    await world.move(reset=True)
    assert len(part.asked) == 1, "insisted on"
    world.members.clear()
    await world.move(reset=True, unless_read=True)
    assert len(part.asked) == 2


@virtual_time
async def test_a_group_is_called_as_it_was_told_last_until_it_is_deleted() -> None:
    part = Part(g="spark")
    world = World(part)

    async def called() -> str:
        (cursor,) = (await world.groups.groups(pb.GroupsRequest(group="g"), 0.0)).cursors
        return cursor.label

    assert await called() == ""
    await world.move(kind="spark", label="orders")
    assert await called() == "orders"
    await world.move(kind="spark")
    assert await called() == "orders", "who does not name it leaves its name"
    part.refuses = NotEnoughReplicas("later")
    with pytest.raises(NotEnoughReplicas):
        await world.move(kind="spark", label="another")
    part.refuses = None
    with pytest.raises(InvalidRequest, match="do not show"):
        await world.move(kind="spark", label="two\nlines")
    assert await called() == "orders", "what is refused names nothing"
    await world.groups.delete_group(
        pb.DeleteGroupRequest(group="g", partitions=[pb.TopicPartition(topic="t", partition=0)]), 5.0
    )
    assert await called() == ""


@virtual_time
async def test_a_group_with_members_is_deleted_by_force_alone_and_they_are_told() -> None:
    part, other = Part(g="consumer"), Part(number=1)
    world = World(part, other)
    world.members["g"] = [f"m{number}" for number in range(7)]
    places = [pb.TopicPartition(topic="t", partition=number) for number in (0, 1)]
    answer = await world.groups.delete_group(pb.DeleteGroupRequest(group="g", partitions=places), 5.0)
    assert [told.error.code for told in answer.partitions] == [pb.GROUP_IN_USE] * 2
    assert "(m0, m1, m2, m3, m4)" in answer.partitions[0].error.message
    assert (part.asked, world.ended) == ([], [])
    answer = await world.groups.delete_group(pb.DeleteGroupRequest(group="g", partitions=places, force=True), 5.0)
    assert not any(told.HasField("error") for told in answer.partitions)
    assert (part.asked, world.ended) == ([(DeleteGroup("g"), 5.0)], [("t-0", "g"), ("t-1", "g")])
    world.members.clear()
    part.refuses = NotEnoughReplicas("later")
    answer = await world.groups.delete_group(pb.DeleteGroupRequest(group="g", partitions=places[:1]), 5.0)
    assert [told.error.code for told in answer.partitions] == [pb.NOT_ENOUGH_REPLICAS]
    with pytest.raises(InvalidRequest):
        await world.groups.delete_group(pb.DeleteGroupRequest(group=""), 5.0)
