"""A topic that the coordination service would not take is refused before it is written, and the broker's session
lives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.broker.administration.topic_changes import begun, called_off
from mq_broker.coordination.documents import check_topic_size
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import MEMBERS_MAX, TOPIC_DOCUMENT_BYTES_MAX
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import Broker
from tests.mq_broker.coordination.wire import LASTING_MS, Heard, id_of, state_of

WIDE = pa.schema([pa.field(f"{n:04}" + "x" * 196, pa.int64()) for n in range(3_200)])


@real_time
async def test_a_schema_that_zookeeper_does_not_take_is_refused_and_the_session_lives(
    zookeeper: str, tmp_path: Path
) -> None:
    config = BrokerConfig(
        1, "127.0.0.1:0", tmp_path / "data", zookeeper=zookeeper + "/large-documents", session_timeout_ms=LASTING_MS
    )
    broker = await Broker(config).start()
    try:
        await broker.create_topic("t", schema=pa.schema(list(WIDE)[:2]))
        says = "bytes in the coordination service, and at most 524288 are allowed: .* Give it fewer columns"
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=says):
                await broker.create_topic("wide", schema=WIDE)
            with pytest.raises(InvalidRequest, match=says):
                await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", schema=schema_to_bytes(WIDE)))
        info = (await broker.ask("Metadata", pb.MetadataRequest(all_topics=True))).topics
        assert [(topic.name, [p.leader for p in topic.partitions]) for topic in info] == [("t", [1])]
        assert (await broker.create_topic("wide")).name == "wide", "nothing of it was left"
    finally:
        await broker.stop()


@real_time
async def test_what_reaches_zookeeper_is_bounded_whoever_writes_it(zookeeper: str) -> None:
    service, heard = CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root="/bounded")), Heard()
    await service.start(heard)
    spec = TopicSpec("t", id_of("t"), ((1,),))
    with pytest.raises(InvalidRequest, match="bytes are more than the coordination service takes"):
        await service.create_topic(replace(spec, schema=b"x" * 800_000), (state_of(),))
    await service.create_topic(spec, (state_of(),))
    with pytest.raises(InvalidRequest, match="bytes are more than the coordination service takes"):
        await service.update_topic(0, replace(spec, schema=b"x" * 800_000))
    large = [replace(state_of(), token="t" * 128, isr=tuple((b, "l" * 128) for b in range(1, MEMBERS_MAX + 1)))] * 300
    await service.create_topic(TopicSpec("many", id_of("many"), ((1,),) * 300), (state_of(),) * 300)
    written = await asyncio.gather(*(service.write_state(id_of("many"), n, 0, state) for n, state in enumerate(large)))
    assert [version for _, version in written] == [1] * 300
    assert await service.read_state(id_of("many"), 299) == (1, large[299])
    assert heard.events == [
        event for event in heard.events if "lost" not in event.value and "suspended" not in event.value
    ]
    await service.stop()


def test_a_document_that_is_too_large_already_may_shrink() -> None:
    large = TopicSpec("t", id_of("t"), ((1, 2),), schema=b"x" * TOPIC_DOCUMENT_BYTES_MAX)
    with pytest.raises(InvalidRequest):
        check_topic_size(large)
    with pytest.raises(InvalidRequest):
        check_topic_size(replace(large, settings={"durability": "os"}), large)
    check_topic_size(replace(large, assignment=((1,),)), large)


def test_a_partition_that_is_sent_on_and_on_before_it_arrives_has_a_bound() -> None:
    spec, live = TopicSpec("t", id_of("t"), ((1, 2, 3),)), range(1, 200)
    for first in range(4, MEMBERS_MAX - 2, 3):
        spec = begun(spec, {0: (first, first + 1, first + 2)}, live)
    assert len(spec.assignment[0]) <= MEMBERS_MAX
    with pytest.raises(
        InvalidRequest, match=r"t-0 is on 6\d brokers, since it was sent on before it had arrived: wait"
    ):
        begun(spec, {0: (100, 101, 102)}, live)
    assert called_off(spec, [0]).moving[0].target == (1, 2, 3)
