"""Byte streams of a stranger at a link port: messages as they are framed, some of their bytes altered, received in
pieces of any size."""

from __future__ import annotations

import random
import struct

from mq_protocol.errors import IncompatibleVersion, InvalidRequest, RequestTooLarge
from mq_protocol.wire.framing import GATHER_BYTES, LARGE_BYTES, PREAMBLE_BYTES, SIZES_BYTES, Receiver, encode, preamble

HEADER_BYTES_MAX = 4_000
MESSAGE_BYTES_MAX = 3 * GATHER_BYTES
_SIZES = (0, 1, 2, 7, 8, 100, LARGE_BYTES - 9, LARGE_BYTES - 8, LARGE_BYTES, GATHER_BYTES, GATHER_BYTES + 1)
_PREFIX = struct.Struct(">IQ")
"""Before the stream: the seed of the pieces in which it is received, and the place at which the bounds are lowered."""


def generate(chance: random.Random) -> bytes:
    parts = [preamble(chance.choice((1, 1, 1, 2, 255)), chance.choice((1, 1, 1, 1, 1, 0, 2)))]
    for _ in range(chance.choice((0, 1, 2, 5, 40))):
        header = chance.randbytes(chance.choice((1, 2, 30, 300, HEADER_BYTES_MAX)))
        payload = [chance.randbytes(min(300, size)) * -(-size // 300) for size in chance.choices(_SIZES, k=2)]
        parts += [bytes(part) for part in encode(header, payload)]
    stream = bytearray(b"".join(parts))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        stream[chance.randrange(min(len(stream), 400))] = chance.choice((0, 1, 8, 127, 128, 255))
    if chance.random() < 0.3:
        del stream[chance.randrange(len(stream)) :]
    return _PREFIX.pack(chance.getrandbits(32), chance.choice((0, 0, 50_000))) + stream


def check(data: bytes) -> bool:
    if len(data) < _PREFIX.size:
        return False
    seed, tight_at = _PREFIX.unpack_from(data)
    stream = data[_PREFIX.size :]
    pieces = random.Random(seed)
    receiver = Receiver(HEADER_BYTES_MAX, MESSAGE_BYTES_MAX)
    taken = bytearray(stream[:PREAMBLE_BYTES])
    at = 0
    while at < len(stream):
        room = receiver.buffer()
        assert 0 < len(room) <= MESSAGE_BYTES_MAX
        count = min(len(room), len(stream) - at, pieces.choice((1, 3, 100, 5_000, 1 << 20)))
        if count == 1 and pieces.random() < 0.9:
            count = min(len(room), len(stream) - at, 60)
        room[:count] = stream[at : at + count]
        room.release()
        receiver.received(count)
        at += count
        if tight_at and at > tight_at:
            receiver.message_bytes_max = 1_000
        try:
            while (message := receiver.next()) is not None:
                assert len(message.header) <= receiver.header_bytes_max
                assert message.payload.readonly
                taken += b"".join(encode(message.header, [message.payload]))
        except (InvalidRequest, RequestTooLarge, IncompatibleVersion):
            assert stream.startswith(bytes(taken)) or len(stream) < PREAMBLE_BYTES
            return False
    # All that was whole has come out, in order, and nothing else
    assert stream.startswith(bytes(taken))
    rest = stream[len(taken) :]
    if len(rest) >= SIZES_BYTES and len(stream) > PREAMBLE_BYTES:
        assert len(rest) < SIZES_BYTES + sum(struct.unpack_from(">II", rest))
    return True
