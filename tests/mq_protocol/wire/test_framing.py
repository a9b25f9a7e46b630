"""Messages come out of a byte stream as they went in, however it is torn, and nothing above a bound takes memory."""

from __future__ import annotations

import random

import pytest

from mq_protocol.errors import IncompatibleVersion, InvalidRequest, RequestTooLarge
from mq_protocol.wire import framing
from mq_protocol.wire.framing import (
    GATHER_BYTES,
    LARGE_BYTES,
    LINK,
    PREAMBLE_BYTES,
    SIZES_BYTES,
    Message,
    Receiver,
    encode,
    preamble,
)

HEADER_BYTES_MAX = 1_000
MESSAGE_BYTES_MAX = 1 << 20


def receiver() -> Receiver:
    return Receiver(HEADER_BYTES_MAX, MESSAGE_BYTES_MAX)


def feed(to: Receiver, stream: bytes, sizes: list[int]) -> list[tuple[bytes, bytes]]:
    """What comes out if the stream arrives in pieces of these sizes, again and again."""
    found: list[tuple[bytes, bytes]] = []
    at = turn = 0
    while at < len(stream):
        room = to.buffer()
        count = min(sizes[turn % len(sizes)], len(room), len(stream) - at)
        room[:count] = stream[at : at + count]
        to.received(count)
        at, turn = at + count, turn + 1
        while (message := to.next()) is not None:
            found.append((message.header, bytes(message.payload)))
    return found


def joined(*messages: tuple[bytes, bytes]) -> bytes:
    return preamble() + b"".join(b"".join(encode(header, [payload])) for header, payload in messages)


MESSAGES = (
    (b"h", b""),
    (b"hh", b"payload"),
    (b"h" * HEADER_BYTES_MAX, b"x" * (LARGE_BYTES - SIZES_BYTES - HEADER_BYTES_MAX - 1)),
    (b"a", b"y" * (LARGE_BYTES - SIZES_BYTES - 1)),
    (b"b", b"z" * LARGE_BYTES),
    (b"c", random.Random(1).randbytes(3 * GATHER_BYTES)),
    (b"d", b"w"),
    (b"e", b"v" * (MESSAGE_BYTES_MAX - 1)),
    (b"f", b""),
)


@pytest.mark.parametrize("sizes", [[1 << 30], [1], [7], [8], [9, 1, 40_000], [LARGE_BYTES - 1], [GATHER_BYTES, 5]])
def test_what_was_sent_comes_out_in_order_however_it_is_torn(sizes: list[int]) -> None:
    messages = MESSAGES[:4] if sizes == [1] else MESSAGES
    assert feed(receiver(), joined(*messages), sizes) == list(messages)


def test_a_stream_that_is_torn_anywhere_gives_the_messages_before() -> None:
    stream = joined(*MESSAGES[:2])
    ends = [PREAMBLE_BYTES, PREAMBLE_BYTES + SIZES_BYTES + 1, len(stream)]
    for end in range(len(stream) + 1):
        whole = sum(end >= each for each in ends[1:])
        assert feed(receiver(), stream[:end], [1 << 30]) == list(MESSAGES[:whole])


def test_a_large_message_is_received_into_memory_of_its_own_and_copied_nowhere() -> None:
    to = receiver()
    payload = bytes(500_000)
    stream = joined((b"h", payload))
    feed(to, stream[:100], [1 << 30])
    room = to.buffer()
    assert len(room) == len(stream) - 100, "and not a byte of what follows"
    room[:] = stream[100:]
    to.received(len(room))
    message = to.next()
    assert message is not None
    assert message.payload.obj is room.obj
    assert message.payload.readonly
    assert feed(to, stream[PREAMBLE_BYTES:], [1 << 30]) == [(b"h", payload)]


def test_what_was_taken_is_not_written_to_again() -> None:
    to = receiver()
    feed(to, preamble(), [1 << 30])
    kept: list[Message] = []
    for letter in (b"a", b"b", b"c"):
        for size in (10, LARGE_BYTES):
            data = b"".join(encode(letter, [letter * size]))
            for at in range(0, len(data), GATHER_BYTES):
                room = to.buffer()
                piece = data[at : at + len(room)]
                room[: len(piece)] = piece
                to.received(len(piece))
            message = to.next()
            assert message is not None
            kept.append(message)
    assert [bytes(message.payload[:1]) for message in kept] == [b"a", b"a", b"b", b"b", b"c", b"c"]


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ((0, 0), InvalidRequest),
        ((0, 10), InvalidRequest),
        ((HEADER_BYTES_MAX + 1, 0), RequestTooLarge),
        ((1, MESSAGE_BYTES_MAX), RequestTooLarge),
        ((0xFFFFFFFF, 0xFFFFFFFF), RequestTooLarge),
    ],
)
def test_what_is_above_a_bound_is_refused_by_its_sizes_alone(
    sizes: tuple[int, int], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    to = receiver()
    monkeypatch.setattr(framing, "bytearray", None, raising=False)  # no memory is taken
    with pytest.raises(error):
        feed(to, preamble() + framing._SIZES.pack(*sizes), [1 << 30])


def test_a_bound_that_is_raised_holds_for_what_was_received_before() -> None:
    to = Receiver(10, 20)
    stream = joined((b"h", b"x"), (b"h", b"y" * 1_000))
    room = to.buffer()
    room[: len(stream)] = stream
    to.received(len(stream))
    assert to.next() == (b"h", b"x")
    to.message_bytes_max = 2_000
    assert to.next() == (b"h", b"y" * 1_000)


def test_both_ends_speak_the_newest_version_that_both_know() -> None:
    assert framing.version_of(preamble()) == framing.VERSION
    assert framing.version_of(preamble(newest=9)) == framing.VERSION
    assert framing.version_of(preamble(newest=1)) == 1
    with pytest.raises(IncompatibleVersion, match="upgrade the one with the lower"):
        framing.version_of(preamble(newest=9, oldest=framing.VERSION + 1))


@pytest.mark.parametrize(
    "data",
    [b"PRI * HTTP/2.0", b"GET / HT", bytes(8), LINK + b"\x00\x00", LINK + b"\x01\x00", LINK + b"\x01\x02"],
)
def test_other_bytes_than_a_preamble_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        feed(receiver(), data, [3])


def test_a_payload_goes_out_as_the_buffers_it_came_in() -> None:
    parts = [b"ab", bytearray(b"cd"), memoryview(b"ef")]
    pieces = encode(b"h", parts)
    assert all(piece is part for piece, part in zip(pieces[1:], parts, strict=True))
    assert feed(receiver(), preamble() + b"".join(pieces), [1 << 30]) == [(b"h", b"abcdef")]
