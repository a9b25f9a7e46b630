"""What is said in a call, as the parts of a proxy hand it on."""

from __future__ import annotations

from google.protobuf.message import Message

from mq_protocol.wire.call import Kind, Said


def said(message: Message, payload: bytes = b"") -> Said:
    return Said(Kind.MESSAGE, message.SerializeToString(), memoryview(payload))
