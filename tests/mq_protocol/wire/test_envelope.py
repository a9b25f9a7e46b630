"""An envelope's bytes are protobuf's own, and a stranger's bytes raise one kind of error."""

from __future__ import annotations

import contextlib
import random

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, RequestTooLarge
from mq_protocol.wire.envelope import Envelope, decode, encode, split

HEADER = pb.ProduceHeader(correlation=7, topic="t", uuid=b"u" * 16)


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 127, b"x" * 128, b"x" * 70_000])
def test_the_bytes_are_those_of_protobuf(payload: bytes) -> None:
    theirs = pb.ProduceRequest(header=HEADER, payload=payload).SerializeToString()
    ours = encode(Envelope(HEADER, (payload,)))
    assert ours == theirs
    back = decode(theirs, pb.ProduceHeader)
    assert back.header == HEADER
    assert bytes(back.payload) == payload


def test_a_payload_may_come_in_parts_and_leaves_as_a_view() -> None:
    data = encode(Envelope(HEADER, (b"ab", bytearray(b"cd"), memoryview(b"ef"))))
    assert data == encode(Envelope(HEADER, (b"abcdef",)))
    payload = decode(data, pb.ProduceHeader).payload
    assert payload.obj is data
    assert bytes(payload) == b"abcdef"


def test_an_empty_message_is_an_empty_envelope() -> None:
    assert decode(b"", pb.ProduceHeader) == Envelope(pb.ProduceHeader())
    assert decode(b"", pb.ProduceHeader).payload.nbytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x12\x01x",  # no header before the payload
        b"\x0a",  # no length
        b"\x0a\x05ab",  # ends within the header
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length of ten bytes
        b"\x0a\x02\xff\xff",  # the header is no protobuf
        b"\x0a\x00\x0a\x00",  # two headers
        b"\x0a\x00\x12\x05ab",  # ends within the payload
        b"\x0a\x00\x12\x01ab",  # goes on behind the payload
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="malformed message"):
        decode(data, pb.ProduceHeader)


def test_random_bytes_raise_nothing_else() -> None:
    random_ = random.Random(3)
    valid = encode(Envelope(HEADER, (b"payload",)))
    for _ in range(5_000):
        data = bytearray(valid)
        for _ in range(random_.randrange(1, 4)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        with contextlib.suppress(InvalidRequest):
            decode(bytes(data), pb.ProduceHeader)


def test_a_header_above_its_bound_is_refused_before_it_is_read() -> None:
    header = pb.ProduceHeader(topic="t" * 1_000)
    data = encode(Envelope(header, (b"payload",)))
    assert decode(data, pb.ProduceHeader, header.ByteSize()).header == header
    with pytest.raises(RequestTooLarge, match=f"{header.ByteSize()} bytes is above {header.ByteSize() - 1}"):
        decode(data, pb.ProduceHeader, header.ByteSize() - 1)


def test_split_gives_views_and_refuses_lengths_that_do_not_add_up() -> None:
    whole = memoryview(b"aabbb")
    assert [bytes(part) for part in split(whole, [2, 3])] == [b"aa", b"bbb"]
    for lengths in ([2], [2, 4], []):
        with pytest.raises(InvalidRequest, match="add up"):
            split(whole, lengths)
