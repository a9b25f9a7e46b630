"""What a queue group has decided reaches each partition in order and once. The group is a real one; who leads the
partitions is played."""

from __future__ import annotations

import asyncio
from typing import Any

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.letters.outbox import Outbox
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.work.steps import Begin, OutputLine, Reason, Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotEnoughReplicas, StagedBatchMissing, UnknownTopic
from mq_protocol.limits import OUTPUT_BATCHES_MAX
from mq_protocol.queues.work_keys import WorkPlace, query_id_of
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import TOPIC, Around, Group, Led

OUT, OTHER = (Topic.of(TopicSpec(name, number * 32, ((2,),) * 3)) for name, number in (("out", "1"), ("other", "2")))
REFUSED = NotEnoughReplicas("1 of 2")
LONG_S = 60.0


class World:
    """Group `g` of partition 4 of topic `t`, and the leaders of `out` and `other`, which are played."""

    def __init__(self) -> None:
        self.around: Any = Around(OUT, OTHER)
        self.outbox = Outbox(self.around, self.around, self.around)
        self.outbox.missing = self._missing
        self.missed: list[int] = []
        self.group = Group(led=Led(number=4))
        self.group.on_outbox = self.outbox.look
        self.n = 0

    def decide(self, uuids: bytes | tuple[bytes, ...], topic: Topic = OUT, life: int = 1) -> None:
        """An entry is committed with these outputs for partition 2: the names of batches, one byte each."""
        self.n += 1
        names = tuple(bytes([each]) for each in uuids) if isinstance(uuids, bytes) else uuids
        line = OutputLine(topic.spec.topic_id, 2, names)
        self.group.led.apply("g", life, Send((), Reason.OUTPUT, self.n, (line,)))
        self.group.led_group.wake()

    async def _missing(self, _: object, n: int) -> None:
        self.missed.append(n)

    @property
    def asked(self) -> list[tuple[str, int, bytes]]:
        """Topic, number, and the names together."""
        return [(each.topic, each.batch_id, b"".join(each.uuids)) for each in self.around.of("Publish")]

    @property
    def alarm(self) -> str:
        return self.outbox.alarm("t-4", "g")


@virtual_time
async def test_decisions_that_wait_together_are_one_request_with_the_highest_number() -> None:
    world = World()
    world.around.holds["Publish"] = asyncio.Event()
    world.decide(b"a")
    await asyncio.sleep(LONG_S)
    world.decide(b"bc")
    world.decide(b"d")
    await asyncio.sleep(LONG_S)
    assert world.asked == [("out", 1, b"a")], "one request at a time, since numbers are taken in order"
    world.around.holds["Publish"].set()
    await asyncio.sleep(LONG_S)
    assert world.asked[1:] == [("out", 3, b"bcd")]
    assert (world.group.state.outbox, world.alarm) == ({}, ""), "and the journal says so"
    world.decide(b"e")
    await asyncio.sleep(LONG_S)
    assert world.asked[2:] == [("out", 4, b"e")]
    [request, *_] = world.around.of("Publish")
    place = WorkPlace(TOPIC.spec.topic_id, 4, "g")
    assert (request.key, request.partition, request.topic_id) == (
        pb.TransactionKey(query_id=query_id_of(place), sink="out"),
        2,
        OUT.spec.topic_id,
    )


@virtual_time
async def test_a_request_has_no_more_batches_than_it_may_and_one_decision_at_least() -> None:
    world = World()
    for count in (OUTPUT_BATCHES_MAX - 1, 1, 1, OUTPUT_BATCHES_MAX + 1, 1):
        world.decide((b"u",) * count)
    await asyncio.sleep(LONG_S)
    assert [(n, len(uuids)) for _, n, uuids in world.asked] == [
        (2, OUTPUT_BATCHES_MAX),
        (3, 1),
        (4, OUTPUT_BATCHES_MAX + 1),
        (5, 1),
    ]
    assert not world.group.state.outbox


@virtual_time
async def test_a_partition_that_does_not_take_them_holds_up_no_other_and_is_told_of_if_that_lasts() -> None:
    world = World()
    world.around.says["Publish"] = [REFUSED] * 3
    world.decide(b"a")
    await asyncio.sleep(0.1)
    assert world.alarm == "", "it may pass"
    await asyncio.sleep(LONG_S)
    assert ({uuids for _, _, uuids in world.asked}, world.group.state.outbox) == ({b"a"}, {})
    world.around.says["Publish"] = [REFUSED] * 1_000
    world.decide(b"b")
    await asyncio.sleep(10)
    assert world.alarm == "1 of 2"
    world.around.on_ask = lambda _, request: world.around.says.update(
        Publish=[None if request.topic == "other" else REFUSED]
    )
    world.decide(b"c", OTHER)
    await asyncio.sleep(10)
    assert list(world.group.state.outbox) == [2]
    world.around.on_ask = lambda *_: None
    await asyncio.sleep(10)
    assert (world.alarm, world.group.state.outbox) == ("", {}), "it is asked until it takes them"


@virtual_time
async def test_a_batch_that_is_missing_holds_up_only_what_comes_after_it_and_is_told_at_once() -> None:
    world = World()
    # together, the first one alone, the others together, the second one alone
    missing = StagedBatchMissing("b")
    world.around.says["Publish"] = [missing, None, missing, missing]
    for uuids in (b"a", b"b", b"c"):
        world.decide(uuids)
    await asyncio.sleep(1)
    assert [(n, uuids) for _, n, uuids in world.asked] == [(3, b"abc"), (1, b"a"), (3, b"bc"), (2, b"b")]
    assert world.missed == [2], "whoever can make it again is asked to"
    assert "number 2 is not there any more: b" in world.alarm
    goes = asyncio.Event()
    world.around.on_ask = lambda _, request: request.uuids == [b"c"] and world.around.holds.update(Publish=goes)
    await asyncio.sleep(LONG_S)
    assert (world.alarm, list(world.group.state.outbox)) == ("", [3]), "no more once it is there again"
    goes.set()
    await asyncio.sleep(LONG_S)
    assert (world.alarm, world.group.state.outbox) == ("", {})


@virtual_time
async def test_a_topic_that_is_not_known_yet_is_waited_for_and_one_that_is_gone_counts_as_published() -> None:
    for known, says in ((False, None), (True, UnknownTopic("deleted meanwhile"))):
        world = World()
        if not known:
            world.around.unknown.add(OUT.spec.topic_id)
        world.around.says["Publish"] = [says] * 1_000
        world.decide(b"a")
        await asyncio.sleep(LONG_S)
        assert list(world.group.state.outbox) == [1]
        assert "has not heard of it yet" in world.alarm
        world.around.gone.add(OUT.spec.topic_id)
        await asyncio.sleep(LONG_S)
        assert (world.group.state.outbox, world.alarm) == ({}, "")


@virtual_time
async def test_who_leads_no_more_sends_nothing_more_and_a_new_life_of_the_group_sends_only_its_own() -> None:
    world = World()
    world.around.says["Publish"] = [REFUSED] * 1_000
    world.decide(b"a")
    await asyncio.sleep(LONG_S)
    world.group.declare(life=2)
    world.group.led.apply("g", 2, Begin(0))
    asked = len(world.asked)
    await asyncio.sleep(LONG_S)
    assert len(world.asked) == asked
    world.decide(b"b", life=2)
    await asyncio.sleep(LONG_S)
    assert {uuids for _, _, uuids in world.asked[asked:]} == {b"b"}
    world.group.led_group.close(world.group.led.not_leader())
    await asyncio.sleep(LONG_S)
    asked = len(world.asked)
    await asyncio.sleep(LONG_S)
    assert (len(world.asked), world.alarm) == (asked, "")
