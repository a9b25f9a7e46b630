"""What a partition asks of the broker that holds it, so that it need not know the rest of that broker (shell.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from mq_broker.broker.host.arriving import ArrivingSnapshots
from mq_broker.broker.host.contacts import Contacts
from mq_broker.broker.host.quiescence import Ticking
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.entries import Decide
from mq_broker.core.machine.state import Snapshot
from mq_broker.rpc.wire.links import Links

Hosted = TypeVar("Hosted", contravariant=True)
"""A partition."""


class Host(Protocol[Hosted]):
    """Called on the event loop. `broker` is its id, `incarnation` says which start of it this is. `level`: of the
    cluster's features."""

    @property
    def broker(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def coordination(self) -> CoordinationService: ...
    @property
    def links(self) -> Links: ...
    @property
    def arriving(self) -> ArrivingSnapshots: ...
    @property
    def contacts(self) -> Contacts: ...
    @property
    def ticking(self) -> Ticking: ...

    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""

    def is_live(self, broker: int) -> bool:
        """Whether it is registered, as last read."""

    def touch(self, partition: Hosted) -> None:
        """The partition has been fed: it is told when the turn ends."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of the broker's: it ends with the broker, and if it fails the broker does."""

    def write_node(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """As `spawn`, for a write to the coordination service: a clean stop waits for those."""

    def fail(self, error: Exception) -> None:
        """Something that must never happen did: the broker stops."""

    def role_changed(self, partition: Hosted) -> None:
        """It leads from now on, or does so no more."""

    def decision_committed(self, partition: Hosted, decision: Decide) -> None:
        """The partition, which leads, is to see that it is published."""

    def reopen(self, partition: Hosted, reason: str) -> None:
        """Its log is another now: close it, read that from the disk again, and begin a new replica."""

    def stay_closed(self, partition: Hosted, reason: str) -> None:
        """Its journal was altered on the disk: stand back from leading it, and close it. It opens once it can."""

    def install(self, partition: Hosted, snapshot: Snapshot, recovery: int) -> None:
        """As `reopen`, with a journal that begins with that state (rule 13)."""

    def start_over(self, partition: Hosted, recovery: int) -> None:
        """As `reopen`, with an empty journal: the present one is kept aside (rule 15)."""
