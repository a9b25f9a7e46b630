"""What the data source makes of its clients, and how it reports progress: never in the way, the newest only, and lost
reports do no harm."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from mq_protocol.errors import InvalidRequest, TritonMQError, UnknownTopic, Unreachable
from mq_spark.datasource.cluster import Place, Reporter, connect
from mq_spark.planning.options import parse_sink
from tests.cluster.harness import WAIT_S


def test_reads_that_go_to_other_replicas_or_are_passed_on_have_clients_of_their_own() -> None:
    options, forwarding = (
        parse_sink({"bootstrap.servers": "h:1", "forward": forward}, streaming=True) for forward in ("false", "true")
    )
    asked = [(options, "leader", ""), (options, "any", ""), (options, "any", "r1"), (options, "any", "r2")]
    asked.append((forwarding, "leader", ""))
    made = [connect(*each) for each in asked]
    assert len({id(cluster) for cluster in made}) == 5
    assert [connect(*each) for each in asked] == made


def test_the_newest_position_is_sent_and_one_that_is_known_is_not_sent_again() -> None:
    sent: list[tuple[str, dict[Place, int]]] = []
    first_is_on_its_way, go_on = threading.Event(), threading.Event()

    def send(group: str, positions: Mapping[Place, int]) -> None:
        sent.append((group, dict(positions)))
        first_is_on_its_way.set()
        assert go_on.wait(WAIT_S)

    reporter = Reporter(send, interval_s=0.0)
    reporter.report("g", [("t", 0, 1), ("t", 1, 1)])
    assert first_is_on_its_way.wait(WAIT_S)
    reporter.report("g", [("t", 0, 2)])
    reporter.report("g", [("t", 0, 3), ("t", 1, 1)])
    go_on.set()
    reporter.flush(WAIT_S)
    assert sent == [("g", {("t", 0): 1, ("t", 1): 1}), ("g", {("t", 0): 3})]


def test_a_flush_waits_for_what_was_handed_over_and_not_for_the_interval() -> None:
    sent: list[dict[Place, int]] = []
    reporter = Reporter(lambda _group, positions: sent.append(dict(positions)), interval_s=60.0)
    for offset in (1, 2):
        reporter.report("g", [("t", 0, offset)])
        reporter.flush(WAIT_S)
        assert sent[-1] == {("t", 0): offset}


def test_a_report_that_failed_is_sent_again_by_itself_and_raises_nowhere() -> None:
    sent: list[dict[Place, int]] = []

    def send(_group: str, positions: Mapping[Place, int]) -> None:
        sent.append(dict(positions))
        if len(sent) <= 3:
            raise Unreachable("nobody is there")

    reporter = Reporter(send, interval_s=0.0)
    reporter.report("g", [("t", 0, 1)])
    reporter.flush(WAIT_S)
    assert sent == [{("t", 0): 1}] * 4
    reporter.report("g", [("t", 0, 1)])
    reporter.flush(WAIT_S)
    assert len(sent) == 4, "what has arrived is not sent again"


def test_a_newer_report_takes_the_place_of_one_that_failed() -> None:
    sent: list[dict[Place, int]] = []
    failing, go_on = threading.Event(), threading.Event()

    def send(_group: str, positions: Mapping[Place, int]) -> None:
        sent.append(dict(positions))
        if len(sent) == 1:
            failing.set()
            assert go_on.wait(WAIT_S)
            raise Unreachable("nobody is there")

    reporter = Reporter(send, interval_s=0.0)
    reporter.report("g", [("t", 0, 1), ("t", 1, 1)])
    assert failing.wait(WAIT_S)
    reporter.report("g", [("t", 0, 2)])
    go_on.set()
    reporter.flush(WAIT_S)
    assert sent[1:] == [{("t", 0): 2, ("t", 1): 1}]


@pytest.mark.parametrize(("error", "tried_s"), [(UnknownTopic("gone"), 60.0), (Unreachable("nobody is there"), 0.0)])
def test_what_asking_again_cannot_mend_or_has_not_for_long_is_dropped(error: TritonMQError, tried_s: float) -> None:
    sent: list[dict[Place, int]] = []

    def send(_group: str, positions: Mapping[Place, int]) -> None:
        sent.append(dict(positions))
        if len(sent) == 1:
            raise error

    reporter = Reporter(send, interval_s=0.0, tried_s=tried_s)
    reporter.report("g", [("t", 0, 1)])
    reporter.flush(WAIT_S)
    assert len(sent) == 1, "it is not tried again"
    reporter.report("g", [("t", 0, 1)])
    reporter.flush(WAIT_S)
    assert len(sent) == 2, "and not taken for what has arrived"


def test_a_group_that_brokers_refuse_is_told_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    tried = 0

    def refuse(_group: str, _positions: Mapping[Place, int]) -> None:
        nonlocal tried
        tried += 1
        raise InvalidRequest("give the query another kafka.group.id")

    reporter = Reporter(refuse, interval_s=0.0)
    for offset in range(3):
        reporter.report("g", [("t", 0, offset)])
        reporter.flush(WAIT_S)
    assert tried == 3
    assert [record.levelname for record in caplog.records if "another kafka.group.id" in record.message] == ["WARNING"]
