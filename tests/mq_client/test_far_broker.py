"""A broker that is far away, or busy: reached all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_client.cluster.lines import call_unary
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.call import Kind
from tests.chaos.network import CLIENTS, Network
from tests.played_broker import Spoken, played

DELAY_S = 0.7
PATIENCE_S = 30.0


def answers(spoken: Spoken) -> None:
    while spoken.hear_call() is not None:
        spoken.answer(pb.MetadataResponse(answered_by=3))
        spoken.say(Kind.END)


@pytest.fixture
def far_away() -> Iterator[str]:
    """The address of a broker, each way to it as slow as a bad line or a broker out of breath."""
    with played(answers) as broker:
        network = Network(dict)
        network.slow(CLIENTS, "1", DELAY_S)
        yield f"127.0.0.1:{network.listen('1', int(broker.address.rpartition(':')[2]))}"
        network.close()


def test_a_broker_that_takes_more_than_half_a_second_to_greet_is_reached(far_away: str) -> None:
    answer = call_unary(far_away, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, PATIENCE_S)
    assert answer.answered_by == 3
