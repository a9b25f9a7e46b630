"""How the keys of a group's records are read, piece by piece: what is asked for, and what is told when it fails. The
partition and the group are stand-ins."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.group import row_reading
from mq_broker.broker.queues.group.row_reading import RowReading
from mq_broker.broker.queues.policy import ordering
from mq_broker.broker.queues.policy.ordering import ByKey
from mq_broker.core.work.state import WorkState
from mq_protocol.errors import NotEnoughReplicas, OffsetOutOfRange, TritonMQError
from tests.coroutines import real_time
from tests.mq_broker.broker.queues.partitions import rounds

PER_BATCH = 3


class World:
    """A group in order in a partition of 12 records, three in a batch; the key of each is its offset. `says`: errors
    for the next reads."""

    def __init__(self, patch: pytest.MonkeyPatch, *, end: int = 12) -> None:
        patch.setattr(row_reading, "AGAIN_S", 0.0)
        self.asked: list[tuple[int, int]] = []
        self.says: list[TritonMQError] = []
        self.woken = 0
        self.reads = True
        self.keys = ByKey(WorkState(1, 0), 3)
        self.policy: Any = SimpleNamespace(ready=self.keys, wanting=list)
        topic = SimpleNamespace(schema=None, spec=SimpleNamespace(schema=b""))
        self.partition: Any = SimpleNamespace(name="t-0", next_offset=end, read=self._read, topic=topic)
        self.gathering: Any = SimpleNamespace(
            group="g",
            partition=self.partition,
            reads=lambda policy: self.reads and policy is self.policy,
            wake=self._wake,
        )
        shell: Any = SimpleNamespace(spawn=lambda work, what: asyncio.create_task(work, name=what))
        self.reading = RowReading(shell, Any)
        places: Any = SimpleNamespace(run=self._run, close=lambda: None)
        self.reading._places = places

    def look(self) -> None:
        self.reading.look(self.gathering, self.policy)

    @property
    def alarm(self) -> str:
        return self.reading.alarm("t-0", "g")

    def _wake(self) -> None:
        self.woken += 1

    def _read(self, first: int, end: int, bytes_max: int) -> list[tuple[Any, bytes]]:
        assert bytes_max == row_reading.BYTES_AT_ONCE
        self.asked.append((first, end))
        if self.says:
            raise self.says.pop(0)
        bases = range(first - first % PER_BATCH, end, PER_BATCH)
        return [(SimpleNamespace(base_offset=base, record_count=PER_BATCH, timestamp_us=0), b"") for base in bases]

    async def _run(self, _name: str, look: Any) -> tuple[list[int], list[int]]:
        await asyncio.sleep(0)
        first, end = look.keywords["wanted"]
        offsets = [o for base, count, _, _ in look.args[0] for o in range(base, base + count) if first <= o < end]
        return offsets, offsets


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@real_time
async def test_records_that_are_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, then in ((7, 7), (0, 1), (-1, 1)):
        world = World(monkeypatch)
        world.says = [OffsetOutOfRange("dropped", told)]
        world.look()
        await rounds()
        assert [first for first, _ in world.asked][:2] == [0, then]
        assert world.keys.read_to == 12


@real_time
async def test_why_keys_cannot_be_read_is_told_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch)
        world.says = [NotEnoughReplicas("one")] * 3 + [NotEnoughReplicas("two")] * 200
        world.look()
        await rounds()
        assert "keys of records cannot be read, so nothing is lent: two" in world.alarm
        assert [text.rpartition(": ")[2] for text in warned(caplog)] == ["one", "two"]
        assert all(first == 0 for first, _ in world.asked)
        world.says.clear()
        await rounds()
        assert (world.alarm, world.keys.read_to) == ("", 12)
        assert len(warned(caplog)) == 2


@real_time
async def test_no_more_counts_as_read_than_was_looked_at_though_the_last_batch_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the rest of it has no keys."""
    monkeypatch.setattr(ordering, "READ_AT_ONCE", 4)
    world = World(monkeypatch)
    world.look()
    await rounds()
    assert world.asked == [(0, 4), (4, 8), (8, 12)]
