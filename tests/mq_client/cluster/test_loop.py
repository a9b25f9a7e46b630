"""Calls on the event loop of a process: which connection they have, what they end with, and how they are broken off.
The test is the broker."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from mq_client.cluster.client import NOBODY
from mq_client.cluster.loop import call_later
from mq_client.errors import NotYetWritten, OutcomeUnknown, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.call import Kind, say
from tests.played_broker import WAIT_S, PlayedBroker, Spoken, played

Told = queue.Queue[pb.MetadataResponse | TritonMQError]


def calls(answer: Callable[[Spoken], bool]) -> Callable[[Spoken], None]:
    """One call after another. `answer`: whether the connection stays."""

    def serve(spoken: Spoken) -> None:
        while spoken.hear_call() is not None:
            if not answer(spoken):
                return

    return serve


def metadata(spoken: Spoken) -> bool:
    spoken.answer(pb.MetadataResponse(answered_by=7))
    spoken.say(Kind.END)
    return True


def ask(at: PlayedBroker, told: Told, timeout_s: float = WAIT_S) -> Callable[[], object]:
    return call_later(at.address, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, timeout_s, told.put, NOBODY)


def answer_of(at: PlayedBroker, timeout_s: float = WAIT_S) -> Any:
    told: Told = queue.Queue()
    ask(at, told, timeout_s)
    return told.get(timeout=WAIT_S)


def test_calls_one_after_the_other_share_a_connection() -> None:
    with played(calls(metadata)) as at:
        for _ in range(3):
            assert answer_of(at).answered_by == 7
        assert at.connections == 1


def test_an_error_is_told_as_it_was_and_the_connection_serves_the_next_call() -> None:
    def refuse(spoken: Spoken) -> bool:
        spoken.fail(NotYetWritten("nothing there"))
        return True

    with played(calls(refuse)) as at:
        for _ in range(2):
            assert isinstance(answer_of(at), NotYetWritten)
        assert at.connections == 1


@pytest.mark.parametrize("later", [False, True])
def test_a_call_that_the_broker_has_not_begun_is_made_on_another_connection(later: bool) -> None:
    """It closes the connection after the first call, or just as it is asked again."""

    def serve(spoken: Spoken) -> None:
        spoken.hear_call()
        metadata(spoken)
        if later:
            spoken.hear_call()
        spoken.socket.sendall(b"".join(say(Kind.CLOSE)))

    with played(serve) as at:
        for count in range(1, 4):
            assert answer_of(at).answered_by == 7
            assert at.connections == count


@pytest.mark.parametrize(
    "said", [b"\xff" * 8, b"".join(say(Kind.MESSAGE, b"\xff\xff")) + b"".join(say(Kind.END)), b"".join(say(Kind.END))]
)
def test_what_a_broker_says_against_the_protocol_is_no_refusal(said: bytes) -> None:
    def serve(spoken: Spoken) -> bool:
        spoken.socket.sendall(said)
        return False

    with played(calls(serve)) as at:
        assert isinstance(answer_of(at), Unreachable)


def test_a_broker_that_has_stopped_is_waited_for_as_long_as_was_given() -> None:
    with played(calls(lambda _: True)) as at:
        late = answer_of(at, 0.2)
        assert isinstance(late, OutcomeUnknown)
        assert "did not answer in time: ask again" in str(late)


def test_a_call_that_is_broken_off_is_told_once() -> None:
    asked = queue.Queue[None]()

    def serve(spoken: Spoken) -> bool:
        asked.put(None)
        return True

    with played(calls(serve)) as at:
        told: Told = queue.Queue()
        break_off = ask(at, told)
        asked.get(timeout=WAIT_S)
        break_off()
        broken = told.get(timeout=WAIT_S)
        assert isinstance(broken, Unreachable)
        assert "ended here" in str(broken)
        break_off()
        at_once = ask(at, told)
        at_once()
        assert isinstance(told.get(timeout=WAIT_S), Unreachable)
        assert told.empty()
