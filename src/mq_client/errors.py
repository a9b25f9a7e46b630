"""The errors that a client raises: those of the protocol, and one of its own. The tree is drawn in
mq_protocol.errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_protocol.errors import *  # noqa: F403 - all of them
from mq_protocol.errors import RefusedError, Unreachable

if TYPE_CHECKING:
    from mq_client.consuming.record_queue import ConsumerRecord


class NotDeserialized(RefusedError):
    """A record came whose key or value the consumer's deserializer cannot read. `record`: as it came."""

    def __init__(self, message: str, record: ConsumerRecord) -> None:
        super().__init__(message)
        self.record = record


class NotSent(Unreachable):
    """Nobody could be reached in time and nothing was ever sent: it did not happen."""

    definite = True
