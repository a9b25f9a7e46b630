"""What is said at a stream port: each message comes out as what it was, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.errors import InvalidRequest
from mq_protocol.framing import STREAM, Message, Receiver, preamble
from mq_protocol.streams import PREAMBLE, Kind, Said, parsed, said, say, say_envelope


def heard(stream: bytes) -> list[Said]:
    receiver = Receiver(1_000, 10_000, spoken=STREAM)
    receiver.buffer()[: len(stream)] = stream
    receiver.received(len(stream))
    found = []
    while (message := receiver.next()) is not None:
        found.append(said(message))
    return found


def test_each_kind_comes_out_as_it_was_said() -> None:
    messages = [
        (Kind.OPEN, b"o", b""),
        (Kind.MESSAGE, b"", b"payload"),
        (Kind.MESSAGE, b"h", b""),
        (Kind.END, b"", b""),
    ]
    stream = PREAMBLE + b"".join(b"".join(say(kind, body, [payload])) for kind, body, payload in messages)
    assert [(kind, body, bytes(payload)) for kind, body, payload in heard(stream)] == messages


def test_a_message_with_a_payload_has_its_header_apart() -> None:
    (message,) = heard(PREAMBLE + b"".join(say_envelope(Envelope(pb.ProduceHeader(topic="t"), (b"ab", b"cd")))))
    assert (message.kind, parsed(message.body, pb.ProduceHeader).topic) == (Kind.MESSAGE, "t")
    assert bytes(message.payload) == b"abcd"
    assert message.nbytes == len(message.body) + 4


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 255])
def test_a_kind_that_there_is_not_is_refused(kind: int) -> None:
    with pytest.raises(InvalidRequest, match=f"of kind {kind}"):
        said(Message(bytes([kind]) + b"body", memoryview(b"")))


def test_bytes_that_are_no_such_message_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="malformed StreamOpen"):
        parsed(b"\xff\xff", pb.StreamOpen)


def test_a_link_is_no_stream_and_says_so() -> None:
    with pytest.raises(InvalidRequest, match="no stream port"):
        heard(preamble())
