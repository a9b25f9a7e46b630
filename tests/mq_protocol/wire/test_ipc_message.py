"""The flatbuffer reader agrees with Arrow's own writer, and says what is wrong with everything else."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from mq_protocol.arrow import encode_batch
from mq_protocol.errors import CorruptBatch
from mq_protocol.limits import SCHEMA_FIELDS_MAX
from mq_protocol.wire.ipc_message import codec_of, read_record_batch_message

BATCH = pa.record_batch({"a": pa.array([1, None, 3]), "b": ["x", "yy", "zzz"]})
PAYLOAD = bytes(encode_batch(BATCH))


def test_it_reads_what_arrow_wrote() -> None:
    message = read_record_batch_message(memoryview(PAYLOAD))
    assert message.record_count == 3
    assert message.nodes == ((3, 1), (3, 0))
    assert message.codec is None
    sizes = [size for _, size in message.buffers]
    assert sizes == [1, 24, 0, 16, 6]
    at, size = message.buffers[4]
    assert bytes(message.body[at : at + size]) == b"xyyzzz"
    assert message.decoded_bytes() == sum(sizes)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_declared_sizes_of_compressed_buffers_are_summed(codec: str) -> None:
    message = read_record_batch_message(memoryview(encode_batch(BATCH, codec)))
    assert message.codec == codec
    assert message.decoded_bytes() == 1 + 24 + 16 + 6


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_how_a_batch_is_compressed_is_told_without_reading_the_rest(codec: str | None) -> None:
    payload = memoryview(encode_batch(BATCH, codec))
    assert codec_of(payload) == codec == read_record_batch_message(payload).codec
    for length in range(64):
        with pytest.raises(CorruptBatch):
            codec_of(payload[:length])


def test_every_cut_is_noticed() -> None:
    for length in range(len(PAYLOAD)):
        with pytest.raises(CorruptBatch):
            read_record_batch_message(memoryview(PAYLOAD[:length]))


@pytest.mark.parametrize(
    ("replace", "says"),
    [
        ((0, b"\0\0\0\0"), "FF FF FF FF"),
        ((4, struct.pack("<i", -8)), "metadata of -8 bytes"),
        ((4, struct.pack("<i", 1 << 30)), "does not fit"),
        ((4, struct.pack("<i", 9)), "padded"),
        ((8, struct.pack("<I", 0xFFFFFFF0)), "past its end"),
    ],
)
def test_a_broken_frame_is_described(replace: tuple[int, bytes], says: str) -> None:
    data = bytearray(PAYLOAD)
    data[replace[0] : replace[0] + len(replace[1])] = replace[1]
    with pytest.raises(CorruptBatch, match=says):
        read_record_batch_message(memoryview(data))


def test_buffers_outside_the_body_and_impossible_null_counts_are_refused() -> None:
    pairs = {
        "outside the body": (struct.pack("<qq", 0, 24), struct.pack("<qq", 0, 1 << 40)),
        "claims 4 nulls": (struct.pack("<qq", 3, 1), struct.pack("<qq", 3, 4)),
    }
    at = read_record_batch_message(memoryview(PAYLOAD)).buffers[1][0]
    pairs["outside the body"] = (struct.pack("<qq", at, 24), struct.pack("<qq", at, 1 << 40))
    for says, (old, new) in pairs.items():
        assert PAYLOAD.count(old) == 1
        with pytest.raises(CorruptBatch, match=says):
            read_record_batch_message(memoryview(PAYLOAD.replace(old, new)))


def test_as_many_columns_are_read_as_a_schema_may_have_and_not_many_more() -> None:
    def columns(count: int) -> memoryview:
        column = pa.array(["x"])
        return memoryview(pa.record_batch([column] * count, names=[str(number) for number in range(count)]).serialize())

    assert len(read_record_batch_message(columns(SCHEMA_FIELDS_MAX)).buffers) == 3 * SCHEMA_FIELDS_MAX
    with pytest.raises(CorruptBatch, match="more than any topic's schema has"):
        read_record_batch_message(columns(2 * SCHEMA_FIELDS_MAX + 1))
