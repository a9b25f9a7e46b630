"""The stored documents: what was written comes back, and what is not ours is named."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.coordination import documents
from mq_broker.coordination.interface import BrokerRegistration, Move, QueueSpec, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol.errors import InternalError
from mq_protocol.limits import STAMP_MAX
from tests.mq_broker.coordination.absurd import altered
from tests.mq_broker.coordination.wire import id_of, state_of


def test_every_document_comes_back_as_it_was() -> None:
    registration = BrokerRegistration(3, 17, "127.0.0.1:7402", rack="süd", peer_address="127.0.0.1:7502", insecure=True)
    assert (
        documents.load(
            documents.dump(documents.registration_to_json(registration)), documents.registration_from_json, "x"
        )
        == registration
    )
    topic = TopicSpec("t", id_of(""), ((1, 2, 3), (2, 3, 1)), schema=bytes(range(256)), settings={"durability": "os"})
    assert documents.load(documents.dump(documents.topic_to_json(topic)), documents.topic_from_json, "x") == topic
    moving = TopicSpec("t", id_of(""), ((1, 2), (2, 1, 3)), moving={1: Move((2, 3), (2, 1))})
    assert documents.load(documents.dump(documents.topic_to_json(moving)), documents.topic_from_json, "x") == moving
    longer = TopicSpec("t", id_of(""), ((1,),), schema=b"abc", earlier=(2, 5))
    assert documents.load(documents.dump(documents.topic_to_json(longer)), documents.topic_from_json, "x") == longer
    worked_off = TopicSpec("t", id_of(""), ((1,),), queues={"g": QueueSpec(4, 17, {"lease_ms": "5s"})}, queue_lives=7)
    read = documents.load(documents.dump(documents.topic_to_json(worked_off)), documents.topic_from_json, "x")
    assert read == worked_off
    emptied = replace(worked_off, queues={})
    assert documents.load(documents.dump(documents.topic_to_json(emptied)), documents.topic_from_json, "x") == emptied
    for state in (state_of(), NodeState(None, 4, (), 1, "")):
        assert documents.load(documents.dump(documents.state_to_json(state)), documents.state_from_json, "x") == state


def test_a_topic_counts_on_the_copies_that_it_has_at_both_ends_of_its_moves() -> None:
    moving = TopicSpec("t", id_of(""), ((1, 2), (2, 1, 3)), moving={1: Move((2, 3), (2, 1))})
    assert (moving.replicas, moving.target) == (2, ((1, 2), (2, 3)))
    assert TopicSpec("t", id_of(""), ((1, 2, 3),), moving={0: Move((1, 2, 3), (2,))}).replicas == 1, (
        "until those who come are here"
    )
    assert TopicSpec("t", id_of(""), ((1, 2, 3),), moving={0: Move((2,), (1, 2, 3))}).replicas == 1, (
        "else it could not let them go"
    )
    assert TopicSpec("t", id_of(""), ((1, 2, 3),)).replicas == 3


@pytest.mark.parametrize("data", [b"", b"null", b"5", b"[]", b"{}", b'{"leader": [1]}', b"\xff\xfe", b'{"leader": {}}'])
def test_what_is_not_ours_is_named_with_its_place(data: bytes) -> None:
    with pytest.raises(InternalError, match="/states/x/0"):
        documents.load(data, documents.state_from_json, "/states/x/0")


WHOLE = TopicSpec("t", id_of(""), ((1, 2), (2, 1, 3)), b"abc", {"x": "y"}, {1: Move((2, 3), (2, 1))}, (1,))


@pytest.mark.parametrize(
    ("whole", "read"),
    [
        (
            documents.state_to_json(NodeState(LeaderName(1, 7), 3, ((1, "a"), (2, "b")), 1, "1.7.9", 5)),
            documents.state_from_json,
        ),
        (
            documents.topic_to_json(
                replace(WHOLE, queues={"g": QueueSpec(2, 5, {"lease_ms": "5s"}), "h": QueueSpec(3)}, queue_lives=3)
            ),
            documents.topic_of("t"),
        ),
        (documents.registration_to_json(BrokerRegistration(3, 17, "h:1", "rack", "h:2")), documents.registration_of(3)),
    ],
    ids=["state", "topic", "registration"],
)
def test_an_altered_document_is_read_within_bounds_or_not_at_all(
    whole: dict[str, Any], read: Callable[..., Any]
) -> None:
    refused: list[str] = []
    for what, data in altered(whole):
        try:
            found = documents.load(data, read, "/x")
        except InternalError as error:
            refused.append(str(error))
        else:
            _check_bounds(found, what)
    assert len(refused) > 100
    assert [text for text in refused if len(text.encode()) > 4_000 or not text.isprintable()] == []


def _check_bounds(found: NodeState | TopicSpec | BrokerRegistration, what: str) -> None:
    """Said once more, in the words of whoever uses the document."""
    match found:
        case NodeState():
            numbers = [found.leader_epoch, found.recovery, *(broker for broker, _ in found.isr)]
            assert all(type(number) is int and 0 <= number < 2**31 for number in numbers), what
            assert found.leader is None or (
                0 < found.leader.broker < 2**31 and 0 <= found.leader.incarnation < 2**31
            ), what
            assert 0 <= found.offset_floor <= 2**62, what
            assert all(len(text) <= 128 and text.isascii() and text.isprintable() for text in _texts(found)), what
        case TopicSpec():
            assert (found.name, len(found.topic_id)) == ("t", 32), what
            int(found.topic_id, 16)
            assert found.replicas >= 1, what
            assert len(found.target) == len(found.assignment), what
            assert set(found.moving) <= set(range(len(found.assignment))), what
            assert all(0 < queue.life <= found.queue_lives < 2**63 for queue in found.queues.values()), what
            assert all(0 <= queue.start_us <= 2**62 for queue in found.queues.values()), what
            assert len(found.queues) <= 100, what
            assert all(1 <= broker < 2**31 for members in found.target for broker in members), what
        case BrokerRegistration():
            assert found.broker == 3, what
            assert found.address.rpartition(":")[2].isdigit(), what
            assert len(found.rack) <= 255, what


def _texts(state: NodeState) -> list[str]:
    return [state.token, *(log_id for _, log_id in state.isr)]


@pytest.mark.parametrize(
    "address", ["", "h", "h:", ":1", "h:0", "h:65536", "h:1 ", "h /x:1", "unix:7400", "dns:///h:1", "h\n:1", "[::1:1"]
)
def test_an_address_that_is_none_is_not_read(address: str) -> None:
    document = documents.registration_to_json(BrokerRegistration(3, 17, "h:1"))
    for field in ("address", "peer_address", "grpc_address", "tls_address") if address else ("address",):
        with pytest.raises(InternalError, match="does not hold what TritonMQ writes there"):
            documents.load(documents.dump({**document, field: address}), documents.registration_from_json, "/x")


@pytest.mark.parametrize("address", ["h:1", "127.0.0.1:7400", "[::1]:65535", "a-b.c_d:80"])
def test_an_address_is_read(address: str) -> None:
    document = documents.registration_to_json(
        BrokerRegistration(3, 17, address, peer_address=address, grpc_address=address)
    )
    read = documents.load(documents.dump(document), documents.registration_of(3), "/x")
    assert (read.peer_address, read.grpc_address) == (address, address)


def test_a_document_of_another_node_is_not_read() -> None:
    topic = documents.dump(documents.topic_to_json(TopicSpec("t", id_of(""), ((1,),))))
    with pytest.raises(InternalError, match="it is the document of topic 't'"):
        documents.load(topic, documents.topic_of("other"), "/topics/other")
    registration = documents.dump(documents.registration_to_json(BrokerRegistration(3, 17, "h:1")))
    with pytest.raises(InternalError, match="it is the registration of broker 3"):
        documents.load(registration, documents.registration_of("9"), "/brokers/live/9")


def test_a_state_that_names_a_broker_of_the_in_sync_set_twice_is_not_read() -> None:
    document = documents.state_to_json(NodeState(LeaderName(1, 7), 3, ((1, "a"), (2, "b")), 1, "1.7.9", 5))
    for isr in ([[1, "a"], [1, "b"]], [[2, "b"], [1, "a"]]):
        with pytest.raises(InternalError, match="each broker once, in order"):
            documents.load(documents.dump({**document, "isr": isr}), documents.state_from_json, "/x")


def test_a_move_of_a_partition_behind_the_last_one_is_not_read() -> None:
    document = documents.topic_to_json(WHOLE)
    [move] = document["moving"].values()
    assert documents.load(documents.dump({**document, "moving": {"1": move}}), documents.topic_of("t"), "/x") == WHOLE
    for number in ("2", "-1", "1 ", "\u0661", "1" * 11):
        with pytest.raises(InternalError, match="moving"):
            documents.load(documents.dump({**document, "moving": {number: move}}), documents.topic_of("t"), "/x")


@pytest.mark.parametrize(
    "queues",
    [
        {"g": {"life": 4, "start_us": 0, "settings": {}}},
        {"g": {"life": 0, "start_us": 0, "settings": {}}},
        {"g": {"life": 1, "start_us": -1, "settings": {}}},
        {"g": {"life": 1, "start_us": 0, "settings": {"a": 1}}},
        {"g": {"life": 1, "start_us": 0}},
        {"a/b": {"life": 1, "start_us": 0, "settings": {}}},
        {f"g{n}": {"life": 1, "start_us": 0, "settings": {}} for n in range(2)},
        {f"g{n}": {"life": n + 1, "start_us": 0, "settings": {}} for n in range(101)},
        [],
    ],
)
def test_a_document_with_queue_groups_that_cannot_be_is_not_read(queues: object) -> None:
    document = documents.topic_to_json(TopicSpec("t", id_of(""), ((1,),), queue_lives=3))
    if isinstance(queues, dict) and len(queues) > 100:
        document["queue_lives"] = 200
    with pytest.raises(InternalError, match="/topics/t"):
        documents.load(documents.dump(document | {"queues": queues}), documents.topic_from_json, "/topics/t")


def test_a_stamp_is_read_as_it_was_written_and_within_bounds() -> None:
    whole = documents.stamp_to_json(7)
    assert documents.load(documents.dump(whole), documents.stamp_from_json, "/x") == 7
    for what, data in altered(whole):
        with contextlib.suppress(InternalError):
            assert 0 <= documents.load(data, documents.stamp_from_json, "/x") <= STAMP_MAX, what
