"""A lock's conversation with brokers, word by word, and whom it asks next. The test is the brokers; the event loop is
real."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_client import Lock, LockLost, LockNotAcquired, forks
from mq_client import lock as lock_module
from mq_client.cluster import deadline as deadline_module
from mq_client.cluster.channels import NOBODY, Client
from mq_client.cluster.deadline import Deadline
from mq_client.consuming.push_streams import EventLoop
from mq_client.errors import InvalidRequest, OutcomeUnknown, Overloaded, TritonMQError, Unreachable
from mq_client.lock import _Place
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.scripted import Clock, Scripted, told

WAIT_S = 30.0


class Broken(grpc.RpcError):
    """A stream that broke, as gRPC says it."""

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"


class Call:
    """The broker's end of a Lock stream. `says` is read by the client; it may be an error to raise."""

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
        return said

    async def done_writing(self) -> None:
        self.last_heard.set()
        self.says.put_nowait(aio.EOF)  # type: ignore[attr-defined]

    def cancel(self) -> None:
        self.cancelled.set()


class Loop(EventLoop):
    """The event loop of a process, whose channels lead to `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Call()

    @contextlib.contextmanager
    def channel(self, address: str, client: Client = NOBODY) -> Iterator[Any]:
        yield SimpleNamespace(stream_stream=lambda *method: lambda metadata: self.broker)

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


def queued() -> pb.LockResponse:
    return pb.LockResponse(silence_ms=60_000)


# ---------------------------------------------------------------- one place


def test_a_place_asks_for_the_name_and_is_first_when_it_is_given_a_token(loop: Loop) -> None:
    one = place()
    loop.say(queued(), granted(7), granted(8))
    one.wait_first(Deadline(5_000))
    assert (one.token, one.taken, one.loss) == (7, True, None)
    [asked] = loop.broker.asked
    assert (asked.name, asked.wait_ms) == ("night", 700)


def test_a_place_that_is_left_has_said_its_last_word_and_was_not_lost(loop: Loop) -> None:
    one, told_ = place(), queue.Queue[bool]()
    loop.say(granted())
    one.wait_first(Deadline(5_000))
    one.watch(lambda: told_.put(True))
    one.leave()
    assert loop.broker.last_heard.is_set()
    assert loop.broker.cancelled.wait(WAIT_S)
    assert one.loss is None
    assert told_.empty()


def test_a_broker_that_does_not_hear_the_last_word_is_not_waited_for_long(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard() -> None:
        loop.broker.last_heard.set()

    monkeypatch.setattr(lock_module, "_RELEASE_S", 0.01)
    monkeypatch.setattr(loop.broker, "done_writing", unheard)
    one = place()
    loop.say(granted())
    one.wait_first(Deadline(5_000))
    one.leave()
    assert loop.broker.cancelled.wait(WAIT_S)
    assert one._ended.wait(WAIT_S)
    assert one.loss is None


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (aio.EOF, "lock 'night' is lost: the broker at b:1 ended the stream; acquire it again"),  # type: ignore[attr-defined]
        (Broken(), r"lock 'night' is lost: broker at b:1 cannot be reached: connection reset; acquire it again"),
    ],
)
def test_a_holder_whose_stream_ends_has_lost_the_lock_and_is_told_once(loop: Loop, said: Any, says: str) -> None:
    one, told_ = place(), queue.Queue[bool]()
    loop.say(granted())
    one.wait_first(Deadline(5_000))
    one.watch(lambda: told_.put(True))
    loop.say(said)
    assert told_.get(timeout=WAIT_S)
    assert isinstance(one.loss, LockLost)
    assert str(one.loss) == says
    one.leave()
    assert told_.empty()


def test_who_looks_after_the_loss_is_told_as_well(loop: Loop) -> None:
    one, told_ = place(), queue.Queue[bool]()
    loop.say(granted())
    one.wait_first(Deadline(5_000))
    loop.say(Broken())
    assert one._ended.wait(WAIT_S)
    one.watch(lambda: told_.put(True))
    assert told_.get(timeout=WAIT_S)


@pytest.mark.parametrize(("said", "raised"), [(aio.EOF, LockLost), (Broken(), Unreachable)])  # type: ignore[attr-defined]
def test_a_place_that_ends_before_it_is_first_raises_why(loop: Loop, said: Any, raised: type[TritonMQError]) -> None:
    one = place()
    loop.say(queued(), said)
    with pytest.raises(raised):
        one.wait_first(Deadline(5_000))
    assert one.loss is None


def test_a_broker_that_falls_silent_is_given_up(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_SECOND_LOOK_S", 0.01)
    one, told_ = place(), queue.Queue[bool]()
    loop.say(granted(silence_ms=20))
    one.wait_first(Deadline(5_000))
    one.watch(lambda: told_.put(True))
    assert told_.get(timeout=WAIT_S)
    assert "broker at b:1 has fallen silent" in str(one.loss)
    assert loop.broker.cancelled.wait(WAIT_S)


@pytest.mark.parametrize(("says_ms", "otherwise_s"), [(20, 60.0), (0, 0.02)])
def test_a_broker_says_after_how_long_it_is_silent_and_else_it_is_as_for_the_first_answer(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, says_ms: int, otherwise_s: float
) -> None:
    monkeypatch.setattr(lock_module, "_SECOND_LOOK_S", 0.01)
    one = place()
    loop.say(granted(silence_ms=60_000))
    one.wait_first(Deadline(5_000))
    monkeypatch.setattr(lock_module, "_FIRST_ANSWER_S", otherwise_s)
    loop.say(granted(silence_ms=says_ms))
    assert one._ended.wait(WAIT_S)
    assert "has fallen silent" in str(one.loss)


def test_an_answer_that_is_at_the_door_when_time_is_over_is_heard(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_SECOND_LOOK_S", WAIT_S)
    one = place()
    loop.say(granted(silence_ms=1))
    one.wait_first(Deadline(5_000))
    loop.say(granted(silence_ms=60_000), aio.EOF)  # type: ignore[attr-defined]
    assert one._ended.wait(WAIT_S)
    assert "ended the stream" in str(one.loss)


def test_a_place_that_is_not_first_in_time_is_cancelled(loop: Loop) -> None:
    one = place()
    loop.say(queued())
    with pytest.raises(Unreachable, match="broker at b:1 has not said in time whether lock 'night' is free"):
        one.wait_first(Deadline(1))
    assert loop.broker.cancelled.wait(WAIT_S)
    assert one._ended.wait(WAIT_S)
    assert one.loss is None


def test_a_place_that_is_asked_for_while_the_process_ends_is_not_taken(loop: Loop) -> None:
    loop.closing = True
    with pytest.raises(Unreachable, match="this process is ending"):
        place().wait_first(Deadline(5_000))
    assert loop.broker.asked == []


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
    clock = Clock()
    monkeypatch.setattr(deadline_module, "time", clock)
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


def test_brokers_are_asked_for_once_before_there_is_one_to_queue_at(brokers: Brokers) -> None:
    brokers.answers = [9]
    for _ in range(2):
        brokers.lock.acquire()
        brokers.lock.release()
    assert brokers.connection.addresses_asked() == ["b:1"]


def test_a_broker_that_fails_is_passed_over(brokers: Brokers) -> None:
    brokers.answers = [Unreachable("gone"), LockLost("ended"), Overloaded("busy"), 4]
    assert brokers.lock.acquire() == 4
    assert [place.address for place in brokers.seen] == ["b:1", "b:2", "b:1", "b:2"]
    assert len(brokers.connection.clock.slept) == 1  # after all of them
    assert brokers.connection.addresses_asked() == ["b:1", "b:1"]  # who lives now


def test_places_are_spread_over_the_brokers(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "random", SimpleNamespace(shuffle=lambda addresses: addresses.reverse()))
    brokers.answers = [4]
    brokers.lock.acquire()
    assert [place.address for place in brokers.seen] == ["b:2"]


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


def test_a_lost_lock_stays_lost_until_it_is_released(brokers: Brokers) -> None:
    lock = brokers.lock
    brokers.answers = [9]
    lock.acquire()
    brokers.seen[0].loss = LockLost("gone")
    assert (lock.held, lock.lost) == (False, True)
    with pytest.raises(LockLost):
        _ = lock.token
    with pytest.raises(LockLost):
        lock.release()
    assert (lock.held, lock.lost) == (False, False)
    with pytest.raises(InvalidRequest, match="is not held"):
        lock.release()


def test_a_block_raises_the_loss_unless_it_has_an_error_of_its_own(brokers: Brokers) -> None:
    brokers.answers = [9]

    def lose_it(fails: bool) -> None:
        with brokers.lock:
            brokers.seen[-1].loss = LockLost("gone")
            if fails:
                raise ZeroDivisionError

    with pytest.raises(LockLost):
        lose_it(False)
    with pytest.raises(ZeroDivisionError):
        lose_it(True)


def test_a_loss_is_told_on_a_thread_of_its_own(brokers: Brokers) -> None:
    heard: queue.Queue[tuple[Lock, str]] = queue.Queue()
    lock = brokers.lock
    lock._on_lost = lambda lost: heard.put((lost, threading.current_thread().name))
    brokers.answers = [9]
    lock.acquire()
    brokers.seen[0].on_loss()
    assert heard.get(timeout=WAIT_S) == (lock, "tritonmq-lock-lost night")


def test_a_wait_is_cut_to_what_a_request_can_say() -> None:
    assert lock_module._wait_ms(0) == 0
    assert lock_module._wait_ms(float("inf")) == (1 << 32) - 1


def test_a_process_that_was_forked_from_a_client_is_told_that_it_has_no_lock(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(forks.VARIABLE, "0")
    monkeypatch.setattr(forks, "_used_here", False)
    monkeypatch.setattr(forks, "_used_before_the_fork", True)
    brokers.answers = [9]
    with pytest.raises(InvalidRequest, match="forked from one in which clients of TritonMQ were in use"):
        brokers.lock.acquire()
    assert brokers.seen == []
    monkeypatch.setattr(forks, "_used_before_the_fork", False)
    brokers.lock.acquire()
    assert forks._used_here  # a process that is forked from this one is told so
