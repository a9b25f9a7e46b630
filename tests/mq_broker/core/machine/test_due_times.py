"""The order in which scheduled batches are published."""

from __future__ import annotations

import random

from mq_broker.core.machine.due_times import DueTimes


def test_due_batches_come_in_order_of_time_and_then_of_arrival() -> None:
    times = DueTimes()
    for uuid, due_us in ((b"a", 30), (b"b", 10), (b"c", 10), (b"d", 20)):
        times.add(uuid, due_us)
    assert (times.next_us(), times.due(9, 10), times.due(10, 10)) == (10, [], [b"b", b"c"])
    assert times.due(100, 3) == [b"b", b"c", b"d"]
    assert times.due(100, 10) == [b"b", b"c", b"d", b"a"]  # asking takes nothing away


def test_what_was_removed_is_neither_due_nor_kept() -> None:
    times = DueTimes()
    rng = random.Random(1)
    model: dict[bytes, tuple[int, int]] = {}
    for step in range(3_000):
        if model and rng.random() < 0.6:
            uuid = rng.choice(sorted(model))
            del model[uuid]
            times.remove(uuid)
        else:
            uuid = step.to_bytes(16, "big")
            model[uuid] = rng.randrange(50), step
            times.add(uuid, model[uuid][0])
        times.remove(b"nobody")
        order = sorted(model, key=lambda each: model[each])
        assert len(times) == len(model)
        assert times.next_us() == (model[order[0]][0] if order else None)
        if step % 50 == 0:
            assert times.due(25, 7) == [uuid for uuid in order if model[uuid][0] <= 25][:7]
        assert len(times._lines) <= 2 * len(model) + 65


def test_what_was_cancelled_behind_others_that_wait_does_not_pile_up() -> None:
    times = DueTimes()
    times.add(b"first", 1)
    for number in range(10_000):
        times.add(b"%d" % number, 2)
        times.remove(b"%d" % number)
        assert len(times._lines) <= 2 * len(times) + 65
    assert (times.next_us(), times.due(2, 10)) == (1, [b"first"])
