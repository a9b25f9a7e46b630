"""The UUIDs that a partition remembers: the memory of a full window, and how long a snapshot of it holds a broker's
event loop.

Each run is a process of its own. It fills a window of 100,000 UUIDs as appended batches do. Then it does what a broker
does to shorten a journal, and what a follower does that begins anew: the state is taken, encoded and decoded in a
thread, and a machine is made from it on the loop. Meanwhile the loop asks to be woken every millisecond; how late it is
at worst is the longest hold. The ceiling remembers the 16 bytes of each UUID and nothing else, and its thread sleeps.
"""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.bench.measure import Contestant, Figure, Question, Readings
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import Workbench
from mq_broker.core.entries import Append, Entry
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.codec.snapshot import decode_snapshot, encode_snapshot

GROUP: Final = "window of 100,000 UUIDs, one replica"
UUIDS: Final = 100_000
TURNED_OVER: Final = 30_000
"""As many more came before: the window is full, and has dropped its oldest."""

MEMORY: Final = "memory"
HOLD: Final = "longest hold of the loop"
_NAME: Final = "a partition"
_CEILING: Final = "16 bytes a UUID"
_PLACE: Final = Place("bench", 0)
_BOUNDS: Final = WindowBounds(UUIDS)
_WAKE_S: Final = 0.001
_IDLE_S: Final = 0.5


def measure(bench: Workbench) -> list[Figure]:
    contestants = [Contestant(_CEILING, partial(_run, bare)), Contestant(_NAME, partial(_run, full))]
    questions = [
        Question(GROUP, _NAME, MEMORY, "B a UUID", "lower", _CEILING),
        Question(GROUP, _NAME, HOLD, "ms", "lower", _CEILING),
    ]
    return bench.answer(contestants, questions)


def _run(what: Callable[[Connection], None]) -> Readings:
    with Helper(what) as helper:
        found: Readings = helper.hear()
    return found


def bare(pipe: Connection) -> None:
    """In a child: the UUIDs one after another, and a loop that nothing holds."""
    chance = random.Random(1)
    tracemalloc.start()
    uuids = bytearray(chance.randbytes(16 * UUIDS))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    hold_ms = asyncio.run(_longest_hold(asyncio.to_thread(time.sleep, _IDLE_S)))
    pipe.send({MEMORY: taken / len(uuids) * 16, HOLD: hold_ms})


def full(pipe: Connection) -> None:
    """In a child: a machine whose window is full."""
    chance = random.Random(1)
    tracemalloc.start()
    machine = PartitionMachine(_BOUNDS)
    for index in range(1, UUIDS + TURNED_OVER + 1):
        machine.apply(Entry(index, 1, 1_000_000 + 700 * index, Append(), chance.randbytes(16), 10))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    pipe.send({MEMORY: taken / UUIDS, HOLD: asyncio.run(_longest_hold(_snapshot(machine)))})


async def _snapshot(machine: PartitionMachine) -> None:
    snapshot = Snapshot(UUIDS + TURNED_OVER, 1, 1_000_000, machine.state())
    data = await asyncio.to_thread(encode_snapshot, _PLACE, snapshot)
    found = await asyncio.to_thread(decode_snapshot, _PLACE, data)
    again = PartitionMachine(_BOUNDS, found.state)
    again.apply(Entry(UUIDS + TURNED_OVER + 1, 1, 2_000_000, Append(), bytes(15) + b"1", 10))


async def _longest_hold(work: Coroutine[Any, Any, None]) -> float:
    """How late the loop was at worst, in milliseconds, while that went on."""
    done = asyncio.create_task(work)
    worst_s = 0.0
    while not done.done():
        due = time.perf_counter() + _WAKE_S
        await asyncio.sleep(_WAKE_S)
        worst_s = max(worst_s, time.perf_counter() - due)
    await done
    return worst_s * 1000
