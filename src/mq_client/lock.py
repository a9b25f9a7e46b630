"""A lock among all clients of a cluster, first come, first served, with a fencing token.

A broker queues for the client and keeps its place while their stream lasts. Not here: the queue itself, which the
brokers keep in ZooKeeper, or in the one broker's memory.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from mq_client.cluster.client import Client
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import LONGEST_MS, Deadline, attempts
from mq_client.cluster.listening import REFUSED_S
from mq_client.cluster.loop import Call, EventLoop, this_process
from mq_client.errors import InvalidRequest, InvalidSetting, LockLost, LockNotAcquired, TritonMQError, Unreachable
from mq_client.security import Security
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.names import check_lock_name
from mq_protocol.wire.envelope import Envelope

OnLost = Callable[["Lock"], None]

_ANSWER_MS: Final = 10_000.0
"""How long brokers are asked until one answers, besides the time to wait for the lock."""

_FIRST_ANSWER_S: Final = 3.0
"""One broker's time to take the place, before the next is asked."""

_SECOND_LOOK_S: Final = 0.1
_RELEASE_S: Final = 5.0
_WAIT_MS_MAX: Final = (1 << 32) - 1


class Lock:
    """The lock of that name. One holder at a time; waiting clients get it in the order in which brokers queued them.

        with Lock("127.0.0.1:7400", "nightly-report") as lock:
            write_report(fencing_token=lock.token)

    What is promised. Of all holders of a name each has a higher `token` than those before it, for as long as the
    cluster lives. A holder that stops without a word (killed, its machine gone) frees the lock. A holder whose broker
    stops loses it, and is told before the next one has it.

    What is not promised: that there is no moment with two holders. A process that was paused goes on, until it looks,
    beside the next holder. Mutual exclusion is by the token alone: hand it to what the lock protects, and let that
    refuse a token below the highest that it has seen.

    `timeout_ms`: how long `acquire` waits for the lock; 0: take it only if it is free. `on_lost(lock)` is called
    once, on a thread of its own, when the lock is lost before it was released. One `Lock` stands for one holder:
    threads that are to exclude each other need one each. Raises `InvalidRequest` for a name that cannot be,
    `InvalidSetting`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        name: str,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        on_lost: OnLost | None = None,
        security: Security | None = None,
        forward: bool | None = None,
    ) -> None:
        check_lock_name(name)
        self.name = name
        self._timeout_ms = _wait_ms(timeout_ms)
        self._on_lost = on_lost
        self._connection = Connection(bootstrap, refused_s=REFUSED_S, security=security, forward=forward)
        self._busy = threading.Lock()
        self._place: _Place | None = None
        self._queued: _Place | None = None

    # ------------------------------------------------------------------ what is known

    @property
    def held(self) -> bool:
        """Whether this is the holder, as far as is known now."""
        place = self._place
        return place is not None and place.loss is None

    @property
    def waiting(self) -> bool:
        """Whether `acquire` has a place in the queue, behind others."""
        place = self._queued
        return place is not None and place.taken

    @property
    def lost(self) -> bool:
        """Whether the lock went before it was released. Stays true until `release`."""
        place = self._place
        return place is not None and place.loss is not None

    @property
    def token(self) -> int:
        """The holder's fencing token, above 0. Raises `LockLost` if the lock is lost, `InvalidRequest` if it is not
        held."""
        place = self._place
        if place is None:
            raise InvalidRequest(f"lock {self.name!r} is not held: acquire it first")
        if place.loss is not None:
            raise place.loss
        return place.token

    # ------------------------------------------------------------------ having it

    def acquire(self, timeout_ms: float | None = None) -> int:
        """Wait for the lock, and have it. The token.

        `timeout_ms`: as for the class, for this time. Besides, brokers have ten seconds to answer at all. A client
        whose broker stops while it waits queues again at another, behind all others. Raises `LockNotAcquired` if it was
        not free in that time, `InvalidRequest` if this object has it already, `Unreachable` if no broker answered.
        """
        waiting = Deadline(self._timeout_ms if timeout_ms is None else _wait_ms(timeout_ms))
        with self._busy:
            if self._place is not None:
                raise InvalidRequest(
                    f"this object has lock {self.name!r} already: release it first, or make another object"
                )
            place = self._queue(waiting, Deadline(waiting.timeout_ms + _ANSWER_MS))
            self._place = place
        place.watch(self._lose)
        return place.token

    def release(self) -> None:
        """Give the lock back; the next one may have it when this returns. Raises `LockLost` if it was lost before, and
        `InvalidRequest` if it is not held."""
        with self._busy:
            place, self._place = self._place, None
        if place is None:
            raise InvalidRequest(f"lock {self.name!r} is not held: acquire it first")
        place.leave()
        if place.loss is not None:
            raise place.loss

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLost:
            if error is None:  # else what went wrong inside says more
                raise

    def _lose(self) -> None:
        if self._on_lost is not None:  # on the loop that carries all streams it would hold up other locks
            threading.Thread(
                target=self._on_lost, args=(self,), name=f"tritonmq-lock-lost {self.name}", daemon=True
            ).start()

    def _queue(self, waiting: Deadline, reaching: Deadline) -> _Place:
        last: TritonMQError | None = None
        if not self._connection.brokers():
            self._connection.metadata(reaching)
        for attempt in attempts(reaching):
            if attempt:
                with contextlib.suppress(TritonMQError):  # who lives now
                    self._connection.metadata(reaching.at_most(_FIRST_ANSWER_S * 1000))
            for address in self._anywhere():
                place = self._queued = _Place(
                    address, self.name, int(waiting.remaining_s * 1000), self._connection.client
                )
                try:
                    place.wait_first(reaching)
                    return place
                except TritonMQError as error:
                    if isinstance(error, LockNotAcquired) or not (error.retriable or isinstance(error, LockLost)):
                        raise
                    last = error
                except BaseException:  # interrupted: the place must not stay
                    place.cancel()
                    raise
                finally:
                    self._queued = None
                if reaching.expired:
                    break
        assert last is not None
        raise _not_had(self.name, reaching, last)

    def _anywhere(self) -> list[str]:
        """Every address, in any order: places are spread over the brokers."""
        addresses = list(dict.fromkeys([*self._connection.addresses(), *self._connection.bootstrap]))
        random.shuffle(addresses)
        return addresses


def _not_had(name: str, deadline: Deadline, last: TritonMQError) -> TritonMQError:
    if last.definite:
        return last
    return Unreachable(f"lock {name!r}: no broker answered within {deadline.timeout_ms:.0f} ms, last: {last}")


def _wait_ms(timeout_ms: float) -> float:
    if not timeout_ms >= 0:
        raise InvalidSetting(
            f"timeout_ms={timeout_ms} is no time to wait: give milliseconds, or 0 to take the lock only if it is free"
        )
    return min(timeout_ms, LONGEST_MS, _WAIT_MS_MAX)


class _Place:
    """A place in the queue at one broker: one stream. `taken`: the broker has said so. `token`: 0 until it is the
    first. `loss`: why it ended after that, if it did by itself."""

    def __init__(self, address: str, name: str, wait_ms: int, client: Client) -> None:
        self.token = 0
        self.taken = False
        self.loss: LockLost | None = None
        self._address = address
        self._client = client
        self._name = name
        self._request = pb.LockRequest(name=name, wait_ms=wait_ms)
        self._first: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._ended = threading.Event()
        self._leaving = False
        self._on_loss: Callable[[], None] | None = None
        self._loop: EventLoop = this_process()
        self._task: asyncio.Task[None] | None = None
        self._call: Call[pb.LockResponse] | None = None
        self._loop.call(self._begin)

    # -- from any thread

    def wait_first(self, deadline: Deadline) -> None:
        """Raises what ended the place before it was the first."""
        try:
            self.token = self._first.result(deadline.remaining_s)
        except concurrent.futures.TimeoutError:
            self.cancel()
            raise Unreachable(
                f"broker at {self._address} has not said in time whether lock {self._name!r} is free"
            ) from None

    def watch(self, on_loss: Callable[[], None]) -> None:
        self._loop.call(self._set_on_loss, on_loss)

    def leave(self) -> None:
        """The place is given up when this returns, if its broker answers."""
        self._loop.call(self._say_last)
        if not self._ended.wait(_RELEASE_S):
            self.cancel()

    def cancel(self) -> None:
        self._loop.call(self._cancel)

    # -- on the loop

    def _begin(self) -> None:
        if self._loop.closing:
            self._end(Unreachable("this process is ending"))
            return
        self._task = self._loop.spawn(self._run())
        # A task that is cancelled before its first step runs none of its own code.
        self._task.add_done_callback(lambda _: self._end(LockLost(f"lock {self._name!r} was given up")))

    def _set_on_loss(self, on_loss: Callable[[], None]) -> None:
        if self.loss is not None:
            on_loss()
        self._on_loss = on_loss

    def _cancel(self) -> None:
        self._leaving = True
        if self._task is not None:
            self._task.cancel()

    def _say_last(self) -> None:
        self._leaving = True
        if self._call is not None:
            self._call.end()

    async def _run(self) -> None:
        try:
            async with self._loop.opened("Lock", pb.LockResponse, self._address, self._client) as call:
                self._call = call
                await self._listen(call)
            self._end(
                LockLost(
                    f"lock {self._name!r} is lost: the broker at {self._address} ended the stream; acquire it again"
                )
            )
        except TritonMQError as error:
            self._end(error)
        except TimeoutError:
            self._end(Unreachable(f"broker at {self._address} has fallen silent"))

    async def _listen(self, call: Call[pb.LockResponse]) -> None:
        silence_s = _FIRST_ANSWER_S
        async with asyncio.timeout(silence_s):
            await call.write(self._request)
        while (answer := await self._answer(call, silence_s)) is not None:
            self.taken = True
            silence_s = answer.header.silence_ms / 1000 or _FIRST_ANSWER_S
            if answer.header.token and not self._first.done():
                self._first.set_result(answer.header.token)

    async def _answer(self, call: Call[pb.LockResponse], silence_s: float) -> Envelope[pb.LockResponse] | None:
        reading = asyncio.ensure_future(call.read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=silence_s)
            if not done:  # it may be this process that was held up, with the answer at its door
                done, _ = await asyncio.wait({reading}, timeout=_SECOND_LOOK_S)
            if not done:
                raise TimeoutError
            return reading.result()
        finally:
            reading.cancel()

    def _end(self, why: TritonMQError) -> None:
        if self._ended.is_set():
            return
        if not self._first.done():
            self._first.set_exception(why)
        elif not self._leaving:
            self.loss = (
                why if isinstance(why, LockLost) else LockLost(f"lock {self._name!r} is lost: {why}; acquire it again")
            )
        self._ended.set()
        if self.loss is not None and self._on_loss is not None:
            self._on_loss()
