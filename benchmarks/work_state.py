"""What the state of a queue group costs one replica: bytes, and time of the loop.

    python -m benchmarks.work_state

Nothing else runs: no broker, no journal. Each time is the least of some tries, since noise only adds.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import RANGES_MAX, Range
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Lease, LeaseId, Return, Step

SPAN = 1 << 24
RANGES = RANGES_MAX
TRIES = 5


def every_second(count: int) -> tuple[Range, ...]:
    return tuple((2 * number, 2 * number + 1) for number in range(count))


def lent(count: int) -> WorkState:
    """So many pairs of records are lent to one member, by one entry."""
    state = WorkState(1, 0)
    state.apply(Lease(((0, 2 * count),), "member"), LeaseId(1, 1, 0), 2 * count)
    return state


def held_bytes(make: Callable[[], object]) -> int:
    tracemalloc.start()
    kept = make()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def seconds(step: Step) -> float:
    times = []
    for _ in range(TRIES):
        state = lent(RANGES)
        began = time.perf_counter()
        state.apply(step, LeaseId(1, 2, 0), 2 * RANGES)
        times.append(time.perf_counter() - began)
    return min(times)


def settled() -> OffsetSet:
    kept = OffsetSet()
    kept.add((2 * number + 1, 2 * number + 2) for number in range(SPAN // 2))
    return kept


def returned() -> WorkState:
    state = lent(RANGES)
    state.apply(Return(every_second(RANGES), charged=True, due_us=0, error=""), LeaseId(1, 2, 0), 2 * RANGES)
    return state


def main() -> None:
    print(f"settled offsets, every second of {SPAN:,}: {held_bytes(settled) / SPAN:.3f} bytes an offset")
    print(f"a run of returned records: {held_bytes(returned) / RANGES:.0f} bytes")
    for name, step in (
        ("settles", Accept(every_second(RANGES))),
        ("returns", Return(every_second(RANGES), charged=True, due_us=0, error="")),
    ):
        took = seconds(step)
        print(f"an entry of {RANGES:,} scattered {name}: {took * 1000:.0f} ms, {took / RANGES * 1e6:.1f} µs a record")


if __name__ == "__main__":
    main()
