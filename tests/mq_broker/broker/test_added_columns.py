"""What a broker takes of producers, and sends to readers, that know another version of a topic's schema than the
present one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch, schema_fingerprint, schema_to_bytes
from mq_protocol.errors import CorruptBatch, InvalidRequest, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import SCHEMA, Broker, rows, standalone, until
from tests.virtual.world import in_virtual_time

LONGER = pa.schema([*SCHEMA, pa.field("word", pa.string())])


async def alter(broker: Broker, schema: pa.Schema) -> pb.TopicInfo:
    request = pb.AlterTopicRequest(name="t", schema=schema_to_bytes(schema))
    info: pb.TopicInfo = (await broker.ask("AlterTopic", request)).topic
    return info


async def produced(broker: Broker, batch: pa.RecordBatch, schema: pa.Schema, count: int = 1) -> int:
    async with broker.producing() as stream:
        await stream.send("t", encode_batch(batch), count, schema_fingerprint=schema_fingerprint(schema))
        result = await stream.result()
    if result.HasField("error"):
        raise from_wire(result.error)
    return int(result.base_offset)


def test_batches_of_each_version_that_the_topic_has_had_are_taken_and_no_others(tmp_path: Path) -> None:
    longer = pa.RecordBatch.from_pylist([{"n": 1, "s": "x", "word": "w"}], schema=LONGER)
    beginning = pa.schema([SCHEMA.field("n")])

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            with pytest.raises(SchemaMismatch, match="was not encoded with the schema"):
                await produced(broker, longer, LONGER)
            info = await alter(broker, LONGER)
            assert (info.schema, list(info.earlier_columns)) == (schema_to_bytes(LONGER), [2])
            assert await produced(broker, rows(0), SCHEMA) == 0
            assert await produced(broker, longer, LONGER) == 1
            with pytest.raises(SchemaMismatch, match="columns"):
                await produced(broker, longer, SCHEMA)
            with pytest.raises((SchemaMismatch, CorruptBatch)):
                await produced(broker, rows(0), LONGER)
            with pytest.raises(SchemaMismatch):
                await produced(broker, rows(0).select(["n"]), beginning)
            assert await alter(broker, LONGER) == info, "asked again it is the same"
        async with standalone(tmp_path) as broker:
            await until(lambda: produced(broker, rows(2), SCHEMA))
            assert await broker.end("t") == 3, "versions outlast a restart"

    in_virtual_time(scenario())


def test_batches_are_stored_as_they_come_and_cut_for_readers_as_the_newest_version(tmp_path: Path) -> None:
    longer = pa.RecordBatch.from_pylist([{"n": 1, "s": "x", "word": "w"}], schema=LONGER)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await produced(broker, rows(0), SCHEMA)
            await alter(broker, LONGER)
            await produced(broker, longer, LONGER)
            whole = await broker.fetch("t", 0, 2)
            assert [payload for _, payload in whole] == [bytes(encode_batch(rows(0))), bytes(encode_batch(longer))]
            words = await broker.fetch("t", 0, 2, columns=["word"], project=True)
            assert [decode_batch(payload, pa.schema([LONGER.field("word")])).to_pylist() for _, payload in words] == [
                [{"word": None}],
                [{"word": "w"}],
            ]
            kept = await broker.fetch("t", 0, 2, filter="word IS NOT NULL")
            assert [(stored.kept, bool(payload)) for stored, payload in kept] == [(b"\0", False), (b"\1", True)]

    in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [
        (parse_schema("n long"), "'s' of topic 't' cannot be dropped"),
        (parse_schema("n int, s string"), "'n' of topic 't' is long and cannot become int"),
        (parse_schema("n long, text string"), "cannot be dropped"),
        (parse_schema("n long, s string, word string NOT NULL"), "leave NOT NULL out"),
    ],
)
@virtual_time
async def test_another_change_of_columns_is_refused_whole(tmp_path: Path, wanted: pa.Schema, remedy: str) -> None:
    async with standalone(tmp_path) as broker:
        before = await broker.create_topic("t")
        request = pb.AlterTopicRequest(
            name="t", schema=schema_to_bytes(wanted), partitions=3, settings={"retention_ms": "1h"}
        )
        with pytest.raises(InvalidRequest, match=remedy):
            await broker.ask("AlterTopic", request)
        assert (await broker.metadata("t")).topics[0] == before
