"""Names and texts that a stranger sends to a broker: those of new things are held to the rules, what exists stays
usable."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.broker.transactions import coordinator as transactions
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName, SchemaMismatch, StagedBatchMissing
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.often import look_every
from tests.virtual.world import in_virtual_time

UNSEEN = "pay\u200bments"


@virtual_time
async def test_a_topic_is_made_under_a_name_that_nobody_mistakes(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        for name in (UNSEEN, "a\u2028b", "cafe\u0301", "話" * 86, "a/b", "a\nb"):
            with pytest.raises(InvalidTopicName, match="topic name"):
                await broker.create_topic(name)
        for name in ("bad name!", "x*", ".hidden", "話題"):
            assert (await broker.create_topic(name)).name == name


@virtual_time
async def test_a_broker_may_allow_shorter_topic_names_only(tmp_path: Path) -> None:
    async with standalone(tmp_path, topic_name_max=32) as broker:
        await broker.create_topic("a" * 32)
        with pytest.raises(InvalidTopicName, match="has 33 characters: at most 32 bytes are allowed"):
            await broker.create_topic("a" * 33)
        with pytest.raises(InvalidTopicName, match="has 33 bytes in UTF-8: at most 32 are allowed"):
            await broker.create_topic("話" * 11)
    with pytest.raises(InvalidSetting, match="--topic-name-max=0 is out of range"):
        BrokerConfig(broker=1, listen="127.0.0.1:0", data_dir=tmp_path, topic_name_max=0)
    with pytest.raises(InvalidSetting, match="rack 'a"):
        BrokerConfig(broker=1, listen="127.0.0.1:0", data_dir=tmp_path, rack="a\nb")


@virtual_time
async def test_a_group_and_its_members_have_names_that_nobody_mistakes(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        place = pb.CursorPosition(topic="t", partition=0, offset=0)
        moved = await broker.ask(
            "MoveCursors", pb.MoveCursorsRequest(group=UNSEEN, kind="consumer", reset=True, positions=[place])
        )
        with pytest.raises(InvalidRequest, match=r"group name 'pay\\u200bments' has the character U\+200B"):
            raise from_wire(moved.partitions[0].error)
        async with broker.subscribing() as stream:
            await stream.open("t", group=UNSEEN, member="m")
            [opened] = await stream.read_opened()
            assert "group name" in opened.error.message
        for member in ("m" * 256, "a\nb", UNSEEN):
            async with broker.subscribing() as stream:
                await stream.open("t", group="g", member=member)
                with pytest.raises(InvalidRequest, match="member id"):
                    await stream.read_opened()


def _schema(name: str) -> pa.Schema:
    return pa.schema([pa.field("n", pa.int64()), pa.field("deep", pa.list_(pa.struct([pa.field(name, pa.int32())])))])


@virtual_time
async def test_columns_that_are_made_have_names_that_nobody_mistakes(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        for name in (UNSEEN, "a\nb", "cafe\u0301", "x" * 256):
            with pytest.raises(InvalidRequest, match="column name"):
                await broker.create_topic("t", schema=_schema(name))
        await broker.create_topic("t", schema=_schema("a/b, c"))
        more = pa.schema([*_schema("a/b, c"), pa.field(UNSEEN, pa.int32())])
        with pytest.raises(InvalidRequest, match="column name"):
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", schema=schema_to_bytes(more)))


@virtual_time
async def test_a_schema_whose_texts_are_no_utf8_or_that_has_extension_types_is_refused(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        zone = pa.schema([pa.field("n", pa.timestamp("us", tz="zone"))])
        for data in (
            schema_to_bytes(_schema("name")).replace(b"name", b"\xff\xfe\xfd\xfc"),
            schema_to_bytes(zone).replace(b"zone", b"\xff\xfe\xfd\xfc"),
            schema_to_bytes(pa.schema([pa.field("n", pa.uuid())])),
        ):
            request = pb.CreateTopicRequest(name="t", partitions=1, replicas=1, schema=data)
            with pytest.raises(InvalidRequest, match="the schema is no Arrow schema message"):
                await broker.ask("CreateTopic", request)


@virtual_time
async def test_a_name_that_cannot_be_there_is_not_looked_for_and_not_told_back_whole(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        endless = "話" * 100_000
        with pytest.raises(InvalidTopicName, match="has 100000 characters") as refused:
            await broker.metadata(endless)
        assert len(str(refused.value)) < 1_000
        with pytest.raises(InvalidTopicName):
            await broker.fetch(endless, 0, 1)
        await broker.produce("t", *range(3))
        with pytest.raises(SchemaMismatch) as missing:
            await broker.fetch("t", 0, 3, columns=[endless], project=True)
        assert len(str(missing.value)) < 1_000


def test_the_ids_of_a_query_a_sink_and_a_run_forge_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "mq_broker")
    look_every(monkeypatch, reap=0.05)
    monkeypatch.setattr(transactions, "REAP_AGE_S", 0.0)
    evil = "x\n12:00:00.000 ERROR mq_broker: all is lost\x1b[2J\u202e" + "y" * 500
    key = pb.TransactionKey(query_id=evil, sink=evil)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.metadata(TRANSACTIONS_TOPIC)
            await broker.produce("t", 1, stage=pb.StageOf(key=key, batch_id=0, run_id=evil))
            line = pb.StagedBatches(topic="t", partition=0, uuids=[b"u" * 16], row_count=1)
            request = pb.DecideRequest(key=key, batch_id=0, run_id=evil, row_count=1, manifest=[line])
            with pytest.raises(StagedBatchMissing, match=r"x\\n12:00:00.000 ERROR"):
                await broker.ask("Decide", request)
            name = b"w" * 16
            await broker.produce("t", 2, uuid=name, stage=pb.StageOf(key=key, batch_id=1, run_id=evil))
            line = pb.StagedBatches(topic="t", partition=0, uuids=[name], row_count=1)
            await broker.ask("Decide", pb.DecideRequest(key=key, batch_id=1, run_id=evil, row_count=1, manifest=[line]))
            await until(lambda: _nothing_is_staged(broker))
            place = pb.CursorPosition(topic="t", partition=0, offset=99)
            moved = await broker.ask("MoveCursors", pb.MoveCursorsRequest(group="g", kind="spark", positions=[place]))
            assert moved.partitions[0].error.message.isprintable()

    in_virtual_time(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert any("that lost" in text and "all is lost" in text for text in told)
    assert max(map(len, told)) < 1_000
    assert [text for text in told if not text.isprintable()] == []


async def _nothing_is_staged(broker: Broker) -> bool:
    return not (await broker.ask("Staged", pb.StagedRequest(topic="t"))).staged
