"""Which keys of one decision a broker has forgotten, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.broker.transactions import upkeep
from mq_broker.broker.transactions.upkeep import Upkeep
from mq_broker.core.entries import SCHEDULED, Forget, TransactionKey
from mq_protocol.errors import NotEnoughReplicas
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.transactions.worlds import Part, World, known, played, staged, within

KEYS = [TransactionKey(f"query {number}", "t") for number in range(3)]


def over(part: Part, keys: Sequence[TransactionKey] = KEYS) -> None:
    for key in keys:
        part.machine.transactions[key] = known(1, once=True, changed_us=10)


async def forget(world: World) -> None:
    shell: Any = world
    await Upkeep(shell, lambda: 100).forget(90, shell.partitions())


@virtual_time
async def test_keys_are_forgotten_only_by_coordinators_that_serve() -> None:
    async with played() as world:
        for part in world.parts.values():
            over(part)
            part.serving = part.number == 0
        await forget(world)
        assert [part.name for part in world.parts.values() if part.asked] == [f"{TRANSACTIONS_TOPIC}-0"]
        serving = world.parts[TRANSACTIONS_TOPIC, 0]
        assert serving.asked == [Forget(tuple(KEYS))]
        assert within(serving.deadlines, upkeep._ATTEMPT_S)


@virtual_time
async def test_a_coordinator_that_cannot_forget_is_left_alone_until_later_and_others_go_on() -> None:
    keys = [TransactionKey(f"query {number}", "t") for number in range(2 * upkeep.FORGOTTEN_AT_ONCE + 1)]
    async with played() as world:
        first, second = (world.parts[TRANSACTIONS_TOPIC, number] for number in (0, 1))
        over(first, keys)
        over(second, keys)
        first.refuse = [NotEnoughReplicas("1 live in-sync replica of 2")]
        await forget(world)
        assert (len(first.asked), len(second.asked)) == (1, 3)


@virtual_time
async def test_who_holds_up_retention_is_told_with_what_frees_it(caplog: pytest.LogCaptureFixture) -> None:
    """`transaction abort` is refused for what queue groups stage."""
    of_group = TransactionKey(f"work:{'a' * 32}/3/workers", "t")

    async with played() as world:
        part: Any = world.parts["t", 0]
        part.stage(replace(staged(1, 0, KEYS[0]), owner="User:etl"), staged(2, 0, of_group))
        part.could_begin = 4
        # one that holds up nothing, and one that waits until it is due
        part.stage(staged(4, 0, KEYS[1], index=4), replace(staged(3, 0, SCHEDULED), due_us=1))
        shell: Any = world
        for other in world.parts.values():
            other.serving = other is part
        keeping = Upkeep(shell, lambda: 0)
        for now_ms in (0, upkeep.ALARM_MS):
            keeping.alarm(now_ms, shell.partitions())
    of_query, of_queue = sorted((record.getMessage() for record in caplog.records), key=lambda text: "queue" in text)
    assert "query 'query 0' of User:etl staged for 't'" in of_query
    assert "tritonmq transaction abort" in of_query
    assert "queue group 'workers' staged for 't'" in of_queue
    assert "partition 3 of the queue's topic" in of_queue
    assert "abort" not in of_queue
