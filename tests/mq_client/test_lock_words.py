"""A lock's conversation with brokers, word by word, and whom it asks next. The test is the brokers; the event loop is
real."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mq_client import Lock, LockLost, LockNotAcquired
from mq_client import lock as lock_module
from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.loop import EventLoop
from mq_client.errors import InvalidRequest, OutcomeUnknown, Overloaded, TritonMQError, Unreachable
from mq_client.lock import _Place
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.envelope import Envelope
from tests.mq_client.cluster.scripted import Scripted, played_clock, told

WAIT_S = 30.0


class Call:
    """The broker's end of a Lock stream. `says` is read by the client; it may be an error to raise, or None at the
    end."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[pb.LockRequest] = []
        self.begun = threading.Event()
        self.last_heard = threading.Event()
        self.cancelled = threading.Event()

    async def write(self, request: pb.LockRequest) -> None:
        self.asked.append(request)
        self.begun.set()

    async def read(self) -> Any:
        said = await self.says.get()
        if isinstance(said, Exception):
            raise said
        return None if said is None else Envelope(said)

    def end(self) -> None:
        self.last_heard.set()
        self.says.put_nowait(None)


class Loop(EventLoop):
    """The event loop of a process, whose calls go to `broker`."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Call()

    @contextlib.asynccontextmanager
    async def opened(self, method: str, header: Any, address: str, client: Client = NOBODY) -> AsyncIterator[Any]:
        try:
            yield self.broker
        finally:
            self.broker.cancelled.set()

    def say(self, *said: Any) -> None:
        """As the broker."""
        assert self.broker.begun.wait(WAIT_S)
        for word in said:
            self.call(self.broker.says.put_nowait, word)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    made = Loop()
    monkeypatch.setattr(lock_module, "this_process", lambda: made)
    yield made
    made.stop()
    made._loop.close()


def place(wait_ms: int = 700) -> _Place:
    return _Place("b:1", "night", wait_ms, Client())


def granted(token: int = 5, silence_ms: int = 60_000) -> pb.LockResponse:
    return pb.LockResponse(token=token, silence_ms=silence_ms)


# ---------------------------------------------------------------- one place


def test_a_broker_that_falls_silent_is_given_up(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_SECOND_LOOK_S", 0.01)
    one, told_ = place(), queue.Queue[bool]()
    loop.say(granted(silence_ms=20))
    one.wait_first(Deadline(WAIT_S * 1000))
    one.watch(lambda: told_.put(True))
    assert told_.get(timeout=WAIT_S)
    assert "broker at b:1 has fallen silent" in str(one.loss)
    assert loop.broker.cancelled.wait(WAIT_S)


def test_a_place_that_is_not_first_in_time_is_cancelled(loop: Loop) -> None:
    one = place()
    loop.say(pb.LockResponse(silence_ms=60_000))
    with pytest.raises(Unreachable, match="broker at b:1 has not said in time whether lock 'night' is free"):
        one.wait_first(Deadline(1))
    assert loop.broker.cancelled.wait(WAIT_S)
    assert one.loss is None


# ---------------------------------------------------------------- which broker next


class Place:
    """In a place's stead: what became of it is said by the test."""

    def __init__(self, address: str, name: str, wait_ms: int) -> None:
        self.address = address
        self.wait_ms = wait_ms
        self.token = 0
        self.taken = True
        self.loss: LockLost | None = None
        self.cancelled = self.left = False
        self.brokers: Brokers

    def wait_first(self, deadline: Deadline) -> None:
        self.brokers.seen.append(self)
        self.token = self.brokers.answer(self)

    def watch(self, on_loss: Any) -> None:
        self.on_loss = on_loss

    def leave(self) -> None:
        self.left = True

    def cancel(self) -> None:
        self.cancelled = True


class Brokers:
    """Owns what brokers answer, one after the other: a token, or an error."""

    def __init__(self, lock: Lock, connection: Scripted) -> None:
        self.lock = lock
        self.connection = connection
        self.answers: list[int | BaseException] = []
        self.seen: list[Place] = []
        self.waiting: list[bool] = []

    def answer(self, asked: Place) -> int:
        self.waiting.append(self.lock.waiting)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Of a lock named `night`, at a cluster of two, asked in their order."""
    clock = played_clock(monkeypatch)
    monkeypatch.setattr(lock_module, "random", SimpleNamespace(shuffle=lambda addresses: addresses.sort()))
    connection = Scripted(clock)
    connection.brokers_say = {"b:1": told(brokers=2), "b:2": told(brokers=2)}
    lock = Lock("b:1", "night", timeout_ms=2_000)
    lock._connection = connection
    made = Brokers(lock, connection)

    def at(address: str, name: str, wait_ms: int, client: Client) -> Place:
        place_ = Place(address, name, wait_ms)
        place_.brokers = made
        return place_

    monkeypatch.setattr(lock_module, "_Place", at)
    return made


def test_a_lock_is_held_from_its_token_to_its_release(brokers: Brokers) -> None:
    lock = brokers.lock
    brokers.answers = [9]
    assert (lock.held, lock.waiting, lock.lost) == (False, False, False)
    assert lock.acquire() == 9
    assert brokers.waiting == [True]
    assert (lock.held, lock.waiting, lock.lost, lock.token) == (True, False, False, 9)
    assert brokers.seen[0].wait_ms == 2_000
    with pytest.raises(InvalidRequest, match="has lock 'night' already"):
        lock.acquire()
    lock.release()
    assert brokers.seen[0].left
    assert not lock.held


def test_a_broker_that_fails_is_passed_over(brokers: Brokers) -> None:
    brokers.answers = [Unreachable("gone"), LockLost("ended"), Overloaded("busy"), 4]
    assert brokers.lock.acquire() == 4
    assert [place.address for place in brokers.seen] == ["b:1", "b:2", "b:1", "b:2"]
    assert len(brokers.connection.clock.slept) == 1  # after all of them
    assert brokers.connection.addresses_asked() == ["b:1", "b:1"]  # who lives now


@pytest.mark.parametrize("refusal", [LockNotAcquired("taken"), InvalidRequest("no")])
def test_a_lock_that_is_not_free_or_refused_is_not_asked_of_another(brokers: Brokers, refusal: TritonMQError) -> None:
    brokers.answers = [refusal]
    with pytest.raises(type(refusal)):
        brokers.lock.acquire()
    assert len(brokers.seen) == 1
    assert not brokers.lock.waiting


def test_who_is_interrupted_keeps_no_place(brokers: Brokers) -> None:
    brokers.answers = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        brokers.lock.acquire()
    assert brokers.seen[0].cancelled
    assert (brokers.lock.held, brokers.lock.waiting) == (False, False)


@pytest.mark.parametrize(
    ("answer", "raised", "says"),
    [
        (OutcomeUnknown("late"), Unreachable, "lock 'night': no broker answered within 12000 ms, last: late"),
        (Overloaded("busy"), Overloaded, "busy"),
    ],
)
def test_ten_seconds_more_than_the_wait_there_are_to_answer_at_all(
    brokers: Brokers, answer: TritonMQError, raised: type[TritonMQError], says: str
) -> None:
    brokers.answers = [answer]
    began = brokers.connection.clock.now
    with pytest.raises(raised, match=says):
        brokers.lock.acquire()
    assert brokers.connection.clock.now - began == pytest.approx(12.0)
    assert brokers.seen[-1].wait_ms == 0  # the time to wait for the lock itself was over before
