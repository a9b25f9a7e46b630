"""What a leader of a queue group does when its entries are refused."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.queues import gathering as gathering_module
from mq_protocol.errors import NotEnoughReplicas
from tests.mq_broker.broker.queues.partitions import Group, lease_of, offsets, rounds, scenario


async def refused_once(again_s: float, patch: pytest.MonkeyPatch) -> tuple[Group, list[object]]:
    """A group whose leases have run out, and which was refused to write so; what it has tried to write from then on."""
    patch.setattr(gathering_module, "AGAIN_S", again_s)
    group = Group(5)
    await lease_of(group, "a", 5, working=5)
    group.led.refuses = NotEnoughReplicas("1 of 2")
    tried: list[object] = []
    plain = group.led.propose

    def propose(*arguments: Any) -> None:
        tried.append(arguments)
        plain(*arguments)

    group.led.propose = propose
    group.pass_ms(40_000)
    await rounds()
    return group, tried


@scenario
async def test_after_a_refusal_the_leader_writes_nothing_by_itself_for_a_while() -> None:
    with pytest.MonkeyPatch.context() as patch:
        group, tried = await refused_once(60.0, patch)
        assert len(tried) == 1
        group.pass_ms(1)
        await rounds()
        assert len(tried) == 1


@scenario
async def test_a_member_whose_leases_could_not_go_back_is_told_and_may_ask_again() -> None:
    group = Group(5)
    await lease_of(group, "a", 5)
    group.led.refuses = NotEnoughReplicas("1 of 2")
    asking = group.ask("a", 5)
    await rounds()
    assert isinstance(asking.answered.exception(), NotEnoughReplicas)
    group.led.refuses = None
    again = group.ask("a", 5)
    await rounds()
    assert offsets(again) == [(0, 5)]
    assert group.state.totals.charged == 0
