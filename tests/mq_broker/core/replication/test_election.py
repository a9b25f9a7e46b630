"""Rules 6 and 7: what a claim names, when it is made, and what its answer means."""

from __future__ import annotations

from dataclasses import replace

from mq_broker.core.messages import (
    CasAnswer,
    CasOutcome,
    Identity,
    LeaderName,
    NodeState,
    ReadNode,
    RecoveredLog,
    ReplicaSettings,
    Send,
    SoFar,
    WriteNode,
)
from mq_broker.core.replication.election import Election
from mq_broker.core.replication.replica_state import Node, Shared

GONE = LeaderName(2, 1)
ME = LeaderName(1, 1)
STATE = NodeState(GONE, 4, ((1, "one"), (2, "two"), (3, "three")), 0, "w", offset_floor=9)


class Scene:
    """Broker 1 may claim; broker 2 led and is gone."""

    def __init__(self, state: NodeState = STATE, minimum: int = 2, now_ms: int = 0) -> None:
        settings = ReplicaSettings((1, 2, 3, 4) if minimum == 3 else (1, 2, 3), minimum)
        self.shared = Shared("t", 0, Identity(1, 1, "one"), settings, RecoveredLog(), now_ms)
        self.shared.live = {1: 1, 3: 1} | ({4: 1} if minimum == 3 else {})
        self.shared.node = Node(7, state)
        self.shared.epoch = 4
        self.election = Election(self.shared)

    def claimed(self) -> NodeState | None:
        """What it writes now, if anything."""
        self.shared.effects.clear()
        self.election.tick()
        for effect in self.shared.effects[:]:
            if isinstance(effect, Send) and isinstance(effect.message, SoFar):
                name = dict(self.shared.node.state.isr).get(effect.to, "") if self.shared.node else ""
                life, question = self.shared.live[effect.to], effect.message.question
                self.election.company.answered(SoFar(effect.to, life, name, 4, 0, 0, question))
        if not any(isinstance(effect, WriteNode) for effect in self.shared.effects):
            self.election.tick()
        writes = [effect for effect in self.shared.effects if isinstance(effect, WriteNode)]
        self.shared.effects.clear()
        return writes[0].state if writes else None

    def reads(self) -> bool:
        """Whether it asks for the node; answered at once."""
        asked = ReadNode() in self.shared.effects
        self.shared.effects.clear()
        self.shared.reading_since_ms = None
        return asked


def test_a_claim_names_its_maker_the_next_epoch_and_the_set_less_the_former_leader() -> None:
    assert Scene().claimed() == NodeState(ME, 5, ((1, "one"), (3, "three")), 0, "1.1.1", 9)
    assert Scene(minimum=3).claimed() == NodeState(ME, 5, STATE.isr, 0, "1.1.1", 9), "unless too few are left"
    own = replace(STATE, leader=LeaderName(1, 0))
    assert Scene(own).claimed() == NodeState(ME, 5, STATE.isr, 0, "1.1.1", 9), "its own former life has the same log"
    nobody = replace(STATE, leader=None)
    assert Scene(nobody).claimed() == NodeState(ME, 5, STATE.isr, 0, "1.1.1", 9)


def test_a_log_that_is_not_named_claims_nothing_and_one_that_was_never_told_is_named() -> None:
    assert Scene(replace(STATE, isr=((1, "former"), (2, "two"), (3, "three")))).claimed() is None
    assert Scene(replace(STATE, isr=((2, "two"), (3, "three")))).claimed() is None
    claim = Scene(replace(STATE, leader=None, isr=((1, ""), (2, ""), (3, "three")))).claimed()
    assert claim is not None
    assert claim.isr == ((1, "one"), (2, ""), (3, "three"))


def test_a_leader_that_lives_is_not_replaced() -> None:
    scene = Scene()
    scene.shared.live[2] = 1
    assert scene.claimed() is None
    scene.shared.live[2] = 2
    assert scene.claimed() is not None, "another life of its broker is another leader"


def test_nothing_is_claimed_on_what_is_not_known_or_is_old() -> None:
    unknown = Scene()
    unknown.shared.node = None
    assert unknown.claimed() is None
    old = Scene()
    old.shared.epoch = 5
    assert old.claimed() is None
    reading = Scene()
    reading.shared.read_node()
    assert reading.claimed() is None
    unregistered = Scene()
    unregistered.shared.live[1] = 2
    assert unregistered.claimed() is None


def test_a_claim_is_not_made_twice_at_once() -> None:
    scene = Scene()
    assert scene.claimed() is not None
    assert scene.claimed() is None
    assert not scene.election.at_rest


def test_who_is_named_and_does_not_lead_claims_anew_or_says_that_nobody_leads() -> None:
    """Trap 27: a leader that is named, alive, and does not lead must not be waited for."""
    named = replace(STATE, leader=ME)
    claim = Scene(named).claimed()
    assert claim is not None
    assert (claim.leader, claim.leader_epoch) == (ME, 5)
    other_log = Scene(replace(named, isr=((1, "former"), (3, "three")))).claimed()
    assert other_log == replace(named, isr=((1, "former"), (3, "three")), leader=None, token="1.1.1")
    standing_back = Scene(named)
    standing_back.election.stand_back_until_ms = 1
    assert standing_back.claimed() == replace(named, leader=None, token="1.1.1")


def test_who_stands_back_claims_nothing_until_it_may() -> None:
    scene = Scene(replace(STATE, leader=None))
    scene.shared.read_node()
    scene.election.stand_back(1_000)
    assert scene.shared.effects[-2:] == [ReadNode(), ReadNode()], "the reading under way may be of before"
    assert scene.reads()
    for now_ms in (0, 149, 150, 999):
        scene.shared.now_ms = now_ms
        assert scene.claimed() is None
    scene.shared.now_ms = 1_000
    assert scene.claimed() is not None


def test_who_stood_back_gives_its_own_write_time_before_it_says_again_that_nobody_leads() -> None:
    scene = Scene(replace(STATE, leader=ME))
    scene.election.stand_back(1_000)
    assert scene.reads(), "the answer is of before its write"
    scene.shared.now_ms = 149
    assert scene.claimed() is None
    scene.shared.now_ms = 150
    said = scene.claimed()
    assert said is not None
    assert (said.leader, said.leader_epoch) == (None, 4)


def test_a_success_makes_a_leader_only_by_the_highest_version_and_epoch() -> None:
    scene = Scene()
    claim = scene.claimed()
    assert claim is not None
    done = CasAnswer(claim.token, CasOutcome.DONE, 8)
    assert scene.election.answered(replace(done, token="another")) is None
    assert scene.election.answered(done) == claim
    assert (scene.shared.node, scene.shared.epoch) == (Node(8, claim), 5)
    assert scene.election.answered(done) is None, "once"

    overtaken = Scene()
    claim = overtaken.claimed()
    newer = Node(9, replace(STATE, leader_epoch=6))
    overtaken.shared.node, overtaken.shared.epoch = newer, 6
    assert overtaken.election.answered(done) is None
    assert (overtaken.shared.node, overtaken.shared.epoch) == (newer, 6)

    deposed = Scene()
    deposed.claimed()
    deposed.shared.epoch = 6
    assert deposed.election.answered(done) is None
    assert deposed.shared.epoch == 6, "an epoch seen is never given up"


def test_a_success_is_of_no_use_to_who_is_not_registered_or_whose_log_is_another_now() -> None:
    """Trap 26."""
    for change in ("session", "log"):
        scene = Scene()
        claim = scene.claimed()
        assert claim is not None
        if change == "session":
            scene.shared.live.clear()
        else:
            scene.shared.me = replace(scene.shared.me, log_id="another")
        assert scene.election.answered(CasAnswer(claim.token, CasOutcome.DONE, 8)) is None


def test_a_refused_or_unanswered_claim_reads_the_node_and_waits_a_while() -> None:
    for outcome in (CasOutcome.REFUSED, CasOutcome.UNKNOWN):
        scene = Scene()
        claim = scene.claimed()
        assert claim is not None
        scene.shared.read_node()
        scene.shared.effects.clear()
        assert scene.election.answered(CasAnswer(claim.token, outcome)) is None
        assert scene.reads()
        scene.shared.now_ms = 149
        assert scene.claimed() is None
        scene.shared.now_ms = 150
        assert scene.claimed() is not None


def test_an_unanswered_claim_is_taken_up_once_the_node_shows_it_whole() -> None:
    def lost() -> tuple[Scene, NodeState]:
        scene = Scene()
        claim = scene.claimed()
        assert claim is not None
        scene.election.answered(CasAnswer(claim.token, CasOutcome.UNKNOWN))
        scene.shared.live[2] = 1
        assert not scene.election.at_rest, "though broker 2 leads, as far as is known"
        del scene.shared.live[2]
        scene.shared.epoch = 5
        return scene, claim

    scene, claim = lost()
    scene.shared.node = Node(8, claim)
    assert scene.election.node_changed() == claim
    assert scene.election.node_changed() is None, "once"

    scene, claim = lost()
    scene.shared.node = Node(9, replace(claim, isr=((1, "one"),)))
    assert scene.election.node_changed() is None, "somebody has changed it by hand since"

    scene, claim = lost()
    scene.shared.node = Node(8, replace(STATE, token="another's"))
    assert scene.election.node_changed() is None
    assert scene.claimed() is None, "the epoch of the claim was seen, and this node is of a lower one"

    scene, claim = lost()
    scene.shared.now_ms, scene.shared.epoch, scene.shared.reading_since_ms = 150, 4, None
    assert scene.claimed() is not None
    scene.shared.node, scene.shared.epoch = Node(8, claim), 5
    assert scene.election.node_changed() is None, "another claim is in flight: its answer will tell"


def test_a_later_success_settles_a_claim_that_was_not_answered() -> None:
    """Rule 7."""
    scene = Scene()
    for outcome in (CasOutcome.UNKNOWN, CasOutcome.DONE):
        claim = scene.claimed()
        assert claim is not None
        scene.election.answered(CasAnswer(claim.token, outcome, 8))
        scene.shared.now_ms, scene.shared.reading_since_ms = 150, None
    scene.shared.epoch = 9
    assert scene.election.at_rest, "another leads a later epoch, and nothing of this one is open"


def test_a_node_that_was_read_anew_lets_a_claim_be_made_at_once() -> None:
    scene = Scene()
    claim = scene.claimed()
    assert claim is not None
    scene.election.answered(CasAnswer(claim.token, CasOutcome.REFUSED))
    scene.shared.reading_since_ms = None
    scene.shared.node = Node(8, STATE)
    scene.election.node_changed()
    assert scene.claimed() is not None


def test_a_successor_is_preferred_for_a_while_and_waits_for_nobody() -> None:
    state = NodeState(None, 4, ((1, "one"), (2, "two"), (3, "three")), 0, "w")
    second = Scene(state)
    second.shared.settings = ReplicaSettings((3, 2, 1), 2)
    assert second.claimed() is None, "broker 3 comes first"
    second.election.reconsider()
    second.election.prefer(True)
    assert second.election.preferred
    assert not second.election.at_rest
    assert second.claimed() is not None
    second.shared.now_ms = 1_999
    assert second.election.preferred
    second.shared.now_ms = 2_000
    assert not second.election.preferred
    second.election.prefer(True)
    second.election.prefer(False)
    assert not second.election.preferred


def test_there_is_rest_where_the_node_gives_no_reason_to_claim() -> None:
    scene = Scene()
    assert not scene.election.at_rest, "nobody leads"
    scene.shared.live[2] = 1
    assert scene.election.at_rest
    scene.shared.node = None
    assert not scene.election.at_rest
    scene = Scene()
    scene.shared.epoch = 5
    assert scene.election.at_rest, "the node is of a former epoch: whoever leads the present one is heard of"
