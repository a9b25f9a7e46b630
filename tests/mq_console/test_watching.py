"""The thread that looks: what it makes of answers, and how it tells of brokers that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mq_client import BrokerObservation, ClusterObservation, GroupObservation, PartitionObservation, Unreachable
from mq_console.watching import Seen, Watcher

PARTITION = PartitionObservation("t", 0, 1, True, 1, 1, (1, 2), (1, 2), (), 0, 0, 0, 0, 0, 0)


def broker(number: int) -> BrokerObservation:
    return BrokerObservation(number, f"b{number}:1", 1, "0.3.0", "serving", "connected", 1_000_000, {}, {})


def observed(numbers: Sequence[int] = (1, 2), end: int = 0, lag: int = 0, **more: Any) -> ClusterObservation:
    partition = replace(PARTITION, log_end_offset=end)
    group = GroupObservation("g", "t", "spark", 1, lag, lag, lag * 1_000_000, 1_000_000)
    return ClusterObservation("c", tuple(map(broker, numbers)), (), (partition,), (group,), **more)


class Cluster:
    """Answers as told, and notes what was asked."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[str] = []
        self.answer: ClusterObservation | Exception = observed()
        self.watcher = Watcher(self._observe, lambda: self.now_s)

    def _observe(self, detail: str) -> ClusterObservation:
        self.asked.append(detail)
        if isinstance(self.answer, Exception):
            raise self.answer
        whole = self.answer
        return replace(whole, partitions=(), groups=()) if detail == "broker" else whole

    def look(self, answer: ClusterObservation | Exception, after_s: float = 1.0) -> Seen:
        self.now_s += after_s
        self.answer = answer
        self.watcher.look()
        return self.watcher.seen(0)


def test_everything_is_asked_every_two_seconds_and_brokers_in_between() -> None:
    cluster = Cluster()
    for _ in range(5):
        cluster.look(observed())
    assert cluster.asked == ["partitions", "broker", "partitions", "broker", "partitions"]


def test_a_broker_that_dies_is_told_by_the_next_look_and_then_who_leads_is_asked() -> None:
    cluster = Cluster()
    cluster.look(observed())
    seen = cluster.look(observed([1], silent=("b2:1",)))
    assert [(each.id, each.state, each.address) for each in seen.brokers] == [
        (1, "serving", "b1:1"),
        (2, "silent", "b2:1"),
    ]
    assert [each.text for each in seen.problems] == ["the broker at b2:1 does not answer"]
    seen = cluster.look(observed([1], silent=("b2:1",)), 0.1)
    assert cluster.asked == ["partitions", "broker", "partitions"]
    seen = cluster.look(observed([1]), 5)
    assert seen.brokers[1].state == "absent"
    assert seen.problems[0].text == "broker 2 is absent, and holds 1 replica"
    seen = cluster.look(observed([1]), 5)
    assert seen.brokers[1].since_s == 5
    seen = cluster.look(observed())
    assert [each.state for each in seen.brokers] == ["serving", "serving"]
    assert seen.problems == []


def test_what_was_seen_stays_while_nobody_answers_and_the_fault_is_told() -> None:
    cluster = Cluster()
    assert cluster.look(Unreachable("nobody")).look is None
    cluster.look(observed(end=7), 3)
    seen = cluster.look(Unreachable("nobody answers"), 3)
    assert seen.fault == "nobody answers"
    assert seen.look is not None
    assert seen.look.ends == {"t": 7}
    assert cluster.look(ValueError("a fault of ours"), 3).fault == "a fault of the console: its log has it"
    assert cluster.look(observed(end=8), 3).fault == ""


def test_rates_and_the_time_to_catch_up_are_over_some_seconds() -> None:
    cluster = Cluster()
    cluster.look(observed(end=0, lag=0))
    for step in range(1, 6):
        seen = cluster.look(observed(end=20 * step, lag=100 - 10 * step), 2)
    assert seen.rates == {"t": 10.0}
    assert seen.catching_up == {("g", "t"): 10.0}
    assert cluster.watcher.history.of("records in")[-1] == 10.0
    assert cluster.watcher.history.of("lag", "g", "t")[-1] == 50.0
    assert ("g", "t") not in cluster.look(observed(end=200, lag=500), 2).catching_up


def test_who_looks_first_waits_for_a_look() -> None:
    cluster = Cluster()
    cluster.watcher.start()
    try:
        seen = cluster.watcher.seen(wait_s=20)
        assert seen.look is not None
        cluster.answer = observed(end=9)
        cluster.now_s += 1_000
        seen = cluster.watcher.seen(wait_s=20)
        assert seen.look is not None
        assert seen.look.ends == {"t": 9}
    finally:
        cluster.watcher.close()
