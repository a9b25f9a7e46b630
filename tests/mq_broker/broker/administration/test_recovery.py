"""Rule 15: when no named log is left, what is kept, what is given up, and when that is refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.administration.recovery import Choice, TotalLoss, choose, describe
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topics
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.core.messages import LeaderName, NodeState
from mq_broker.rpc.calls import Calls
from mq_broker.rpc.peer_proof import PeerProof
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import OFFSETS_OF_A_LIFE
from tests.coroutines import virtual_time
from tests.mq_broker.broker.host.test_shell import shell, until

LOST = NodeState(LeaderName(1, 7), 5, ((1, "one"), (2, "two")), 2, "w", offset_floor=40)


def status(
    broker: int, log_id: str, epoch: int = 5, index: int = 10, end: int = 100, **fields: object
) -> pb.ReplicaStatusResponse:
    values = {"recovery": 2, **fields}
    return pb.ReplicaStatusResponse(
        broker=broker, open=True, log_id=log_id, last_epoch=epoch, last_index=index, next_offset=end, **values
    )


def chosen(*statuses: pb.ReplicaStatusResponse, state: NodeState = LOST, **options: object) -> Choice:
    return choose("t-0", state, {s.broker: s for s in statuses}, "mine", **options)  # type: ignore[arg-type]


@dataclass
class LogIdentity:
    log_id: str
    recovery: int


@dataclass
class Replica:
    identity: LogIdentity
    last_epoch: int = 4
    last_index: int = 5
    next_offset_at_most: int = 6
    leading: bool = True
    leader_epoch: int = 7


def test_a_replica_says_all_that_a_recovery_is_chosen_by() -> None:
    """Each value is another, so that none can stand in the place of another."""
    replica: Any = Replica(LogIdentity("log", 3))
    told = pb.ReplicaStatusResponse(broker=2)
    describe(replica, told)
    assert told == pb.ReplicaStatusResponse(
        broker=2,
        open=True,
        log_id="log",
        recovery=3,
        last_epoch=4,
        last_index=5,
        next_offset=6,
        leading=True,
        seen_epoch=7,
    )


def test_the_log_of_the_highest_epoch_and_then_length_is_kept() -> None:
    choice = chosen(
        status(1, "new1", epoch=4, index=90), status(2, "new2", epoch=5, index=8), status(3, "three", epoch=5, index=9)
    )
    assert choice.kept.broker == 3
    assert choice.state == NodeState(None, 6, ((3, "three"),), 3, "mine", OFFSETS_OF_A_LIFE)
    assert choice.given_up == (1, 2)


def test_a_log_is_not_chosen_that_is_about_to_be_put_aside_by_the_recovery_before() -> None:
    passed_over, left = status(1, "new1", index=90, recovery=1), status(2, "new2", index=8)
    with pytest.raises(InvalidRequest, match=r"broker 1 has not heard of the recovery before this one.*ask again"):
        chosen(passed_over, left)
    assert chosen(passed_over, left, force=True).kept.broker == 2
    with pytest.raises(InvalidRequest, match="broker 1 has not heard"):
        chosen(passed_over, left, force=True, from_broker=1)
    with pytest.raises(InvalidRequest, match="broker 1 has not heard"):
        chosen(passed_over, force=True)
    named = replace(LOST, isr=((1, "new1"), (2, "two")))
    assert chosen(passed_over, left, state=named, force=True).kept.broker == 1, (
        "it was chosen, and hears so in a moment"
    )
    assert chosen(status(1, "new1", index=0, recovery=1), left).kept.broker == 2, "one that is empty loses nothing"


def test_new_offsets_begin_above_all_that_anybody_has_seen() -> None:
    kept, whole = status(3, "three", epoch=6, end=50), status(2, "two", end=60)
    assert chosen(status(1, "new1", end=70), whole, kept, force=True).state.offset_floor == 70
    assert chosen(status(1, "new1", end=7), status(2, "two", end=0), force=True).state.offset_floor == 40
    assert chosen(whole, force=True).state.offset_floor == 60, "it has all that was ever readable"


def test_offsets_go_on_at_the_next_life_each_time() -> None:
    later = OFFSETS_OF_A_LIFE + 5
    assert chosen(status(1, "new1", end=later), status(2, "new2", end=7)).state.offset_floor == 2 * OFFSETS_OF_A_LIFE


def test_offsets_go_far_beyond_what_is_known_when_no_log_is_left_that_has_all_of_it() -> None:
    emptied = status(1, "new1", epoch=0, index=0, end=0)
    assert chosen(emptied, status(2, "new2", end=70)).state.offset_floor == OFFSETS_OF_A_LIFE
    assert chosen(status(2, "new2", end=70), force=True).state.offset_floor == OFFSETS_OF_A_LIFE
    assert chosen(emptied, status(2, "new2", epoch=0, index=0, end=0)).state.offset_floor == OFFSETS_OF_A_LIFE
    # Neither is empty, and a power loss may have cost both their ends: somebody may have read further than either goes
    # now.
    assert chosen(status(1, "new1", end=70), status(2, "new2", end=60)).state.offset_floor == OFFSETS_OF_A_LIFE


def test_it_is_refused_while_a_named_log_exists() -> None:
    with pytest.raises(InvalidRequest, match="broker 2 has a log that is in sync"):
        chosen(status(1, "new1"), status(2, "two"))
    assert chosen(status(1, "new1", index=20), status(2, "two"), force=True).kept.broker == 1


def test_it_is_refused_while_a_named_log_may_exist() -> None:
    with pytest.raises(InvalidRequest, match=r"broker 2 was in sync and does not answer.*start it"):
        chosen(status(1, "new1"))
    with pytest.raises(InvalidRequest, match="broker 2 was in sync and does not answer"):
        chosen(status(1, "new1"), pb.ReplicaStatusResponse(broker=2))
    choice = chosen(status(1, "new1"), force=True)
    assert (choice.kept.broker, choice.given_up) == (1, (2,))


def test_it_is_refused_while_a_replica_is_being_opened_that_may_have_more() -> None:
    opening = pb.ReplicaStatusResponse(broker=3)
    with pytest.raises(InvalidRequest, match=r"broker 3 does not answer.*or has not opened it yet.*ask again"):
        chosen(status(1, "new1"), status(2, "new2"), opening)
    assert chosen(status(1, "new1"), status(2, "new2"), opening, force=True).kept.broker == 1


def test_it_is_refused_while_somebody_leads_even_by_force() -> None:
    with pytest.raises(InvalidRequest, match="led by broker 1: there is nothing to recover"):
        chosen(status(1, "one", leading=True), status(2, "new2"), force=True)


def test_a_topic_that_nobody_has_led_yet_needs_no_recovery() -> None:
    unborn = NodeState(None, 0, ((1, ""), (2, "")), 0, "")
    with pytest.raises(InvalidRequest, match="broker 1 has a log that is in sync"):
        chosen(status(1, "one"), state=unborn)


def test_the_operator_may_say_whose_log_it_is_to_be() -> None:
    choice = chosen(status(1, "new1", index=20), status(2, "new2"), from_broker=2)
    assert choice.state.isr == ((2, "new2"),)
    with pytest.raises(InvalidRequest, match=r"broker 3 has no open replica; those that have: \[1, 2\]"):
        chosen(status(1, "new1"), status(2, "new2"), from_broker=3)


@virtual_time
async def test_replicas_look_at_the_node_once_it_says_that_the_partition_was_recovered(tmp_path: Path) -> None:
    """No tick comes to them here, as hardly any does to a replica at rest."""
    async with shell(tmp_path, isr=((1, "gone"),)) as broker:
        topics = Topics(broker.coordination, broker.follow_topics)
        cluster = Cluster(broker.coordination, BrokerRegistration(1, 1, "here"), lambda: None, lambda: None)
        total_loss = TotalLoss(broker, cluster, topics, broker.coordination, Calls(PeerProof(1, 1, "c", bytes(32))))
        topic = await topics.get("t")
        await until(lambda: broker.hosted(topic, 0) is not None)
        await total_loss.recover(pb.RecoverRequest(topic="t"), asyncio.get_running_loop().time() + 20)
        await until(lambda: broker.partition(topic, 0).replica.identity.recovery == 1)


def test_the_new_epoch_is_above_every_epoch_that_a_replica_has_seen_so_that_all_obey_it() -> None:
    far = 6 + (1 << 20)
    choice = chosen(status(1, "new1"), status(2, "new2", seen_epoch=far), force=True)
    assert choice.state.leader_epoch == far + 1


def test_a_log_of_an_epoch_after_which_there_is_none_is_not_gone_on_from() -> None:
    beyond = status(2, "new2", epoch=1 << 32, seen_epoch=1 << 32)
    choice = chosen(status(1, "new1"), beyond, force=True)
    assert choice.kept.broker == 1
    assert choice.state.leader_epoch < 1 << 31
    with pytest.raises(InvalidRequest, match="aside"):
        chosen(beyond, force=True)


def test_the_new_epoch_is_above_what_a_log_that_is_passed_over_has_seen_too() -> None:
    """Else its broker never obeys the node, hears of no recovery, and has each one after this refused."""
    passed_over = status(1, "new1", recovery=1, seen_epoch=12, end=500)
    choice = chosen(passed_over, status(2, "two", end=60), force=True)
    assert (choice.kept.broker, choice.state.leader_epoch, choice.state.offset_floor) == (2, 13, 500)


def test_a_recovery_has_a_number_that_no_log_has_gone_on_under() -> None:
    """The coordination service may have been restored from a backup."""
    assert chosen(status(1, "new1", recovery=4), status(2, "new2", recovery=3)).state.recovery == 5


def test_whose_log_it_is_to_be_changes_nothing_of_what_is_waited_for() -> None:
    opening, left = pb.ReplicaStatusResponse(broker=3), status(2, "new2", index=8)
    with pytest.raises(InvalidRequest, match="broker 3 does not answer for its replica"):
        chosen(status(1, "new1"), left, opening, from_broker=2)
    with pytest.raises(InvalidRequest, match="broker 1 was in sync and does not answer"):
        chosen(pb.ReplicaStatusResponse(broker=1), left, from_broker=2)
    with pytest.raises(InvalidRequest, match="broker 1 has a log that is in sync"):
        chosen(status(1, "one"), left, from_broker=2)
    assert chosen(status(1, "one"), left, opening, from_broker=2, force=True).kept.broker == 2
