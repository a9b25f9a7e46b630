"""A partition as groups see one: it notes what is proposed, and answers when it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from mq_broker.broker.groups.cursors import Mover
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.transactions.begun_groups import BegunGroups
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import MoveCursor
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import Cursor
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Result

ANYBODY = Mover("", for_anybody=True)
"""Whoever asks where no rights are judged."""

BEGUN = BegunGroups(lambda: (), lambda: (), time.monotonic)
"""Of a broker without partitions and topics. Whoever asks has no quota."""


@dataclass
class Replica:
    machine: PartitionMachine
    leader_epoch: int = 1
    leading: bool = True


class Led:
    """Partition 0 of topic `t`, which is led here and ends at offset 100. No group has a cursor yet."""

    def __init__(self, number: int = 0) -> None:
        self.name = f"t-{number}"
        self.number = number
        self.topic = Topic.of(TopicSpec("t", "0" * 32, ((1,),)))
        self.leading, self.closed, self.next_offset = True, False, 100
        machine = PartitionMachine(WindowBounds(1_000))
        self.cursors: dict[str, Cursor] = machine.cursors
        self.replica = Replica(machine)
        self.proposed: list[MoveCursor] = []
        self.for_anybody: list[bool] = []
        self.deadlines: list[float] = []
        self.replies: list[Callable[[Result], None]] = []

    def propose(
        self, operation: MoveCursor, on_reply: Callable[[Result], None], deadline: float, *, for_anybody: bool
    ) -> None:
        self.proposed.append(operation)
        self.for_anybody.append(for_anybody)
        self.deadlines.append(deadline)
        self.replies.append(on_reply)

    @property
    def offsets(self) -> list[int]:
        """Where the group was to be moved, in this order."""
        return [operation.offset for operation in self.proposed]


async def rounds() -> None:
    """All that is due now has been done."""
    for _ in range(5):
        await asyncio.sleep(0)
