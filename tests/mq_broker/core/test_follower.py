"""Rule 2 in the core: what a follower takes for committed, where the leader's messages leave most of its own log unproved."""

from __future__ import annotations

import itertools

from mq_broker.core.entries import Append, Entry
from mq_broker.core.messages import (
    AppendEntries,
    Effect,
    Flushed,
    Identity,
    LeaderName,
    NodeRead,
    NodeState,
    Published,
    RecoveredLog,
    ReplicaSettings,
    TurnEnded,
)
from mq_broker.core.replica import Replica


def entry(index: int, epoch: int) -> Entry:
    return Entry(index, epoch, index, Append(), bytes([index, epoch]) * 8, 1, 10, 10)


def published(*steps: list[Effect]) -> list[int]:
    return [effect.index for effect in itertools.chain(*steps) if isinstance(effect, Published)]


def test_no_more_is_committed_than_a_message_of_this_epoch_proved_to_match() -> None:
    """A message names what comes before it, and how far the leader's log is committed, which may be further than that."""
    settings = ReplicaSettings((1, 2, 3), 2)
    follower = Replica("t", 0, Identity(1, 1, "one"), settings, RecoveredLog((entry(1, 5), entry(2, 5), entry(3, 5))), 0)
    follower.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"), (3, "three")), 0, "w")))
    told = AppendEntries(2, 1, 6, prev_index=1, prev_epoch=5, last_index=1, high_watermark=3, sequence=1)
    assert published(follower.step(told), follower.step(TurnEnded(1))) == [1]  # 2 and 3 are of a former leader alone
    instead = AppendEntries(2, 1, 6, 1, 5, 2, 3, 2, (entry(2, 6),))
    assert published(follower.step(instead), follower.step(TurnEnded(2))) == []  # this disk may refuse it yet
    assert published(follower.step(Flushed(2, 6)), follower.step(TurnEnded(3))) == [2]
    assert follower.machine.next_offset == 2
