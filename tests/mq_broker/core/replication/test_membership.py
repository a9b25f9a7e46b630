"""Rules 5 and 7: who is dropped from the in-sync set and who joins it, and what an answer to such a write settles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.messages import (
    CasAnswer,
    CasOutcome,
    Effect,
    Identity,
    LeaderName,
    NodeState,
    ReadNode,
    RecoveredLog,
    ReplicaSettings,
    WriteNode,
)
from mq_broker.core.replication.membership import Isr, Membership
from mq_broker.core.replication.progress import Progress
from mq_broker.core.replication.replica_state import Node, Shared

THREE: Isr = ((1, "one"), (2, "two"), (3, "three"))
TWO = THREE[:2]
EPOCH_START = 5
LAG_MS = 4_000


class Scene:
    """Broker 1 leads; brokers 2 and 3 have the epoch start, in sync or not."""

    def __init__(self, isr: Isr = THREE, minimum: int = 2, now_ms: int = 0) -> None:
        settings = ReplicaSettings((1, 2, 3), minimum, replica_lag_ms_max=LAG_MS)
        self.shared = Shared("t", 0, Identity(1, 1, "one"), settings, RecoveredLog(), now_ms)
        self.shared.live = {1: 1, 2: 1, 3: 1}
        self.state = NodeState(LeaderName(1, 1), 1, isr, 0, "claim")
        self.shared.node = Node(7, self.state)
        self.shared.high_watermark = EPOCH_START
        self.membership = Membership(self.shared, self.state)
        self.followers = {broker: Progress(broker, 1, 0) for broker in (2, 3)}
        for broker, log_id in ((2, "two"), (3, "three")):
            self.followers[broker].log_id, self.followers[broker].incarnation = log_id, 1
            self.followers[broker].acknowledged = EPOCH_START

    def proposed(self, *, shrink: bool = True) -> WriteNode | None:
        """The write that comes of it."""
        self.membership.propose(self.followers, EPOCH_START, shrink=shrink)
        writes = [effect for effect in self.effects() if isinstance(effect, WriteNode)]
        return writes[0] if writes else None

    def isr(self, *, shrink: bool = True) -> Isr | None:
        write = self.proposed(shrink=shrink)
        return write.state.isr if write is not None else None

    def effects(self) -> list[Effect]:
        effects, self.shared.effects = self.shared.effects, []
        return effects


def test_a_set_that_is_as_it_should_be_is_not_written() -> None:
    assert Scene().proposed() is None


def test_a_write_names_the_version_that_it_is_about_and_a_token_of_its_own() -> None:
    scene = Scene(TWO)
    write = scene.proposed()
    assert write is not None
    assert (write.expected_version, write.state) == (7, replace(scene.state, isr=THREE, token="1.1.1"))


def test_who_is_gone_or_has_another_log_or_lags_is_dropped() -> None:
    gone = Scene()
    del gone.shared.live[3]
    assert gone.isr() == TWO
    another = Scene()
    another.followers[3].log_id, another.followers[3].acknowledged = "emptied", 0
    assert another.isr() == TWO
    lagging = Scene()
    lagging.followers[3].behind_since_ms = 0
    lagging.shared.now_ms = LAG_MS
    assert lagging.isr() is None
    lagging.shared.now_ms = LAG_MS + 1
    assert lagging.isr() == TWO


def test_who_has_not_spoken_in_this_epoch_is_waited_for() -> None:
    scene = Scene()
    scene.followers[3].log_id, scene.followers[3].acknowledged = "", 0
    assert scene.isr() is None


def test_who_is_no_replica_any_more_is_dropped() -> None:
    scene = Scene()
    scene.shared.settings = replace(scene.shared.settings, replicas=(1, 2))
    assert scene.isr() == TWO
    scene = Scene()
    del scene.followers[3]
    assert scene.isr() == TWO


@pytest.mark.parametrize(("minimum", "left"), [(1, THREE[:1]), (2, (THREE[0], THREE[2])), (3, None)])
def test_the_set_never_gets_smaller_than_the_floor_and_the_gone_go_before_the_lagging(
    minimum: int, left: Isr | None
) -> None:
    scene = Scene(minimum=minimum)
    scene.followers[3].behind_since_ms = 0
    scene.shared.now_ms = LAG_MS + 1
    del scene.shared.live[2]
    assert scene.isr() == left


def test_a_leader_that_may_drop_nobody_still_takes_others_in() -> None:
    scene = Scene(TWO)
    del scene.shared.live[2]
    assert scene.isr(shrink=False) == THREE


def test_who_has_the_high_watermark_and_the_epoch_start_joins() -> None:
    scene = Scene(TWO)
    scene.followers[3].acknowledged = EPOCH_START - 1
    assert scene.isr() is None
    scene.followers[3].acknowledged = EPOCH_START
    scene.shared.high_watermark = EPOCH_START + 1
    assert scene.isr() is None
    scene.shared.high_watermark = EPOCH_START - 1
    assert scene.isr() == THREE


def test_who_is_in_doubt_does_not_join() -> None:
    disputed = Scene(TWO)
    disputed.followers[3].disputed = True
    assert disputed.isr() is None
    lagging = Scene(TWO)
    lagging.followers[3].behind_since_ms = 0
    lagging.shared.now_ms = LAG_MS + 1
    assert lagging.isr() is None
    lagging.shared.now_ms = LAG_MS
    assert lagging.isr() == THREE
    unregistered = Scene(TWO)
    del unregistered.shared.live[3]
    assert unregistered.isr() is None
    later_life = Scene(TWO)
    later_life.shared.live[3] = 2
    assert later_life.isr() is None, "its log may be another, and it has not spoken yet"
    unspoken = Scene(TWO)
    unspoken.followers[3].log_id = ""
    assert unspoken.isr() is None
    elsewhere = Scene(TWO)
    elsewhere.shared.settings = replace(elsewhere.shared.settings, replicas=(1, 2))
    assert elsewhere.isr() is None


def test_one_in_doubt_keeps_no_other_from_joining() -> None:
    for doubt in ("disputed", "lagging", "elsewhere"):
        scene = Scene(THREE[:1], minimum=1)
        if doubt == "disputed":
            scene.followers[2].disputed = True
        elif doubt == "lagging":
            scene.followers[2].behind_since_ms, scene.shared.now_ms = 0, LAG_MS + 1
        else:
            scene.shared.settings = replace(scene.shared.settings, replicas=(1, 3))
        assert scene.isr() == (THREE[0], THREE[2])


def test_one_write_at_a_time() -> None:
    scene = Scene(TWO)
    assert scene.proposed() is not None
    assert not scene.membership.at_rest
    assert scene.proposed() is None
    assert not scene.membership.resign(TWO)
    scene.membership.answered(CasAnswer("1.1.1", CasOutcome.DONE, 8))
    assert scene.membership.at_rest
    assert scene.membership.resign(TWO)
    [write] = scene.effects()
    assert isinstance(write, WriteNode)
    assert (write.expected_version, write.state.leader, write.state.isr) == (8, None, TWO)


def test_a_proposal_is_waited_for_as_soon_as_it_may_have_happened_and_counts_once_it_has() -> None:
    """The maximal set: whom the high watermark is counted over."""
    scene = Scene(TWO)
    scene.proposed()
    assert scene.membership.maximal() == list(THREE)
    assert scene.membership.brokers() == (1, 2)
    assert scene.membership.answered(CasAnswer("1.1.1", CasOutcome.DONE, 8))
    assert scene.membership.confirmed == THREE
    assert scene.shared.node is not None
    assert scene.shared.node.version == 8


def test_an_answer_to_another_write_settles_nothing() -> None:
    scene = Scene(TWO)
    assert scene.membership.answered(CasAnswer("a claim of before", CasOutcome.REFUSED))
    scene.proposed()
    assert scene.membership.answered(CasAnswer("another", CasOutcome.REFUSED))
    assert scene.membership.maximal() == list(THREE)
    assert scene.proposed() is None, "its own is still in flight"


def test_a_success_that_is_older_than_what_was_read_since_changes_nothing() -> None:
    scene = Scene(TWO)
    scene.proposed()
    newer = Node(9, replace(scene.state, isr=((1, "one"), (2, "another")), token="x"))
    scene.shared.node = newer
    scene.membership.node_changed(newer.state)
    assert scene.membership.answered(CasAnswer("1.1.1", CasOutcome.DONE, 8))
    assert (scene.shared.node, scene.membership.confirmed) == (newer, newer.state.isr)


def test_an_unanswered_write_is_waited_for_and_written_again_after_a_while() -> None:
    scene = Scene()
    del scene.shared.live[3]
    assert scene.isr() == TWO
    assert scene.membership.answered(CasAnswer("1.1.1", CasOutcome.UNKNOWN))
    assert scene.effects() == [ReadNode()]
    assert scene.membership.maximal() == list(THREE)
    assert not scene.membership.at_rest
    scene.shared.now_ms = scene.shared.settings.claim_delay_ms - 1
    assert scene.proposed() is None
    scene.shared.now_ms += 1
    scene.shared.live[3] = 1
    again = scene.proposed()
    assert again is not None, "it is back: the former proposal may have happened all the same, and must be settled"
    assert again.state.isr == THREE
    scene.membership.node_changed(scene.state)
    assert scene.membership.maximal() == list(THREE)


def test_a_higher_version_settles_everything_and_the_next_write_need_not_wait() -> None:
    scene = Scene()
    del scene.shared.live[3]
    scene.proposed()
    scene.membership.answered(CasAnswer("1.1.1", CasOutcome.UNKNOWN))
    scene.shared.node = Node(8, replace(scene.state, isr=TWO))
    scene.membership.node_changed(scene.shared.node.state)
    assert scene.membership.at_rest
    assert scene.membership.maximal() == list(TWO)
    scene.shared.live[3] = 1
    assert scene.isr() == THREE


def test_a_refusal_asks_for_the_node_unless_a_later_version_is_known_already() -> None:
    scene = Scene(TWO)
    scene.shared.read_node()
    scene.effects()
    scene.proposed()
    assert not scene.membership.answered(CasAnswer("1.1.1", CasOutcome.REFUSED))
    assert scene.effects() == [ReadNode()], "the reading under way may be of before"
    known = Scene(TWO)
    known.proposed()
    known.shared.node = Node(8, known.state)
    assert known.membership.answered(CasAnswer("1.1.1", CasOutcome.REFUSED))
    assert known.effects() == []


def test_an_unanswered_write_asks_for_the_node_again_though_a_reading_is_under_way() -> None:
    scene = Scene(TWO)
    scene.shared.read_node()
    scene.proposed()
    assert scene.membership.answered(CasAnswer("1.1.1", CasOutcome.UNKNOWN))
    assert scene.effects() == [ReadNode()], "the reading under way may be of before"


def test_nothing_is_written_before_the_node_is_known() -> None:
    scene = Scene(TWO)
    scene.shared.node = None
    assert scene.proposed() is None
    assert not scene.membership.resign(TWO)
