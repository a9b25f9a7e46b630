"""Dead letters of a group as its leader gathers them: numbers, lives, and records that are known to be doomed twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.broker.queues.requests import OwnSteps, Sending
from mq_broker.core.work.settling import Rejected, SendDead
from mq_broker.core.work.steps import Begin, End, OutputLine, Reason
from mq_protocol.errors import NotLeader, OutcomeUnknown
from tests.mq_broker.broker.queues.partitions import EPOCH, Group, rounds, scenario

LINE = OutputLine("0" * 32, 0, (bytes(16),))


async def doomed(group: Group, life: int = 1) -> Sending:
    """Letters of the record that comes next, which a member has rejected."""
    asking = group.ask("a", 1)
    await rounds()
    [run] = asking.answered.result().runs
    group.outcome(Rejected("bad"), "a", asking.answered.result().lease, (run.first, run.end))
    await rounds()
    return Sending(life, SendDead(((run.first, run.end),), Reason.REJECTED, (LINE,)))


@scenario
async def test_numbers_of_a_later_life_go_on_where_the_former_one_ended() -> None:
    group = Group(10, dead_letter="dead")
    sending = await doomed(group)
    group.gathering.send(sending)
    await rounds()
    assert not sending.answered.result().lost
    assert list(group.state.outbox) == [EPOCH << 32]
    for steps, life in (((End(),), 1), ((Begin(0),), 2)):
        group.gathering.add(OwnSteps(life, steps))
        await rounds()
    assert group.queue is not None
    group.queue = replace(group.queue, life=2)
    group.gathering.wake()
    await rounds()
    sending = await doomed(group, 2)
    group.gathering.send(sending)
    await rounds()
    assert list(group.state.outbox) == [(EPOCH << 32) + 1], "its partitions take a lower one for done"


@scenario
async def test_letters_of_a_former_life_are_not_sent() -> None:
    group = Group(10, dead_letter="dead")
    sending = await doomed(group)
    sending.life = 7
    group.gathering.send(sending)
    await rounds()
    assert sending.answered.result().lost
    assert not group.state.outbox


@scenario
async def test_whoever_waits_for_letters_when_the_leadership_ends_is_told_that_it_is_not_known() -> None:
    group = Group(10, dead_letter="dead")
    sending = await doomed(group)
    group.led.keeps_up = False
    group.gathering.send(sending)
    await rounds()
    assert group.led.in_flight == 1
    group.gathering.close(NotLeader("another one leads"))
    assert not sending.answered.done(), "its entry may be committed yet"
    group.led.lose(OutcomeUnknown("another one leads"))
    with pytest.raises(OutcomeUnknown):
        sending.answered.result()
