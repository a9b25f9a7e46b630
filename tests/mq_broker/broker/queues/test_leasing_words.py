"""What members may ask and what becomes of it, before and after the group has judged it; the group is played."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.asked import DELAY_MS_MAX, NAMED_MAX, Asked
from mq_broker.broker.queues.leasing import Leasing
from mq_broker.broker.queues.requests import Asking, Extend, Item, Lent
from mq_broker.core.work.settling import Ack, Answer, Failed, Rejected, Release, Settle
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import LeaseId, OutputLine
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import from_wire
from mq_protocol.errors import InvalidRequest, NotLeader, StagedBatchMissing, TritonMQError, UnknownTopic
from mq_protocol.queue_settings import LEASE_MS_CEILING, LEASE_MS_FLOOR, MEMBER_PRIORITY_MAX
from tests.mq_broker.broker.queues.partitions import scenario

EPOCH, END = 3, 100
LEASE = pb.LeaseId(leader_epoch=EPOCH, entry=7, step=1)


class World:
    """Partition 0 of topic `t`, in which the group lends `lent` and answers `answers`."""

    def __init__(self) -> None:
        self.lent = Lent()
        self.answers: list[Answer] = []
        self.asked: list[tuple[Asking, float, float]] = []
        self.settled: list[tuple[Sequence[Item], float]] = []
        self.refused: dict[int, TritonMQError] = {}
        self.renewed = "id"
        state = WorkState(1, 0)
        state.taken["m"] = 41
        partition = SimpleNamespace(
            name="t-0",
            next_offset=END,
            replica=SimpleNamespace(leader_epoch=EPOCH, machine=SimpleNamespace(work={"g": state})),
        )
        shell: Any = SimpleNamespace(leader=lambda topic, number: partition)
        topics: Any = SimpleNamespace(get=self._get, renewed=self._renewed)
        declared: Any = SimpleNamespace(get=lambda _, group: None)
        working: Any = SimpleNamespace(lent=self._lent, settled=self._settled)
        outputs: Any = SimpleNamespace(check=self._check)
        self.asks = Asked(shell, topics, declared)
        self.leasing = Leasing(self.asks, working, outputs)

    async def lease(self, *, deadline_s: float = 10.0, **fields: Any) -> pb.LeaseResponse:
        request = pb.LeaseRequest(
            topic="t", group="g", **{"member": "m", "member_key": b"k" * 16, "records_max": 5, **fields}
        )
        self.began = asyncio.get_running_loop().time()
        return await self.leasing.lease(request, self.began + deadline_s)

    async def settle(self, *settles: pb.SettleOne, deadline_s: float = 10.0, **fields: Any) -> list[pb.SettleAnswer]:
        self.began = asyncio.get_running_loop().time()
        request = pb.SettleRequest(topic="t", group="g", member="m", settles=settles, **fields)
        return list((await self.leasing.settle(request, self.began + deadline_s)).answers)

    async def items(self, *settles: pb.SettleOne) -> list[Item]:
        await self.settle(*settles)
        return list(self.settled[-1][0])

    async def _get(self, name: str) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(topic_id="id"))

    async def _renewed(self, topic: Any) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(topic_id=self.renewed))

    async def _lent(self, partition: Any, group: str, asking: Asking, wait_until: float, deadline: float) -> Lent:
        assert (partition.name, group) == ("t-0", "g")
        self.asked.append((asking, wait_until, deadline))
        return self.lent

    async def _settled(self, partition: Any, group: str, items: Sequence[Item], until: float) -> Sequence[Answer]:
        assert (partition.name, group) == ("t-0", "g")
        self.settled.append((items, until))
        return self.answers or [Answer() for _ in items]

    async def _check(self, partition: Any, group: str, member: str, settle: pb.SettleOne, until: float) -> None:
        assert (group, member) == ("g", "m")
        if settle.number in self.refused:
            raise self.refused[settle.number]


def one(*gaps: int, **fields: Any) -> pb.SettleOne:
    return pb.SettleOne(lease=LEASE, ranges=gaps or (0, 1), **fields)


@scenario
async def test_the_time_of_a_lease_has_bounds_and_0_is_the_groups() -> None:
    world = World()
    for lease_ms in (0, LEASE_MS_FLOOR, LEASE_MS_CEILING):
        await world.lease(lease_ms=lease_ms)
    for lease_ms in (1, LEASE_MS_FLOOR - 1, LEASE_MS_CEILING + 1):
        with pytest.raises(InvalidRequest, match="is not allowed"):
            await world.lease(lease_ms=lease_ms)
    assert len(world.asked) == 3


@scenario
async def test_a_topic_that_was_made_again_is_another_one_and_one_that_is_not_read_yet_is_read() -> None:
    world = World()
    await world.lease(topic_id="id")
    world.renewed = "new"
    await world.lease(topic_id="new")
    for ask in (world.lease, world.settle):
        with pytest.raises(UnknownTopic, match="made again"):
            await ask(topic_id="former")


@scenario
async def test_leases_of_a_later_leader_are_judged_by_that() -> None:
    world = World()
    later = pb.LeaseId(leader_epoch=EPOCH + 1)
    with pytest.raises(NotLeader):
        await world.lease(held=[LEASE, later])
    with pytest.raises(NotLeader):
        await world.settle(one(), pb.SettleOne(lease=later, ranges=[0, 1]))
    assert (world.asked, world.settled) == ([], [])


@scenario
async def test_a_question_that_cannot_be_meant_reaches_no_group() -> None:
    world = World()
    batches = pb.StagedBatches(topic="out")
    for fields in (
        {"member": ""},
        {"member": "a/b"},
        {"member": "x" * 300},
        {"member_key": b"short"},
        {"member_key": b"x" * 65},
        {"priority": MEMBER_PRIORITY_MAX + 1},
        {"settles": [one(0, END + 1)]},
        {"settles": [one(outcome=pb.OUTCOME_EXTEND)]},
        {"settles": [one(number=1)]},
        {"settles": [one(outputs=[batches])]},
    ):
        with pytest.raises(InvalidRequest):
            await world.lease(**fields)
    assert (world.asked, world.settled) == ([], [])


@scenario
async def test_each_outcome_is_what_it_says() -> None:
    world = World()
    items = await world.items(
        one(1, 2, 3, 1),
        one(outcome=pb.OUTCOME_RELEASE),
        one(outcome=pb.OUTCOME_RELEASE, delay_ms=3),
        one(outcome=pb.OUTCOME_FAIL, error="boom"),
    )
    assert [item.ranges for item in items] == [((1, 3), (6, 7)), ((0, 1),), ((0, 1),), ((0, 1),)]
    assert all((item.lease, item.member) == (LeaseId(EPOCH, 7, 1), "m") for item in items)
    outcomes = [item.outcome for item in items if isinstance(item, Settle)]
    assert outcomes == [Ack(), Release(0), Release(3_000), Failed("boom", None)]
    items = await world.items(
        one(outcome=pb.OUTCOME_FAIL, delay_ms=0),
        one(outcome=pb.OUTCOME_FAIL, delay_ms=DELAY_MS_MAX),
        one(outcome=pb.OUTCOME_REJECT, error="x" * 500),
        one(outcome=pb.OUTCOME_EXTEND),
    )
    assert isinstance(items[3], Extend)
    failed, late, rejected = [item.outcome for item in items if isinstance(item, Settle)]
    assert (failed, late) == (Failed("", 0), Failed("", DELAY_MS_MAX * 1_000))
    assert isinstance(rejected, Rejected)
    assert len(rejected.error.encode()) <= 256


@pytest.mark.parametrize(
    ("settle", "why"),
    [
        (one(0), "has no length"),
        (one(0, END + 1), "beyond the end"),
        (one(error="x"), "leave it out"),
        (one(outcome=pb.OUTCOME_RELEASE, error="x"), "leave it out"),
        (one(outcome=pb.OUTCOME_EXTEND, error="x"), "leave it out"),
        (one(delay_ms=0), "leave it out"),
        (one(outcome=pb.OUTCOME_REJECT, delay_ms=1), "leave it out"),
        (one(outcome=pb.OUTCOME_FAIL, delay_ms=DELAY_MS_MAX + 1), "too long"),
        (one(outcome=77), "is not known"),
        (one(number=1), "outputs"),
    ],
)
def test_what_cannot_be_is_refused_with_all_that_comes_with_it(settle: pb.SettleOne, why: str) -> None:
    @scenario
    async def run() -> None:
        world = World()
        with pytest.raises(InvalidRequest, match=why):
            await world.settle(one(), settle)
        assert world.settled == []

    run()


@scenario
async def test_a_request_names_a_record_so_often_and_extensions_count_for_themselves() -> None:
    world = World()
    often = [one(at, 5) for at in range(NAMED_MAX)]
    await world.settle(*often, *(one(at, 5, outcome=pb.OUTCOME_EXTEND) for at in range(NAMED_MAX)))
    await world.settle(*often, one(NAMED_MAX + 10, 5), one(5, 1), one(6, 1))
    for more in (one(4, 1), one(3, 9)):
        with pytest.raises(InvalidRequest, match="at most 4 times"):
            await world.settle(*often, more)
    with pytest.raises(InvalidRequest, match="offset 0 more often"):
        await world.settle(*[one(outcome=pb.OUTCOME_EXTEND)] * (NAMED_MAX + 1))


@scenario
async def test_outputs_that_cannot_be_published_are_refused_at_their_place_and_the_rest_is_done() -> None:
    world = World()
    batches = pb.StagedBatches(topic="out", topic_id="1" * 32, partition=3, uuids=[b"u" * 16])
    settles = [one(at, 1, outputs=[batches] if number else [], number=number) for at, number in enumerate((0, 5, 6, 0))]
    world.refused[5] = StagedBatchMissing("gone")
    world.answers = [Answer(), Answer(lost=((2, 3),)), Answer(error=InvalidRequest("never"))]
    told = await world.settle(*settles)
    [items] = [items for items, _ in world.settled]
    assert [item.ranges for item in items] == [((0, 1),), ((2, 3),), ((3, 4),)]
    assert isinstance(items[1], Settle)
    assert getattr(items[1].outcome, "lines", None) == (OutputLine("1" * 32, 3, (b"u" * 16,)),)
    errors = [type(from_wire(each.error)) if each.HasField("error") else None for each in told]
    assert errors == [None, StagedBatchMissing, None, InvalidRequest]
    assert list(told[2].lost) == [2, 1]
