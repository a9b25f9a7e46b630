"""The driver as a member of a queue group, towards leaders that a test plays: what it names, extends and settles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from mq_client.cluster.deadline import Deadline
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.errors import InvalidSetting, NotLeader
from mq_spark.datasource import leasing
from mq_spark.datasource.leasing import Leasing
from mq_spark.datasource.schemas import Topic
from mq_spark.planning.lease_options import LeaseOptions
from mq_spark.planning.leases import Lease, LeaseKey, Run


class Leaders:
    """What they were asked, in order, and their answers. Each lends one record whenever some are asked for. `refuses`:
    so many extensions."""

    def __init__(self) -> None:
        self.leases: list[pb.LeaseRequest] = []
        self.settles: list[pb.SettleRequest] = []
        self.refuses = 0
        self.order = "none"

    def ask(self, _address: str, method: str, request: Any, _answer: Any, _limit: Deadline) -> Any:
        if method == "Lease":
            self.leases.append(request)
            if not request.records_max:
                return pb.LeaseResponse()
            number = len(self.leases)
            lease = pb.LeaseId(leader_epoch=1, entry=number)
            return pb.LeaseResponse(lease=lease, ranges=[number, 1], deliveries=[1], failures=[0])
        assert method == "Settle"
        self.settles.append(request)
        if self.refuses and request.settles[0].outcome == pb.OUTCOME_EXTEND:
            self.refuses -= 1
            raise NotLeader("ask again")
        return pb.SettleResponse(answers=[pb.SettleAnswer() for _ in request.settles])

    def ask_leaders(
        self, _connection: Any, _topic: str, partitions: list[int], ask: Callable[..., Any], deadline: Deadline
    ) -> dict[int, Any]:
        [partition] = partitions
        [answer] = ask("leader", partitions, deadline)
        return {partition: answer}

    def outcomes(self) -> list[int]:
        return [each.outcome for request in self.settles for each in request.settles]


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    made = Leaders()
    monkeypatch.setattr(leasing, "ensure_declared", lambda *_: None)
    monkeypatch.setattr(leasing, "ask_leaders", made.ask_leaders)
    monkeypatch.setattr(leasing, "list_queues", lambda *_: [SimpleNamespace(group="g", settings={"order": made.order})])
    monkeypatch.setattr(leasing, "_NAMED_S", 0.01)
    return made


@pytest.fixture
def member(leaders: Leaders) -> Iterator[Callable[..., Leasing]]:
    """Makes members of group `g` in topic `t` of two partitions."""
    opened: list[Leasing] = []

    def make(lease_ms: int = 3_600_000) -> Leasing:
        connection: Any = leaders
        topic = Topic("t", "id", RECORD_SCHEMA, False, 2)
        opened.append(Leasing(connection, LeaseOptions("g", "spark-m", lease_ms, False), [topic], 10_000))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
        if each._thread is not None:
            each._thread.join(10)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never was"
        time.sleep(0.002)


def lease(partition: int = 0, topic_id: str = "id") -> Lease:
    return Lease(LeaseKey("t", topic_id, partition, 1, 7, 0), (Run(5, 8, 1, 0),))


def test_each_leader_is_told_of_the_leases_of_its_own_partition(
    leaders: Leaders, member: Callable[..., Leasing]
) -> None:
    made = member()
    first = made.lease(2)
    assert sorted(each.key.partition for each in first) == [0, 1]
    made.lease(2)
    last = {request.partition: request for request in leaders.leases if request.records_max}
    for each in first:
        held = [(name.entry, name.step) for name in last[each.key.partition].held]
        assert held == [(each.key.entry, each.key.step)]


def test_what_is_settled_is_said_once_and_named_no_more(leaders: Leaders, member: Callable[..., Leasing]) -> None:
    made = member()
    lent = made.lease(1)
    assert made.settle(lent) == {}
    assert made.settle(lent) == {}
    assert leaders.outcomes() == [pb.OUTCOME_ACK]
    made.lease(2)
    assert not any(request.held for request in leaders.leases[-2:])


def test_what_is_held_is_named_every_moment_however_long_a_lease_is(
    leaders: Leaders, member: Callable[..., Leasing]
) -> None:
    """A new leader keeps leases for seconds, unless their member names them."""
    made = member()
    [lent] = made.lease(1)
    until(lambda: [r.partition for r in leaders.leases if r.held and not r.records_max].count(lent.key.partition) > 2)
    assert pb.OUTCOME_EXTEND not in leaders.outcomes()


def test_a_member_that_only_goes_on_with_leases_keeps_them(leaders: Leaders, member: Callable[..., Leasing]) -> None:
    made = member()
    assert made.claim([lease()]) == {}
    assert leaders.outcomes() == [pb.OUTCOME_EXTEND]
    until(lambda: any(request.held for request in leaders.leases))


def test_a_member_that_is_closed_while_it_names_its_leases_ends_quietly(
    leaders: Leaders, member: Callable[..., Leasing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions that have not begun are cancelled. pytest fails a test whose thread ends by an error."""
    asked, closed = threading.Event(), threading.Event()

    def hold(*_: Any) -> dict[int, Any]:
        asked.set()
        assert closed.wait(10)
        return {0: pb.LeaseResponse(), 1: pb.LeaseResponse()}

    made = member()
    made._pool = ThreadPoolExecutor(1)
    made.claim([lease(0), lease(1)])
    monkeypatch.setattr(leasing, "ask_leaders", hold)
    assert asked.wait(10)
    made.close()
    closed.set()
    assert made._thread is not None
    made._thread.join(10)
    assert not made._thread.is_alive()


def test_an_extension_that_failed_is_said_again_at_once(
    leaders: Leaders, member: Callable[..., Leasing], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(leasing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = member()
    made.lease(1)
    until(lambda: any(request.held for request in leaders.leases))  # the thread has begun
    leaders.refuses, now[0] = 2, 1_300.0
    until(lambda: leaders.outcomes() == [pb.OUTCOME_EXTEND] * 3)
    named = len(leaders.leases)
    until(lambda: len(leaders.leases) > named + 3)
    assert leaders.outcomes() == [pb.OUTCOME_EXTEND] * 3, "it was heard"


def test_partitions_that_were_added_are_asked_from_then_on(leaders: Leaders, member: Callable[..., Leasing]) -> None:
    made = member()
    made.grow({"t": 3})
    made.grow({"t": 2})  # as a broker says that has not heard of it yet
    made.lease(3)
    assert {request.partition for request in leaders.leases if request.records_max} == {0, 1, 2}


def test_leases_of_a_topic_that_was_made_again_are_lost(leaders: Leaders, member: Callable[..., Leasing]) -> None:
    made, former = member(), lease(topic_id="former")
    assert made.claim([former]) == {former.key: [5, 6, 7]}
    assert made.settle([former]) == {former.key: [5, 6, 7]}
    assert not leaders.settles


@pytest.mark.parametrize("order", ["key", "all"])
def test_a_queue_in_order_is_refused(leaders: Leaders, member: Callable[..., Leasing], order: str) -> None:
    leaders.order = order
    with pytest.raises(InvalidSetting, match=f"order={order}"):
        member()
