"""The order of one partition's batches over pipelining and retries. Pure: time and answers are arguments.

A lane holds the batches of one partition that have no final answer, oldest first. Several may be in flight. Order holds
because each names, in `after`, the batch before it if that one is still unanswered: a broker takes it only behind that
one, and says OUT_OF_ORDER otherwise. So whatever is lost on the way, what arrives is a prefix, and what does not is
sent again, in order, under the same UUIDs, of which a broker keeps one copy.

- `after` is computed anew for each attempt: the batch before may have been answered, or given up, since.
- A batch is sent only when every batch before it is in flight or answered.
- Staged batches have no order among themselves: their lanes name no `after`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

import pyarrow as pa

from mq_client.cluster.deadline import Backoff
from mq_client.errors import NotLeader, NotSent, OutcomeUnknown, OutOfOrder, TritonMQError
from mq_client.producing.futures import Outcome
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import PRIORITY_USUAL

_HELD_BACK: Final = (
    ", and the broker has answered nothing: it hangs (`tritonmq doctor`), or a quota holds this user back "
    "(`tritonmq quota list`)"
)


class Due(NamedTuple):
    """When the broker is to publish a batch: at a time, in microseconds since 1970, or so long after it has it. Both 0:
    at once."""

    at_us: int = 0
    delay_ms: int = 0


NOT_SCHEDULED: Final = Due()


class Attributes(NamedTuple):
    """What holds for each record of a batch: how urgent it is, and for how many milliseconds after it is published it
    is of use; 0 for ever."""

    priority: int = PRIORITY_USUAL
    ttl_ms: int = 0


USUAL: Final = Attributes()


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """A closed batch on its way. `size`: bytes that it holds of the producer's memory. Times in seconds, monotonic."""

    topic: str
    partition: int
    uuid: bytes
    record_count: int
    size: int
    fingerprint: int
    outcome: Outcome
    build: Callable[[], pa.Buffer] | None
    deadline: float
    stage: pb.StageOf | None = None
    due: Due = NOT_SCHEDULED
    attributes: Attributes = USUAL
    schema: pa.Schema | None = None
    record_uuids: bytes = b""  # one of its own for each record, joined; or none
    traceparent: bytes = b""  # the span that it belongs to, if it is recorded

    positions: Sequence[int] = ()  # of its records in the batch as it was published, once some are left out
    payload: pa.Buffer | None = None
    correlation: int | None = None  # of the attempt in flight
    sent_at: float = 0.0
    attempts: int = 0
    lane_attempts: int = 0  # of all batches of its lane, when it was added
    in_doubt: bool = False  # an attempt ended without an answer: it may be in the log
    last_error: TritonMQError | None = None
    done: bool = False  # has its final answer

    def encoded(self) -> pa.Buffer:
        """The payload: built when first asked for, kept for retries; what it was built from is let go."""
        if self.build is not None:
            self.payload = self.build()
            self.build = None
        assert self.payload is not None
        return self.payload


@dataclass(slots=True, eq=False)
class Lane:
    """Owns the order of one partition's unanswered batches (or of its staged ones, which have none)."""

    topic: str
    partition: int
    max_in_flight: int
    retries: int
    ordered: bool = True
    random: Random = field(default_factory=Random)
    batches: deque[OutgoingBatch] = field(default_factory=deque)
    in_flight: int = 0
    not_before: float = 0.0
    address: str = ""  # where what is in flight was sent
    attempts: int = 0  # of all its batches, since it was made
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(self.random)

    def add(self, batch: OutgoingBatch) -> None:
        batch.lane_attempts = self.attempts
        self.batches.append(batch)

    @property
    def has_room(self) -> bool:
        """Whether a batch added now could be sent at once."""
        return self.in_flight < self.max_in_flight and self.in_flight == len(self.batches)

    def next(self, now: float) -> OutgoingBatch | None:
        """The batch to send now, if there is one and the lane neither waits after a failure nor is full."""
        if now < self.not_before or self.in_flight >= self.max_in_flight or self.in_flight == len(self.batches):
            return None
        return next(batch for batch in self.batches if batch.correlation is None)

    def sent(self, batch: OutgoingBatch, correlation: int, now: float) -> bytes:
        """It goes out: the `after` of this attempt."""
        assert batch.correlation is None
        batch.correlation, batch.sent_at = correlation, now
        batch.attempts += 1
        self.attempts += 1
        self.in_flight += 1
        if not self.ordered:
            return b""
        before = self._before(batch)
        return before.uuid if before is not None else b""

    def answered(self, batch: OutgoingBatch) -> None:
        """It is in the log: the caller settles its outcome."""
        self._landed(batch)
        self.batches.remove(batch)
        self._backoff.reset()
        self.not_before = 0.0

    def shortened(self, batch: OutgoingBatch) -> None:
        """Some of its records are in the log already, and nothing of it was written: without them it is to be sent
        anew, as another batch. That is no failure, and no attempt counts.
        """
        self._landed(batch)
        batch.attempts -= 1
        batch.in_doubt = False  # an attempt before this one wrote nothing either: these records were there

    def failed(
        self, batch: OutgoingBatch, error: TritonMQError, now: float, *, reached: bool = True
    ) -> TritonMQError | None:
        """An attempt failed. The error to settle it with if that is final, else None: it will be sent again.

        `reached` False: the attempt never left this process.
        """
        self._landed(batch)
        if not reached:
            batch.attempts -= 1
        elif not error.definite:
            batch.in_doubt = True
        if not error.retriable:
            batch.last_error = error
            if batch.in_doubt and error.definite:
                return self.give_up(batch)  # refused now, but an earlier attempt may be in the log
            self.batches.remove(batch)
            return error
        if isinstance(error, OutOfOrder):
            # The batch before it failed, and that failure set the pace. Its own retries are not spent on another's
            # fault.
            batch.attempts -= 1
            before = self._before(batch)
            if before is not None and before.correlation is not None:
                self._pause(now)
            return None
        batch.last_error = error
        if batch.attempts > self.retries or now >= batch.deadline:
            return self.give_up(batch)
        # Told whom to ask: no reason to wait
        if not (isinstance(error, NotLeader) and error.leader and batch.attempts <= 1):
            self._pause(now)
        return None

    def expired(self, now: float) -> list[OutgoingBatch]:
        """Batches past their deadline, oldest first: the caller gives each up."""
        if not self.batches or self.batches[0].deadline > now:
            return []
        return list(itertools.takewhile(lambda batch: batch.deadline <= now, self.batches))

    def give_up(self, batch: OutgoingBatch) -> TritonMQError:
        """Take it out of the lane, in flight or not. The error that says what is known of it."""
        silent = batch.correlation is not None and batch.last_error is None
        if batch.correlation is not None:
            batch.in_doubt = True
            self._landed(batch)
        self.batches.remove(batch)
        spent = f"after {batch.attempts} attempts and the timeout_ms and retries allowed"
        where = f"{batch.topic!r} partition {batch.partition}"
        if batch.in_doubt:
            reason = f", last: {batch.last_error}" if batch.last_error else _HELD_BACK if silent else ""
            return OutcomeUnknown(
                f"batch for {where} was sent and not acknowledged {spent}{reason}; what is published with a uuid can "
                "be sent again"
            )
        if batch.last_error is None or not batch.last_error.definite:
            return NotSent(
                f"batch for {where} could not be sent in the timeout_ms allowed: {self._why_not_sent(batch)}"
            )
        error = batch.last_error
        if isinstance(error, NotLeader):
            return NotLeader(f"{error} ({spent})", error.leader, error.leader_epoch)
        return type(error)(f"{error} ({spent})")

    def _why_not_sent(self, batch: OutgoingBatch) -> str:
        if batch.last_error is not None:
            return str(batch.last_error)
        if self.attempts > batch.lane_attempts:
            return (
                "the batches before it took all of that time. Publish more slowly, or give a longer timeout_ms; a "
                "quota may hold this user back (`tritonmq quota list`)"
            )
        return "no leader was known"

    def _pause(self, now: float) -> None:
        """One wait for all that fail together: a broken stream fails every batch in flight at the same moment."""
        if now >= self.not_before:
            self.not_before = now + self._backoff.next_ms() / 1000

    def _landed(self, batch: OutgoingBatch) -> None:
        assert batch.correlation is not None
        batch.correlation = None
        self.in_flight -= 1

    def _before(self, batch: OutgoingBatch) -> OutgoingBatch | None:
        before = None
        for other in self.batches:
            if other is batch:
                return before
            before = other
        raise AssertionError("the batch is not in its lane")
