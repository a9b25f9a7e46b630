"""What staging and deciding become on the wire. The test is the brokers: nothing is sent, what waits is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mq_client.errors import (
    InvalidRequest,
    UnknownTopic,
    Unreachable,
)
from mq_client.producing.sender import Sender
from mq_client.transactions import StagedPart, TransactionClient, TransactionKey
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.partitioner import coordinator_partition
from mq_protocol.sql.ddl import parse_schema
from tests.mq_client.cluster.scripted import Scripted, told, topic_info

KEY = TransactionKey("query", "sink")


@pytest.fixture
def client(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransactionClient]:
    """Topics `t` of two partitions and `typed`; coordinators in four partitions, led by broker 1."""
    monkeypatch.setattr(Sender, "ensure_started", lambda sender: None)
    scripted.learn(
        topic_info(1, 2),
        topic_info(1, name="typed", schema=parse_schema("n long")),
        topic_info(*[1] * 4, name=TRANSACTIONS_TOPIC),
    )
    made = TransactionClient(scripted, 20_000)
    yield made
    made.close()


def test_a_decision_names_what_was_staged_and_goes_to_its_coordinator(
    client: TransactionClient, scripted: Scripted
) -> None:
    asked: list[tuple[str, pb.DecideRequest]] = []

    def decide(address: str, request: pb.DecideRequest) -> pb.DecideResponse:
        asked.append((address, request))
        return pb.DecideResponse(already_decided=True, row_count=5, published=True)

    scripted.answers["Decide"] = decide
    number = coordinator_partition("query", "sink", 4)
    scripted.learn(topic_info(*[2 if at == number else 1 for at in range(4)], name=TRANSACTIONS_TOPIC, epoch=2))
    parts = [
        StagedPart("t", 1, (b"a" * 16, b"b" * 16), 3, "x"),
        StagedPart("t", 0, (), 0),
        StagedPart("u", 0, (b"c" * 16,), 2),
    ]
    assert client.decide(KEY, 7, "run", parts, once=True) == (True, 5, True)
    [(address, request)] = asked
    assert address == "b:2"
    assert (request.key.query_id, request.key.sink, request.batch_id, request.run_id) == ("query", "sink", 7, "run")
    assert (request.row_count, request.once, request.keep_on_mismatch, request.timeout_ms) == (5, True, False, 10_000)
    assert [(p.topic, p.partition, list(p.uuids), p.row_count, p.topic_id) for p in request.manifest] == [
        ("t", 1, [b"a" * 16, b"b" * 16], 3, "x"),
        ("u", 0, [b"c" * 16], 2, ""),
    ]
    client.decide(KEY, 7, "run", parts, keep_on_mismatch=True, timeout_ms=4_000)
    assert (asked[1][1].once, asked[1][1].keep_on_mismatch, asked[1][1].timeout_ms) == (False, True, 4_000)


def test_a_key_without_a_query_id_is_refused(client: TransactionClient) -> None:
    for call in (lambda: client.open_stage(("", "s"), 0, "r"), lambda: client.decide(("", "s"), 0, "r", [])):
        with pytest.raises(InvalidRequest, match="has no query id"):
            call()  # type: ignore[no-untyped-call]
    client.open_stage(("q", ""), 0, "r")  # rows name their topics themselves


def test_the_last_decision_is_told_if_there_is_one(client: TransactionClient, scripted: Scripted) -> None:
    said = [
        pb.TransactionStatusResponse(known=True, batch_id=3, run_id="r", row_count=9, published=True),
        pb.TransactionStatusResponse(),
    ]
    scripted.answers["TransactionStatus"] = lambda address, request: said.pop(0)
    assert client.transaction_status(KEY) == (3, "r", 9, True)
    assert client.transaction_status(KEY) is None


def test_what_is_staged_is_told_by_all_brokers_until_each_has_no_more(
    client: TransactionClient, scripted: Scripted
) -> None:
    asked: list[tuple[str, int]] = []

    def info(partition: int, timestamp: int, batch_id: int = 0) -> pb.StagedInfo:
        return pb.StagedInfo(
            topic="t", partition=partition, query="q", sink="s", batch_id=batch_id, row_count=2, timestamp_us=timestamp
        )

    def answer(address: str, request: pb.StagedRequest) -> pb.StagedResponse:
        asked.append((address, request.after_index))
        if address != "b:1":
            return pb.StagedResponse(staged=[info(int(address[2:]), 5)] if address == "b:2" else [])
        if request.HasField("after"):
            assert (request.after.topic, request.after.partition) == ("t", 1)
            return pb.StagedResponse(staged=[info(1, 3)])
        first = pb.StagedResponse(staged=[info(1, 4, 6)], more=True, last_index=77)
        first.last.topic, first.last.partition = "t", 1
        return first

    scripted.answers["Staged"] = answer
    found = client.staged("t")
    assert [(each.partition, each.timestamp, each.batch_id) for each in found] == [(1, 3, 0), (1, 4, 6), (2, 5, 0)]
    assert (found[0].topic, found[0].query, found[0].sink, found[0].row_count) == ("t", "q", "s", 2)
    assert asked == [("b:1", 0), ("b:1", 77), ("b:2", 0), ("b:3", 0)]


def test_what_is_staged_is_asked_again_of_a_broker_that_restarts_until_the_time_is_over(
    client: TransactionClient, scripted: Scripted
) -> None:
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(topic_info(1, 2)))
    failures = [Unreachable("refused"), Unreachable("refused")]
    row = pb.StagedInfo(topic="t", partition=1, query="q", sink="s", row_count=2, timestamp_us=5)

    def answer(address: str, _request: pb.StagedRequest) -> Any:
        if address == "b:2" and failures:
            return failures.pop()
        return pb.StagedResponse(staged=[row] if address == "b:1" else [])

    scripted.answers["Staged"] = answer
    assert [each.timestamp for each in client.staged("t")] == [5], "what the first broker said is not told twice"
    before = scripted.clock.now
    scripted.answers["Staged"] = lambda _address, _request: Unreachable("refused")  # type: ignore[assignment, return-value]
    with pytest.raises(Unreachable):
        client.staged("t", 3_000)
    assert 3.0 <= scripted.clock.now - before < 4.0


def test_what_is_staged_is_asked_of_the_brokers_that_are_registered_by_then(
    client: TransactionClient, scripted: Scripted
) -> None:
    asked: list[str] = []

    def answer(address: str, _request: pb.StagedRequest) -> Any:
        asked.append(address)
        if address != "b:1":
            scripted.brokers_say = {"b:1": told(topic_info(1), brokers=1)}  # it was stopped
            scripted.clock.now += 1
            return Unreachable("refused")
        return pb.StagedResponse()

    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(topic_info(1, 2), brokers=2))
    scripted.answers["Staged"] = answer
    scripted.clock.now += 1
    assert client.staged("t") == []
    assert asked == ["b:1", "b:2", "b:1"]
    scripted.clock.now += 1
    scripted.brokers_say = {"b:1": told(unknown=("t",), brokers=1)}
    with pytest.raises(UnknownTopic):
        client.staged("t")
