"""Rule 15: a recovery is in the node before the chosen log's disk remembers it, and may never come to be remembered."""

from __future__ import annotations

import pytest

from mq_broker.broker.administration.recovery import choose, describe
from mq_broker.core.entries import Append, Entry, EpochStart, Operation
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    BrokersSeen,
    Effect,
    Identity,
    Install,
    InstallSnapshot,
    LeaderName,
    NodeRead,
    NodeState,
    ReadNode,
    RecoveredLog,
    RecoveryAdopted,
    ReplicaSettings,
    Send,
    StartOver,
    Truncate,
    TurnEnded,
    WriteEntries,
)
from mq_broker.core.replication.replica import Replica
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest

LOST = NodeState(LeaderName(1, 1), 5, ((1, "a"), (2, "b"), (3, "c")), 0, "w")
"""Each of those logs has lost its end and has another id."""


def entry(index: int, epoch: int, operation: Operation | None = None) -> Entry:
    return Entry(index, epoch, index, operation or Append(), bytes([index]) * 16, 1, 10, 10)


def opened(broker: int, log_id: str, entries: tuple[Entry, ...], recovery: int = 0, replicas: int = 3) -> Replica:
    settings = ReplicaSettings(tuple(range(1, replicas + 1)), min(2, replicas))
    return Replica("t", 0, Identity(broker, 2, log_id, recovery), settings, RecoveredLog(entries), 0)


def appends(count: int) -> tuple[Entry, ...]:
    return tuple(entry(index, 5) for index in range(1, count + 1))


def three() -> dict[int, Replica]:
    """The first has most."""
    return {broker: opened(broker, f"new-{broker}", appends(11 - broker)) for broker in (1, 2, 3)}


def statuses(replicas: dict[int, Replica]) -> dict[int, pb.ReplicaStatusResponse]:
    found = {broker: pb.ReplicaStatusResponse(broker=broker) for broker in replicas}
    for broker, replica in replicas.items():
        describe(replica, found[broker])
    return found


def of(effects: list[Effect], *kinds: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kinds)]


def put_aside(replicas: dict[int, Replica], read: NodeRead) -> list[int]:
    return [broker for broker, replica in replicas.items() if of(replica.step(read), StartOver)]


def test_the_chosen_log_stays_though_its_broker_lost_power_before_it_had_adopted_the_recovery() -> None:
    replicas = three()
    assert put_aside(replicas, NodeRead(7, LOST)) == []
    chosen = choose("t-0", LOST, statuses(replicas), "recover.x")
    assert (chosen.kept.broker, chosen.state.isr) == (1, ((1, "new-1"),))
    replicas[1] = opened(1, "newer-1", appends(10))
    assert put_aside(replicas, NodeRead(8, chosen.state)) == []
    again = choose("t-0", chosen.state, statuses(replicas), "recover.y")
    assert (again.kept.broker, again.kept.last_index) == (1, 10)
    leads = NodeState(LeaderName(1, 2), again.state.leader_epoch + 1, again.state.isr, again.state.recovery, "w")
    assert put_aside(replicas, NodeRead(10, leads)) == [2, 3]


def test_logs_are_put_aside_once_another_one_leads_and_not_before() -> None:
    """The broker of the chosen log may be gone for good: then they are all that there is."""
    replicas = three()
    chosen = choose("t-0", LOST, statuses(replicas), "recover.x")
    del replicas[1]
    assert put_aside(replicas, NodeRead(8, chosen.state)) == []
    again = choose("t-0", chosen.state, statuses(replicas), "recover.y", force=True)
    assert (again.kept.broker, again.kept.last_index) == (2, 9)


def test_a_log_that_waits_for_the_chosen_one_takes_nothing_of_the_new_life() -> None:
    waiting = three()[3]
    recovered = NodeState(None, 6, ((1, "new-1"),), 1, "recover.x")
    waiting.step(BrokersSeen((LeaderName(1, 2), LeaderName(3, 2))))
    assert not of(waiting.step(NodeRead(8, recovered)), StartOver)
    start = AppendEntries(1, 2, 7, 8, 5, 9, 0, 1, (entry(9, 7, EpochStart(1, 0, 1)),))
    effects = waiting.step(start)
    assert not of(effects, WriteEntries)
    assert of(effects, ReadNode)
    snapshot = InstallSnapshot(1, 2, 7, 2, Snapshot(20, 7, 20, MachineState(next_offset=3)))
    assert not of(waiting.step(snapshot), Install)
    led = NodeState(LeaderName(1, 2), 7, ((1, "new-1"),), 1, "w")
    assert of(waiting.step(NodeRead(9, led)), RecoveryAdopted), "the leader has all that is here, as it has said"
    assert of(waiting.step(start), WriteEntries)


def test_a_log_that_waits_for_the_chosen_one_is_not_cut() -> None:
    """The chosen log is shorter, as an operator may say. What is here is to be kept aside, not cut, also by a message
    that comes before the epoch start."""
    sent = tuple(entry(index, 4) for index in (6, 7, 8))
    former = (*(entry(index, 4) for index in range(1, 6)), *(entry(index, 5) for index in range(6, 21)))
    waiting = opened(3, "new-3", former)
    waiting.step(BrokersSeen((LeaderName(1, 2), LeaderName(3, 2))))
    waiting.step(NodeRead(8, NodeState(None, 6, ((1, "new-1"),), 1, "recover.x")))
    before = sent[0].index - 1
    effects = waiting.step(AppendEntries(1, 2, 7, before, 4, sent[-1].index, 0, 1, sent))
    assert not of(effects, Truncate, WriteEntries)
    assert of(effects, ReadNode)
    assert waiting.last_index == 20
    led = NodeState(LeaderName(1, 2), 7, ((1, "new-1"),), 1, "w")
    assert of(waiting.step(NodeRead(9, led)), StartOver) == [StartOver(1)]


def test_a_log_that_waits_takes_nothing_of_a_leader_that_has_stood_back() -> None:
    """Its messages were on their way when that log read that nobody leads, in the epoch that they are of."""
    waiting = three()[3]
    waiting.step(BrokersSeen((LeaderName(1, 2), LeaderName(3, 2))))
    waiting.step(NodeRead(10, NodeState(None, 7, ((1, "new-1"),), 1, "1.2.2")))
    cut = tuple(entry(index, 4) for index in (7, 8))
    assert not of(waiting.step(AppendEntries(1, 2, 7, 6, 5, 8, 0, 1, cut)), Truncate, WriteEntries)
    start = (entry(9, 7, EpochStart(1, 0, 1)),)
    assert not of(waiting.step(AppendEntries(1, 2, 7, 8, 5, 9, 0, 2, start)), WriteEntries)
    assert not of(waiting.step(InstallSnapshot(1, 2, 7, 3, Snapshot(20, 7, 20, MachineState()))), Install)


def test_logs_that_wait_are_gone_on_from_though_the_chosen_one_led_meanwhile() -> None:
    """They did not hear of it: they read the node before, and when its leader had written that nobody leads."""
    replicas = three()
    chosen = choose("t-0", LOST, statuses(replicas), "recover.x").state
    del replicas[1]
    assert put_aside(replicas, NodeRead(8, chosen)) == []
    left = NodeState(None, chosen.leader_epoch + 1, chosen.isr, chosen.recovery, "1.2.2")
    with pytest.raises(InvalidRequest, match="broker 2 has not heard"):
        choose("t-0", left, statuses(replicas), "recover.y", force=True)
    assert put_aside(replicas, NodeRead(10, left)) == []
    again = choose("t-0", left, statuses(replicas), "recover.y", force=True)
    assert (again.kept.broker, again.kept.last_index) == (2, 9)
    assert put_aside(replicas, NodeRead(11, again.state)) == []


def test_no_log_is_chosen_that_an_answer_under_way_may_put_aside() -> None:
    """One that says that broker 1 leads. Since then the partition was recovered a second time."""
    replicas = {2: three()[2]}
    recovered = NodeState(None, 8, ((3, "new-3"),), 2, "recover.y")
    with pytest.raises(InvalidRequest, match=r"broker 2 has not heard.*ask again"):
        choose("t-0", recovered, statuses(replicas), "recover.z", force=True)
    assert put_aside(replicas, NodeRead(10, recovered)) == []
    again = choose("t-0", recovered, statuses(replicas), "recover.z", force=True)
    assert again.kept.broker == 2
    led_before = NodeState(LeaderName(1, 2), 7, ((1, "new-1"),), 1, "w")
    assert put_aside(replicas, NodeRead(9, led_before)) == []


def test_the_only_replica_goes_on_though_its_disk_never_took_the_recovery() -> None:
    alone = opened(1, "newest", appends(10), replicas=1)
    led = NodeState(LeaderName(1, 1), 7, ((1, "new"),), 1, "w")
    assert not of(alone.step(NodeRead(20, led)), StartOver)
    again = choose("t-0", led, statuses({1: alone}), "recover.y")
    assert again.kept.last_index == 10
    assert not of(alone.step(NodeRead(21, again.state)), StartOver)


def test_the_only_replica_is_gone_on_from_before_it_has_read_of_the_recovery_before() -> None:
    """It must not be waited for: where it alone is named, it is not put aside once it has read that."""
    led = NodeState(LeaderName(1, 1), 7, ((1, "new"),), 1, "w")
    alone = opened(1, "newest", appends(10), replicas=1)
    assert choose("t-0", led, statuses({1: alone}), "recover.y").kept.last_index == 10


def test_a_log_of_another_broker_is_put_aside_though_one_broker_alone_is_named() -> None:
    led = NodeState(LeaderName(1, 2), 7, ((1, "new-1"),), 1, "w")
    assert put_aside(three(), NodeRead(8, led)) == [2, 3]


def test_an_epoch_start_in_the_log_says_which_recovery_it_goes_on_under() -> None:
    """Broker 1 led after the recovery, with 2 in sync, and its disk had not taken the number. Then both lost power."""

    def own(count: int) -> tuple[Entry, ...]:
        return entry(1, 5), entry(2, 7, EpochStart(1, 0, 1)), *(entry(index, 7) for index in range(3, count + 1))

    replicas = {1: opened(1, "new-1", own(20)), 2: opened(2, "new-2", own(9), recovery=1)}
    node = NodeState(LeaderName(1, 1), 7, ((1, "a"), (2, "b")), 1, "w")
    assert put_aside(replicas, NodeRead(30, node)) == []
    assert choose("t-0", node, statuses(replicas), "recover.y").kept.last_index == 20


def test_the_disk_is_told_again_of_a_recovery_that_only_an_epoch_start_says() -> None:
    """Once a checkpoint stands for that entry, nothing else would say it."""
    log = entry(1, 5), entry(2, 7, EpochStart(1, 0, 1)), entry(3, 7)
    seen = BrokersSeen((LeaderName(1, 2),))
    assert of(opened(1, "one", log).step(seen), RecoveryAdopted) == [RecoveryAdopted(1)]
    assert not of(opened(1, "one", log, recovery=1).step(seen), RecoveryAdopted)


def test_an_epoch_start_of_a_former_recovery_takes_nothing_back_of_what_the_disk_remembers() -> None:
    """The second recovery was adopted, and nobody has led since whose epoch start would say it."""
    back = opened(3, "three", (entry(1, 5), entry(2, 7, EpochStart(1, 0, 1)), entry(3, 7)), recovery=2)
    assert back.identity.recovery == 2
    led = NodeState(LeaderName(1, 2), 9, ((1, "one"), (2, "two")), 2, "w")
    assert not of(back.step(NodeRead(30, led)), StartOver)


def test_a_log_is_not_put_aside_once_it_was_counted_in_the_life_of_its_epoch_start() -> None:
    back = opened(1, "one", (entry(1, 5), entry(2, 7, EpochStart(2, 0, 1)), entry(3, 7), entry(4, 7)))
    back.step(BrokersSeen((LeaderName(1, 2), LeaderName(2, 1))))
    effects = back.step(AppendEntries(2, 1, 7, 3, 7, 3, 3, 1, ())) + back.step(TurnEnded(0))
    [ack] = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, AppendAck)]
    assert ack.acknowledged_index >= 2
    read_before = NodeState(LeaderName(2, 1), 7, ((2, "two"), (3, "three")), 1, "w")
    assert not of(back.step(NodeRead(9, read_before)), StartOver)
