"""Both ends of a connection without one: what each may say when, what is no message, and who is taken for dead."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion, InvalidRequest, NotLeader, RequestTooLarge, Unreachable
from mq_protocol.wire.call import (
    BEATS_MAX,
    PING_S,
    PREAMBLE,
    SILENCE_S,
    CallMachine,
    Kind,
    Said,
    Side,
    State,
    error_of,
    parsed,
    say,
)
from mq_protocol.wire.framing import preamble

BYTES_MAX = 100_000

LETTERS = {
    "O": (Side.CLIENT, Kind.OPEN),
    "m": (Side.CLIENT, Kind.MESSAGE),
    "e": (Side.CLIENT, Kind.END),
    "M": (Side.BROKER, Kind.MESSAGE),
    "E": (Side.BROKER, Kind.END),
    "X": (Side.BROKER, Kind.ERROR),
    "C": (Side.BROKER, Kind.CLOSE),
}
"""What is said on a connection, as letters: the broker's are large ones, but for `OPEN`."""

CALL = r"O[mM]*eM*[EX]"
CONNECTION = re.compile(rf"({CALL})*(O[mM]*(eM*)?)?C?")
"""All that may be said up to now, in the order in which one end says and hears it."""

STATES = {
    State.IDLE: re.compile(rf"({CALL})*"),
    State.OPEN: re.compile(rf"({CALL})*O[mM]*"),
    State.HALF_CLOSED: re.compile(rf"({CALL})*O[mM]*eM*"),
    State.ENDED: re.compile(r".*C"),
}


def state_of(transcript: str) -> State:
    [state] = [state for state, looks in STATES.items() if looks.fullmatch(transcript)]
    return state


def machine(side: Side, bytes_max: int = BYTES_MAX, now: float = 0.0) -> CallMachine:
    """One whose far side has said its preamble."""
    made = CallMachine(side, bytes_max, now)
    feed(made, PREAMBLE, now)
    assert made.next() is None
    return made


def feed(at: CallMachine, data: bytes, now: float = 0.0) -> None:
    room = at.buffer()
    assert len(data) <= len(room)
    room[: len(data)] = data
    at.received(len(data), now)


def bytes_of(pieces: Iterable[Any]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def heard(at: CallMachine, *messages: list[Any], now: float = 0.0) -> Said | None:
    """The next message that it takes, once it has received those."""
    feed(at, b"".join(bytes_of(pieces) for pieces in messages), now)
    return at.next()


class Two:
    """Both ends, of which each hears at once what the other one says."""

    def __init__(self) -> None:
        self.ends = {side: machine(side) for side in Side}

    def say(self, letter: str) -> None:
        side, kind = LETTERS[letter]
        message = heard(self._other(side), self.ends[side].say(kind))
        assert message is not None
        assert message.kind is kind

    def forge(self, letter: str) -> None:
        """Without a look at what may be said."""
        side, kind = LETTERS[letter]
        heard(self._other(side), say(kind))

    def _other(self, side: Side) -> CallMachine:
        [other] = [end for each, end in self.ends.items() if each is not side]
        return other


# ---------------------------------------------------------------- who may say what


@pytest.mark.parametrize("length", range(5))
def test_what_may_be_said_is_said_and_heard_and_nothing_else_is(length: int) -> None:
    """All that can be said in so many words, and in one more."""
    for said in map("".join, product(LETTERS, repeat=length)):
        if not CONNECTION.fullmatch(said):
            continue
        for letter in LETTERS:
            two = Two()
            for each in said:
                two.say(each)
            assert {end.state for end in two.ends.values()} == {state_of(said)}
            if CONNECTION.fullmatch(said + letter):
                two.say(letter)
                continue
            with pytest.raises(ValueError, match=f"{LETTERS[letter][1].name} cannot be said now"):
                two.say(letter)
            with pytest.raises(InvalidRequest, match=f"{LETTERS[letter][1].name} cannot be said now"):
                two.forge(letter)


def test_a_call_that_has_failed_leaves_the_connection_to_the_next_and_one_that_is_broken_off_does_not() -> None:
    client, broker = machine(Side.CLIENT), machine(Side.BROKER)
    for _ in range(2):
        opened = heard(broker, client.open(pb.CallOpen(method="Fetch")))
        assert opened is not None
        assert parsed(opened.body, pb.CallOpen).method == "Fetch"
        heard(broker, client.say(Kind.END))
        failed = heard(client, broker.fail(NotLeader("ask broker 3", 3, 17)))
        assert failed is not None
        error = error_of(failed)
        assert isinstance(error, NotLeader)
        assert (str(error), error.leader, error.leader_epoch) == ("ask broker 3", 3, 17)
    for why, told in ((NotLeader("gone"), NotLeader), (None, Unreachable)):
        client, broker = machine(Side.CLIENT), machine(Side.BROKER)
        closed = heard(client, broker.close(why))
        assert closed is not None
        assert isinstance(error_of(closed), told)
        assert client.state is State.ENDED
    assert error_of(Said(Kind.MESSAGE, b"", memoryview(b""))) is None


# ---------------------------------------------------------------- what is no message


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 255])
def test_a_kind_that_there_is_not_is_refused(kind: int) -> None:
    with pytest.raises(InvalidRequest, match=f"of kind {kind}"):
        heard(machine(Side.BROKER), [b"\0\0\0\1\0\0\0\0", bytes([kind])])


@pytest.mark.parametrize("kind", [Kind.END, Kind.PING, Kind.PONG])
@pytest.mark.parametrize("brings", [(b"x",), (b"", [b"x"])], ids=["a body", "a payload"])
def test_what_says_nothing_more_brings_nothing_along(kind: Kind, brings: tuple[Any, ...]) -> None:
    broker = machine(Side.BROKER)
    heard(broker, say(Kind.OPEN))
    with pytest.raises(InvalidRequest, match=f"{kind.name} says nothing more, and 1 bytes"):
        heard(broker, say(kind, *brings))


def test_bytes_that_are_no_such_message_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="malformed CallOpen"):
        parsed(b"\xff\xff", pb.CallOpen)


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (preamble(), InvalidRequest),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", InvalidRequest),
        (PREAMBLE[:-2] + b"\x09\x08", IncompatibleVersion),
    ],
    ids=["a link", "gRPC", "of the future"],
)
def test_who_speaks_something_else_is_told_so(first: bytes, error: type[Exception]) -> None:
    at = CallMachine(Side.BROKER, BYTES_MAX, 0.0)
    feed(at, first)
    with pytest.raises(error):
        at.next()
    assert not at.is_greeted


# ---------------------------------------------------------------- how large it may be


def test_a_message_with_a_payload_has_its_header_apart() -> None:
    broker = machine(Side.BROKER)
    heard(broker, say(Kind.OPEN))
    message = heard(broker, say(Kind.MESSAGE, pb.ProduceHeader(topic="t").SerializeToString(), (b"ab", b"cd")))
    assert message is not None
    assert parsed(message.body, pb.ProduceHeader).topic == "t"
    assert (bytes(message.payload), message.nbytes) == (b"abcd", len(message.body) + 4)


@pytest.mark.parametrize(
    ("header", "payload", "fits"),
    [(10, 0, True), (11, 0, False), (10, 20, True), (10, 21, False), (1, 30, False), (0, 30, True)],
)
def test_a_bound_is_of_what_is_said_and_holds_from_the_next_message_on(header: int, payload: int, fits: bool) -> None:
    broker = machine(Side.BROKER)
    heard(broker, say(Kind.OPEN, bytes(1_000)))
    broker.bound(10, 30)
    said = say(Kind.MESSAGE, bytes(header), [bytes(payload)])
    if fits:
        message = heard(broker, said)
        assert message is not None
        assert message.nbytes == header + payload
    else:
        with pytest.raises(RequestTooLarge):
            heard(broker, said)


def test_of_a_large_message_it_is_known_how_much_is_to_come_and_it_can_be_let_go() -> None:
    broker = machine(Side.BROKER)
    heard(broker, say(Kind.OPEN))
    data = bytes_of(say(Kind.MESSAGE, b"h", [bytes(50_000)]))
    assert heard(broker, [data[:100]]) is None
    assert (broker.missing_bytes, broker.is_empty) == (len(data) - 100, False)
    broker.drop()
    assert (broker.missing_bytes, broker.is_empty) == (0, True)


# ---------------------------------------------------------------- who lives


def test_who_is_silent_is_asked_and_then_taken_for_dead() -> None:
    client = machine(Side.CLIENT, now=100.0)
    assert client.look(100.0 + PING_S - 0.1, reads=True) == []
    assert bytes_of(client.look(100.0 + PING_S, reads=True)) == bytes_of(say(Kind.PING))
    assert heard(client, say(Kind.PONG), now=100.0 + PING_S + 1) is None
    later = 100.0 + PING_S + 1
    assert client.look(later + PING_S - 0.1, reads=True) == []
    assert client.look(later + SILENCE_S - 0.1, reads=True) != []
    assert client.look(later + SILENCE_S, reads=True, grace_s=5.0) != []
    with pytest.raises(Unreachable, match="said nothing for 15 s"):
        client.look(later + SILENCE_S, reads=True)
    with pytest.raises(Unreachable):
        client.look(later + SILENCE_S + 5, reads=True, grace_s=5.0)


def test_a_single_byte_shows_that_the_far_side_lives() -> None:
    client = machine(Side.CLIENT)
    feed(client, b"\0", SILENCE_S)
    assert client.look(SILENCE_S + PING_S - 0.1, reads=True) == []


def test_who_does_not_read_says_that_it_lives_and_takes_nobody_for_dead() -> None:
    broker = machine(Side.BROKER)
    for now in (1.0, SILENCE_S, 100 * SILENCE_S):
        assert bytes_of(broker.look(now, reads=False)) == bytes_of(say(Kind.PONG))
    broker.goes_on(100 * SILENCE_S)
    assert broker.look(100 * SILENCE_S + PING_S - 0.1, reads=True) == []


def test_several_that_ask_together_are_answered_once_between_messages_of_the_call_too() -> None:
    broker = machine(Side.BROKER)
    opened = heard(broker, say(Kind.PING), say(Kind.OPEN), say(Kind.PING), say(Kind.PING))
    assert opened is not None
    assert opened.kind is Kind.OPEN
    assert broker.next() is None
    assert bytes_of(broker.answer()) == bytes_of(say(Kind.PONG))
    assert broker.answer() == []
    heard(broker, say(Kind.PONG))
    assert broker.answer() == [], "it was no question"


def test_a_flood_of_beats_is_refused_and_as_many_as_are_allowed_between_two_looks_are_not() -> None:
    for beat in (Kind.PING, Kind.PONG):
        broker = machine(Side.BROKER)
        for now in (1.0, 2.0):
            assert heard(broker, *[say(beat)] * BEATS_MAX) is None
            broker.look(now, reads=True)
        with pytest.raises(InvalidRequest, match=f"more than {BEATS_MAX}"):
            heard(broker, *[say(beat)] * (BEATS_MAX + 1))


# ---------------------------------------------------------------- both at random


class End:
    """One end, and what a naive model knows of it: all that it has said and heard, as letters."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.machine = CallMachine(side, BYTES_MAX, 0.0)
        self.transcript = ""
        self.on_its_way = bytearray(PREAMBLE)
        """What it has said, and the other one has not received."""
        self.unheard: deque[tuple[str, bytes, bytes]] = deque()
        """The same by message, without beats, and what was received and not taken."""

    def speak(self, chance: random.Random) -> None:
        """Something, if it may be said; else it is refused."""
        said = "Ommme" if self.side is Side.CLIENT else "MMMEX" if chance.random() < 0.98 else "C"
        letter = chance.choice(said)
        kind = LETTERS[letter][1]
        body = b"" if kind is Kind.END else chance.randbytes(chance.choice((0, 1, 300)))
        payload = b"" if kind is not Kind.MESSAGE else chance.randbytes(chance.choice((0, 0, 5, 40_000, 90_000)))
        if CONNECTION.fullmatch(self.transcript + letter):
            self.on_its_way += bytes_of(self.machine.say(kind, body, [payload] if payload else []))
            self.transcript += letter
            self.unheard.append((letter, body, payload))
        else:
            with pytest.raises(ValueError, match="cannot be said now"):
                self.machine.say(kind, body)

    def receive(self, other: End, chance: random.Random) -> None:
        """Some of what is on its way, and all messages that are whole, or one. Who has broken off hears nothing."""
        if self.transcript.endswith("C") and self.side is Side.BROKER:
            other.on_its_way.clear()
            return
        room = self.machine.buffer()
        count = min(len(room), len(other.on_its_way), chance.choice((1, 7, 100, 30_000, 1 << 20)))
        room[:count] = other.on_its_way[:count]
        del other.on_its_way[:count]
        self.machine.received(count, 0.0)
        while (message := self.machine.next()) is not None:
            letter, body, payload = other.unheard.popleft()
            assert (message.kind, message.body, bytes(message.payload)) == (LETTERS[letter][1], body, payload)
            self.transcript += letter
        self.on_its_way += bytes_of(self.machine.answer())
        assert self.machine.state is state_of(self.transcript)


@pytest.mark.parametrize("seed", range(40))
def test_what_both_may_say_is_heard_in_its_order_however_it_crosses_and_is_torn(seed: int) -> None:
    chance = random.Random(seed)
    client, broker = End(Side.CLIENT), End(Side.BROKER)
    for _ in range(300):
        end, other = chance.choice(((client, broker), (broker, client)))
        match chance.randrange(4):
            case 0:
                end.speak(chance)
            case 1 if end.machine.is_greeted:
                end.on_its_way += bytes_of(end.machine.look(0.0, reads=chance.random() < 0.8))
            case _:
                end.receive(other, chance)
    while client.on_its_way or broker.on_its_way:
        broker.receive(client, chance)
        client.receive(broker, chance)
    assert client.machine.state is broker.machine.state
    assert not broker.unheard
    assert not client.unheard or broker.machine.state is State.ENDED
