"""The stored documents: what was written comes back, and what is not ours is named."""

from __future__ import annotations

import pytest

from mq_broker.coordination import documents
from mq_broker.coordination.interface import BrokerRegistration, Move, TopicSpec
from mq_broker.core.messages import NodeState
from mq_protocol.errors import InternalError
from tests.mq_broker.coordination.wire import state_of


def test_every_document_comes_back_as_it_was() -> None:
    registration = BrokerRegistration(3, 17, "127.0.0.1:7402", rack="süd", peer_address="127.0.0.1:7502")
    assert (
        documents.load(documents.dump(documents.registration_to_json(registration)), documents.registration_from_json, "x")
        == registration
    )
    topic = TopicSpec("t", "id", ((1, 2, 3), (2, 3, 1)), schema=bytes(range(256)), settings={"durability": "os"})
    assert documents.load(documents.dump(documents.topic_to_json(topic)), documents.topic_from_json, "x") == topic
    moving = TopicSpec("t", "id", ((1, 2), (2, 1, 3)), moving={1: Move((2, 3), (2, 1))})
    assert documents.load(documents.dump(documents.topic_to_json(moving)), documents.topic_from_json, "x") == moving
    longer = TopicSpec("t", "id", ((1,),), schema=b"abc", earlier=(2, 5))
    assert documents.load(documents.dump(documents.topic_to_json(longer)), documents.topic_from_json, "x") == longer
    for state in (state_of(), NodeState(None, 4, (), 1, "")):
        assert documents.load(documents.dump(documents.state_to_json(state)), documents.state_from_json, "x") == state


def test_fields_of_a_newer_broker_are_ignored() -> None:
    document = {**documents.state_to_json(state_of()), "since": 5}
    assert documents.load(documents.dump(document), documents.state_from_json, "x") == state_of()


def test_a_topic_counts_on_the_copies_that_it_has_at_both_ends_of_its_moves() -> None:
    moving = TopicSpec("t", "id", ((1, 2), (2, 1, 3)), moving={1: Move((2, 3), (2, 1))})
    assert (moving.replicas, moving.target) == (2, ((1, 2), (2, 3)))
    assert TopicSpec("t", "id", ((1, 2, 3),), moving={0: Move((1, 2, 3), (2,))}).replicas == 1, "until those that come are here"
    assert TopicSpec("t", "id", ((1, 2, 3),), moving={0: Move((2,), (1, 2, 3))}).replicas == 1, "else it could not let them go"
    assert TopicSpec("t", "id", ((1, 2, 3),)).replicas == 3


@pytest.mark.parametrize("data", [b"", b"null", b"5", b"[]", b"{}", b'{"leader": [1]}', b"\xff\xfe", b'{"leader": {}}'])
def test_what_is_not_ours_is_named_with_its_place(data: bytes) -> None:
    with pytest.raises(InternalError, match="/states/x/0"):
        documents.load(data, documents.state_from_json, "/states/x/0")
