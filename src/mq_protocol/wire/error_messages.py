"""Errors as messages of the wire, and back. The classes themselves know nothing of it: the core raises them, too."""

from __future__ import annotations

import re
from typing import Final

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InternalError,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    PeerRefused,
    TritonMQError,
    shortened,
)
from mq_protocol.limits import ERROR_BYTES_MAX


class NewerError(InternalError):
    """An error of a broker of a newer release, whose code this one does not know. `told`: what it said, which goes on
    as it came to who may know it."""

    def __init__(self, told: pb.Error) -> None:
        super().__init__(told.message)
        self.told = told


def _leaves(cls: type[TritonMQError]) -> list[type[TritonMQError]]:
    """The classes without subclasses. Those that a client alone raises are defined elsewhere, below one of these."""
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == TritonMQError.__module__]
    return [leaf for sub in below for leaf in _leaves(sub)] or [cls]


def _code_of(cls: type[TritonMQError]) -> pb.ErrorCode.ValueType:
    """`TopicExists` is TOPIC_EXISTS, `InternalError` is INTERNAL. Raises `ValueError` if the wire has no such code."""
    words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Error"))
    return pb.ErrorCode.Value("_".join(words).upper())


_CLASSES: Final[dict[int, type[TritonMQError]]] = {_code_of(cls): cls for cls in _leaves(TritonMQError)}
_CODES: Final = {cls: _code_of(cls) for cls in _CLASSES.values()}


def code_of(error: TritonMQError) -> pb.ErrorCode.ValueType:
    """The code of its class, or of the nearest class above that has one."""
    return next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), pb.INTERNAL)


def to_wire(error: TritonMQError) -> pb.Error:
    """The error as the wire's message; `from_wire` gives back an equal one, but for the end of a text that is too
    long."""
    if isinstance(error, NewerError):
        message = pb.Error()
        message.CopyFrom(error.told)
        message.message = shortened(message.message, ERROR_BYTES_MAX)
        return message
    message = pb.Error(code=code_of(error), message=shortened(str(error), ERROR_BYTES_MAX))
    if isinstance(error, NotLeader):
        message.leader = error.leader
        message.leader_epoch = error.leader_epoch
    if isinstance(error, OffsetOutOfRange) and error.next_offset >= 0:
        message.next_offset = error.next_offset
    if isinstance(error, Overloaded):
        message.retry_after_ms = error.retry_after_ms
    if isinstance(error, PeerRefused):
        message.peer_refusal = pb.PeerRefusal.ValueType(error.why)
    return message


def from_wire(message: pb.Error) -> TritonMQError:
    """The exception that the message describes. An unknown code (a newer broker) becomes an `InternalError`, never
    nothing."""
    cls = _CLASSES.get(message.code)
    if cls is None:
        return NewerError(message)
    if cls is NotLeader:
        return NotLeader(message.message, message.leader, message.leader_epoch)
    if cls is OffsetOutOfRange and message.HasField("next_offset"):
        return OffsetOutOfRange(message.message, message.next_offset)
    if cls is Overloaded:
        return Overloaded(message.message, message.retry_after_ms)
    if cls is PeerRefused:
        return PeerRefused(message.message, message.peer_refusal)
    return cls(message.message)
