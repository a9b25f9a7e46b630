"""Calls with one request, by the thread that waits or on the event loop of the process: what is kept for the next one,
what is asked again, and what is told when one fails. The test is the broker."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mq_client.cluster import lines
from mq_client.cluster.client import Client
from mq_client.cluster.credentials import current
from mq_client.cluster.lines import FetchCall, call_unary
from mq_client.cluster.loop import call_later
from mq_client.errors import InternalError, NotYetWritten, OutcomeUnknown, TopicExists, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import context, files_of_broker, read
from mq_protocol.wire.call import Kind, say
from tests.cluster.harness import wait_until
from tests.played_broker import WAIT_S, PlayedBroker, Spoken, played
from tests.securing import Certs

Answer = Callable[[Spoken, bytes], bool]
"""Answers one call, given its request. Whether the connection stays."""


def calls(answer: Answer) -> Callable[[Spoken], None]:
    """One call after another."""

    def serve(spoken: Spoken) -> None:
        while (request := spoken.hear_call()) is not None:
            if not answer(spoken, request):
                return

    return serve


def chunk(offset: int, payload: bytes) -> pb.BatchesHeader:
    return pb.BatchesHeader(batches=[pb.StoredBatch(base_offset=offset, payload_bytes=len(payload))])


def two_chunks(spoken: Spoken, request: bytes) -> bool:
    start = pb.FetchRequest.FromString(request).start_offset
    for offset, payload in ((start, b"x" * 300_000), (start + 1, b"yz")):
        spoken.answer(chunk(offset, payload), [payload])
    spoken.say(Kind.END)
    return True


def metadata(spoken: Spoken, request: bytes) -> bool:
    spoken.answer(pb.MetadataResponse(answered_by=7))
    spoken.say(Kind.END)
    return True


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    lines.kept.close()
    yield
    lines.kept.close()


def fetch(at: PlayedBroker, start: int = 0, timeout_s: float = WAIT_S) -> FetchCall:
    return FetchCall(at.address, pb.FetchRequest(start_offset=start), timeout_s)


def given(call: FetchCall) -> list[tuple[int, bytes]]:
    return [(message.header.batches[0].base_offset, bytes(message.payload)) for message in call]


def ask(at: str, timeout_s: float = WAIT_S, client: Client = lines.NOBODY) -> pb.MetadataResponse:
    return call_unary(at, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, timeout_s, client)


def ask_later(at: str, told: queue.Queue[Any], timeout_s: float = WAIT_S) -> Callable[[], object]:
    return call_later(at, "Metadata", pb.MetadataRequest(), pb.MetadataResponse, timeout_s, told.put, lines.NOBODY)


def ask_on_the_loop(at: str, timeout_s: float = WAIT_S) -> pb.MetadataResponse:
    told = queue.Queue[Any]()
    ask_later(at, told, timeout_s)
    answer: pb.MetadataResponse | TritonMQError = told.get(timeout=WAIT_S)
    if isinstance(answer, TritonMQError):
        raise answer
    return answer


Way = Callable[[str], pb.MetadataResponse]
WAYS = pytest.mark.parametrize("way", [ask, ask_on_the_loop])


def create(at: PlayedBroker) -> pb.CreateTopicResponse:
    return call_unary(at.address, "CreateTopic", pb.CreateTopicRequest(name="t"), pb.CreateTopicResponse, WAIT_S)


# ---------------------------------------------------------------- what is kept


def test_calls_one_after_the_other_share_a_connection_and_two_at_once_do_not() -> None:
    asked: list[pb.CallOpen] = []

    def noted(spoken: Spoken, request: bytes) -> bool:
        asked.append(spoken.opened)
        return metadata(spoken, request) if spoken.opened.method == "Metadata" else two_chunks(spoken, request)

    with played(calls(noted)) as at:
        for start in (0, 5, 7):
            assert given(fetch(at, start)) == [(start, b"x" * 300_000), (start + 1, b"yz")]
            assert ask(at.address).answered_by == 7
        assert at.connections == 1
        assert [opened.method for opened in asked] == ["Fetch", "Metadata"] * 3
        assert all(0 < opened.timeout_ms <= WAIT_S * 1000 for opened in asked)
        one, other = iter(fetch(at, 1)), iter(fetch(at, 2))
        assert [next(each).header.batches[0].base_offset for each in (one, other, one, other)] == [1, 2, 2, 3]
        assert (list(one), list(other)) == ([], [])
        assert at.connections == 2


def test_a_fetch_that_is_broken_off_leaves_its_connection_to_nobody() -> None:
    with played(calls(two_chunks)) as at:
        call = fetch(at)
        next(iter(call))
        call.cancel()
        assert len(given(fetch(at))) == 2
        assert at.connections == 2


def refuse(spoken: Spoken, request: bytes) -> bool:
    spoken.fail(NotYetWritten("nothing there"))
    return True


def test_an_error_of_a_fetch_is_raised_as_it_was_and_the_connection_serves_the_next_call() -> None:
    with played(calls(refuse)) as at:
        for _ in range(2):
            with pytest.raises(NotYetWritten, match="nothing there"):
                given(fetch(at))
        assert at.connections == 1


@WAYS
def test_an_error_is_raised_as_it_was_and_the_connection_serves_the_next_call(way: Way) -> None:
    turn = count()

    def every_other(spoken: Spoken, request: bytes) -> bool:
        return (metadata if next(turn) % 2 else refuse)(spoken, request)

    with played(calls(every_other)) as at:
        for _ in range(2):
            with pytest.raises(NotYetWritten, match="nothing there"):
                way(at.address)
            assert way(at.address).answered_by == 7
        assert at.connections == 1


def test_kept_connections_have_a_bound() -> None:
    with played(calls(two_chunks)) as at:
        open_calls = [iter(fetch(at)) for _ in range(lines.KEPT_MAX + 2)]
        for call in open_calls:
            next(call)
        for call in open_calls:
            assert len(list(call)) == 1
        again = [iter(fetch(at)) for _ in range(lines.KEPT_MAX + 2)]
        for call in again:
            next(call)
        assert at.connections == lines.KEPT_MAX + 2 + 2


def test_a_broker_that_is_meant_is_named_to_the_one_that_passes_on() -> None:
    named: list[str] = []

    def noted(spoken: Spoken, request: bytes) -> bool:
        named.append(spoken.opened.forward)
        return metadata(spoken, request)

    with played(calls(noted)) as at:
        client = Client((at.address,), forward=True)
        for address in (at.address, "hidden:1", "hidden:2"):
            assert ask(address, client=client).answered_by == 7
        assert (named, at.connections) == (["", "hidden:1", "hidden:2"], 1)


def test_clients_with_other_certificates_share_no_connection(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    tls = context(read(files_of_broker(certs.path, 1)), server=True)
    with played(calls(metadata), tls=tls) as at:
        for user, connections in (("mine", 1), ("theirs", 2), ("mine", 2), ("theirs", 2)):
            assert ask(at.address, client=Client((at.address,), certs.user(user))).answered_by == 7
            assert at.connections == connections
        certs.user("third")
        for end in ("crt", "key"):
            (certs.path / f"client.third.{end}").replace(certs.path / f"client.mine.{end}")
        client = Client((at.address,), certs.user("mine"))
        wait_until(lambda: current(client.security).generation == 2, "the new one was seen")
        assert ask(at.address, client=client).answered_by == 7
        assert at.connections == 3


# ---------------------------------------------------------------- what is asked again


def test_a_connection_that_ended_while_it_was_kept_is_made_anew() -> None:
    def once(spoken: Spoken, request: bytes) -> bool:
        return two_chunks(spoken, request) and False

    with played(calls(once)) as at:
        for _ in range(3):
            assert len(given(fetch(at))) == 2
        assert at.connections == 3


def test_a_change_is_not_asked_on_a_kept_connection_that_has_ended() -> None:
    def once(spoken: Spoken, request: bytes) -> bool:
        spoken.answer(pb.CreateTopicResponse())
        spoken.say(Kind.END)
        return False

    with played(calls(once)) as at:
        for count in range(1, 4):
            create(at)
            assert at.connections == count
            [[line]] = lines.kept._lines.values()
            wait_until(lambda line=line: not line.is_quiet, "its end came")


@pytest.mark.parametrize("later", [False, True])
@WAYS
def test_a_call_that_the_broker_has_not_begun_is_made_on_another_connection(way: Way, later: bool) -> None:
    """It closes the connection after the first call, or just as it is asked again."""

    def serve(spoken: Spoken) -> None:
        request = spoken.hear_call()
        assert request is not None
        metadata(spoken, request)
        if later:
            spoken.hear_call()
        spoken.socket.sendall(b"".join(say(Kind.CLOSE)))

    with played(serve) as at:
        for connections in range(1, 4):
            assert way(at.address).answered_by == 7
            assert at.connections == connections


def test_a_fetch_that_the_broker_has_not_begun_is_made_on_another_connection() -> None:
    heard: list[str] = []

    def serve(spoken: Spoken) -> None:
        request = spoken.hear_call()
        assert request is not None
        heard.append(spoken.opened.method)
        two_chunks(spoken, request)
        if len(heard) == 1:
            spoken.hear_call()
            spoken.socket.sendall(b"".join(say(Kind.CLOSE)))

    with played(serve) as at:
        for _ in range(2):
            assert len(given(fetch(at))) == 2
        assert at.connections == 2


def test_a_fetch_is_asked_again_when_a_kept_connection_breaks_and_a_change_is_not() -> None:
    answered = 0

    def breaks_at_second(spoken: Spoken, request: bytes) -> bool:
        nonlocal answered
        answered += 1
        if answered == 2:
            return False
        if spoken.opened.method == "Fetch":
            return two_chunks(spoken, request)
        spoken.answer(pb.CreateTopicResponse())
        spoken.say(Kind.END)
        return True

    with played(calls(breaks_at_second)) as at:
        assert len(given(fetch(at))) == 2
        assert len(given(fetch(at))) == 2  # the second was asked, and asked again
        assert (answered, at.connections) == (3, 2)
    answered = 0
    with played(calls(breaks_at_second)) as at:
        create(at)
        with pytest.raises(Unreachable, match="it has ended the connection"):
            create(at)
        assert answered == 2


def test_what_a_broker_says_between_two_calls_is_no_answer_to_the_second() -> None:
    def serve(spoken: Spoken) -> None:
        request = spoken.hear_call()
        assert request is not None
        metadata(spoken, request)
        spoken.close_with(None)

    with played(serve) as at:
        for count in range(1, 4):
            assert ask(at.address).answered_by == 7
            assert at.connections == count
            [[line]] = lines.kept._lines.values()
            wait_until(lambda line=line: not line.is_quiet, "its last word came")


# ---------------------------------------------------------------- what fails


def test_a_connection_that_breaks_within_the_answers_is_unreachable() -> None:
    def half(spoken: Spoken, request: bytes) -> bool:
        spoken.answer(chunk(0, b"x"), [b"x"])
        spoken.socket.sendall(b"".join(say(Kind.MESSAGE, b"h", [b"y" * 100_000]))[:50_000])
        return False

    with played(calls(half)) as at, pytest.raises(Unreachable, match=f"broker at {at.address} cannot be reached"):
        given(fetch(at))


def test_a_broker_that_has_stopped_is_waited_for_as_long_as_was_given() -> None:
    def stop(spoken: Spoken, request: bytes) -> bool:
        spoken.socket.sendall(b"".join(say(Kind.MESSAGE, b"h", [b"y" * 100_000]))[:50_000])
        return True

    with played(calls(stop)) as at:
        for call in (
            lambda: given(fetch(at, timeout_s=0.3)),
            lambda: ask(at.address, 0.3),
            lambda: ask_on_the_loop(at.address, 0.3),
        ):
            with pytest.raises(OutcomeUnknown, match="did not answer in time: ask again"):
                call()


def test_a_broker_whose_word_comes_too_late_has_not_answered_in_time() -> None:
    """It ends the call at the same moment."""

    def late(spoken: Spoken, request: bytes) -> bool:
        spoken.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            spoken.hear()
        with contextlib.suppress(OSError):  # the client may have given up before
            spoken.close_with(Unreachable("the time that the client gave is over"))
        return False

    with played(calls(late)) as at, pytest.raises(OutcomeUnknown, match="did not answer in time"):
        ask(at.address, 0.3)


AGAINST = [
    b"\xff" * 8,
    b"".join(say(Kind.END)),
    b"".join(say(Kind.MESSAGE, b"\xff\xff")) + b"".join(say(Kind.END)),
    b"\0\0\0\1\0\0\0\0\x63",
    b"".join(say(Kind.MESSAGE, b"") * 2) + b"".join(say(Kind.END)),
]


@pytest.mark.parametrize("said", AGAINST)
def test_what_a_broker_says_against_the_protocol_is_no_refusal(said: bytes) -> None:
    """It may have done what it was asked."""

    def serve(spoken: Spoken, request: bytes) -> bool:
        spoken.socket.sendall(said)
        return False

    with played(calls(serve)) as at:
        with pytest.raises(Unreachable) as raised:
            create(at)
        assert not raised.value.definite
        if said in AGAINST[:3]:
            with pytest.raises(Unreachable):
                ask_on_the_loop(at.address)


def test_a_call_on_the_loop_that_is_broken_off_is_told_once() -> None:
    asked = queue.Queue[None]()

    def serve(spoken: Spoken, request: bytes) -> bool:
        asked.put(None)
        return True

    with played(calls(serve)) as at:
        told = queue.Queue[Any]()
        break_off = ask_later(at.address, told)
        asked.get(timeout=WAIT_S)
        break_off()
        broken = told.get(timeout=WAIT_S)
        assert isinstance(broken, Unreachable)
        assert "ended here" in str(broken)
        break_off()
        ask_later(at.address, told)()
        assert isinstance(told.get(timeout=WAIT_S), Unreachable)
        assert told.empty()


def test_who_is_refused_while_it_still_sends_is_told_why() -> None:
    def serve(spoken: Spoken) -> None:
        spoken.hear()
        spoken.close_with(InternalError("enough"))

    request = pb.CreateTopicRequest(name="t", schema=bytes(32 << 20))
    with played(serve) as at, pytest.raises(InternalError, match="enough"):
        call_unary(at.address, "CreateTopic", request, pb.CreateTopicResponse, WAIT_S)


def test_a_ping_is_answered_while_an_answer_is_waited_for() -> None:
    def serve(spoken: Spoken, request: bytes) -> bool:
        spoken.ping()
        kind = b""
        while len(kind) < 9:
            kind += spoken.socket.recv(9 - len(kind))
        assert kind == b"".join(say(Kind.PONG))
        return metadata(spoken, request)

    with played(calls(serve)) as at:
        assert ask(at.address).answered_by == 7


def test_a_refusal_of_a_topic_is_as_the_broker_said_it() -> None:
    def serve(spoken: Spoken, request: bytes) -> bool:
        spoken.close_with(TopicExists("there is one"))
        return False

    with played(calls(serve)) as at, pytest.raises(TopicExists, match="there is one"):
        create(at)
