"""The one thread that sends: it looks at what is ready, asks who leads, and hands batches to the brokers' streams.

Shared by the producer (records) and the transaction client (staged batches). Decisions about order and retries are the
lanes' (lanes.py), about closing batches the accumulator's; here are threads, the clock and the network.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.duplex import Duplex
from mq_client.cluster.lines import heard
from mq_client.errors import (
    DiskFull,
    InternalError,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    OutOfOrder,
    Overloaded,
    QueueFull,
    SchemaMismatch,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from mq_client.producing.accumulator import Accumulator, AccumulatorSettings, Answer
from mq_client.producing.futures import BatchPlace, RecordPlace
from mq_client.producing.lanes import NOT_SCHEDULED, USUAL, Attributes, Lane, OutgoingBatch
from mq_client.producing.refresher import Refresher
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import PRIORITY_USUAL
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import from_wire


class ProduceStream:
    """Owns the stream, its thread, and the count of what is unanswered on it.

    `on_results` gets answers in the order they come; `on_broken` is called once, last, with whether anything can have
    reached the broker. Both in the stream's thread. `correlations` and `bytes` are the sender's, under its lock.
    """

    def __init__(
        self,
        address: str,
        on_results: Callable[[ProduceStream, Sequence[pb.ProduceResult]], None],
        on_broken: Callable[[ProduceStream, TritonMQError, bool], None],
        client: Client = NOBODY,
    ) -> None:
        self.address = address
        self._client = client
        self.correlations: dict[int, int] = {}  # unanswered: correlation -> bytes
        self.bytes = 0
        self._on_results = on_results
        self._on_broken = on_broken
        # Until there is a connection. Bounded by what the sender lets be unanswered on a stream.
        self._requests: deque[Envelope[pb.ProduceHeader]] = deque()
        self._connecting = threading.Lock()
        self._duplex: Duplex | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"tritonmq-produce-{address}", daemon=True)
        self._thread.start()

    def send(self, request: Envelope[pb.ProduceHeader]) -> None:
        if self._duplex is None:
            with self._connecting:  # else it might overtake those that wait for the connection
                if self._duplex is None:
                    self._requests.append(request)
                    return
        self._duplex.send(request.header.SerializeToString(), request.parts)

    def close(self, timeout_s: float) -> None:
        """End the stream and its thread."""
        self._closed = True
        if self._duplex is not None:
            self._duplex.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            duplex = Duplex(self.address, "Produce", self._client)
        except TritonMQError as error:
            self._on_broken(self, error, False)
            return
        why: TritonMQError = Unreachable(f"broker at {self.address} ended the stream")
        try:
            self._hear(duplex)
        except TritonMQError as error:
            why = error
        finally:
            duplex.release()
            self._on_broken(self, why, True)

    def _hear(self, duplex: Duplex) -> None:
        with self._connecting:
            while self._requests:
                request = self._requests.popleft()
                duplex.send(request.header.SerializeToString(), request.parts)
            self._duplex = duplex
        while not self._closed and (message := duplex.receive()) is not None:
            answer = heard(message, pb.ProduceResponse, self.address, self._client)
            self._on_results(self, answer.results)


_IDLE_S: Final = 1.0
_FAILURES_MAX: Final = 10_000
"""Batches whose error nobody has looked at so far, until the next flush."""

_STALL_S: Final = 2.0
"""Unanswered for so long, it is asked whether somebody else leads by now: a stopped process holds its connections
open."""

_BROKER_TIMEOUT_MS_MAX: Final = limits.REQUEST_TIMEOUT_MS

_SAME_LEADER = (OutOfOrder, Overloaded, QueueFull, DiskFull, NotEnoughReplicas)
"""Retriable, but no sign that somebody else leads."""


class Sender:
    """Owns the sending thread, the streams and the refresher. Everything shared is under `lock`.

    `work` wakes the thread; `progress` is notified whenever something was answered (room in memory, a flush that may
    end). `on_changed_topic`: told under `lock` of a topic that is not as its target has it. `metadata_age_s_max`: what
    is known of the topics written to is asked for again when it is older.
    """

    def __init__(
        self,
        connection: Connection,
        settings: AccumulatorSettings,
        acks: pb.Acks.ValueType,
        on_changed_topic: Callable[[str], None] = lambda topic: None,
        metadata_age_s_max: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        open_stream: Callable[..., ProduceStream] = ProduceStream,
    ) -> None:
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self.progress = threading.Condition(self.lock)
        self.accumulator = Accumulator(settings, Random())  # noqa: S311 - spreads load, guards nothing
        self.failures: list[Answer] = []  # nobody had looked at these when they were told
        self.died: TritonMQError | None = None
        self._connection = connection
        self._clock = clock
        self._open_stream = open_stream
        self._acks = acks
        self._on_changed_topic = on_changed_topic
        self._streams: dict[str, ProduceStream] = {}
        self._refresher = Refresher(connection, self._wake)
        self._metadata_age_s_max = metadata_age_s_max
        self._renew_at = 0.0
        self._ask_again: dict[str, float] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def ensure_started(self) -> None:
        """Start the thread when there is first something to send. Under `lock`. Raises what it died of."""
        if self.died is not None:
            raise self.died
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tritonmq-sender", daemon=True)
            self._thread.start()

    def wait_for_room(self, size: int, bytes_max: int, deadline: Deadline) -> None:
        """Under `lock`: until `size` more bytes fit. Raises `Overloaded` at the deadline."""
        while self.accumulator.pending_bytes and self.accumulator.pending_bytes + size > bytes_max:
            if deadline.expired:
                raise Overloaded(
                    f"producer holds {self.accumulator.pending_bytes} unacknowledged bytes, more than "
                    f"buffer_bytes_max={bytes_max} allows, for {deadline.timeout_ms:.0f} ms: publish more slowly or "
                    "raise it"
                )
            self.progress.wait(deadline.remaining_s)

    def flush(self, deadline: Deadline) -> None:
        """Until everything given so far has its answer. Raises `OutcomeUnknown` at the deadline."""
        with self.lock:
            self.accumulator.close_all()
            waiting = [batch for lane in self.accumulator.busy() for batch in lane.batches]
            self.work.notify()
            while waiting:
                if deadline.expired:
                    raise OutcomeUnknown(
                        f"{len(waiting)} batches have no answer after {deadline.timeout_ms:.0f} ms: they are still "
                        "being sent, flush again"
                    )
                self.progress.wait(deadline.remaining_s)
                waiting = [batch for batch in waiting if not batch.done]

    def stop(self, deadline: Deadline) -> None:
        """End threads and streams. What has no answer by now is given up."""
        answers: list[Answer] = []
        with self.lock:
            self._stopping = True
            self.accumulator.close_all()
            for lane in self.accumulator.busy():
                answers += [self.accumulator.give_up(lane, batch) for batch in list(lane.batches)]
            self._note(answers)
            self.work.notify()
            streams = list(self._streams.values())
        self._tell(answers)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(deadline.remaining_s + 1)
        for stream in streams:
            stream.close(deadline.remaining_s + 1)
        self._refresher.stop()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._send_for_ever()
        except BaseException as error:
            # A defect of ours. Nobody would answer any more: say so to everyone who waits, rather than let them.
            self._give_up_all(
                InternalError(f"the producer's thread failed ({type(error).__name__}: {error}): make a new producer")
            )
            raise

    def _give_up_all(self, error: TritonMQError) -> None:
        with self.lock:
            self.died = error
            self.accumulator.close_all()
            answers = [
                answer for lane in self.accumulator.busy() for answer in self.accumulator.refuse_all(lane, error)
            ]
            self._note(answers)
        self._tell(answers)

    def _send_for_ever(self) -> None:
        while True:
            with self.lock:
                if self._stopping:
                    return
                now = self._clock()
                ready, answers, wake = self._plan(now)
                self._note(answers)
                if not ready and not answers:
                    self.work.wait(max(0.0, min(wake - now, _IDLE_S)))
                    continue
            self._tell(answers)
            for stream, batch, header in ready:
                stream.send(Envelope(header, (memoryview(batch.encoded()),)))

    def _plan(
        self, now: float
    ) -> tuple[list[tuple[ProduceStream, OutgoingBatch, pb.ProduceHeader]], list[Answer], float]:
        """What to send, what ended, and when to look again."""
        accumulator = self.accumulator
        self._renew(now)
        wake = min(self._renew_at, accumulator.close_ready(now) or math.inf)
        ready: list[tuple[ProduceStream, OutgoingBatch, pb.ProduceHeader]] = []
        answers: list[Answer] = []
        for lane in accumulator.busy():
            answers += [accumulator.give_up(lane, batch) for batch in lane.expired(now)]
            if not lane.batches:
                continue
            address = self._leader_of(lane, now, answers)
            # One that waits opens no stream: its failing would wake us
            if address is not None and lane.next(now) is not None:
                stream = self._stream(address)
                while stream.bytes < limits.PRODUCE_IN_FLIGHT_BYTES_MAX and (taken := accumulator.take(lane, now)):
                    batch, correlation, after = taken
                    stream.correlations[correlation] = batch.size
                    stream.bytes += batch.size
                    ready.append((stream, batch, self._header(batch, correlation, after, now)))
            if lane.batches:
                wake = min(wake, lane.batches[0].deadline, now + _STALL_S)
                if lane.not_before > now:
                    wake = min(wake, lane.not_before)
        return ready, answers, wake

    def _renew(self, now: float) -> None:
        """Ask again about topics that were heard of too long ago; let go of targets of those that are not as they
        were."""
        if now < self._renew_at:
            return
        self._renew_at = now + min(_IDLE_S, self._metadata_age_s_max)
        for target in self.accumulator.targets():
            name = target.view.name
            known = self._connection.known_topic(name)
            if known is None or not known.is_made_as(target.view):
                self._on_changed_topic(name)
                if known is None and not any(lane.topic == name for lane in self.accumulator.busy()):
                    # Nobody waits to be told; who publishes next asks for the topic again
                    self._refresher.refusal(name)
            elif self._connection.topic_age_s(name) > self._metadata_age_s_max and now > self._ask_again.get(name, 0.0):
                self._ask_again[name] = now + self._metadata_age_s_max
                self._refresher.ask(name)

    def _leader_of(self, lane: Lane, now: float, answers: list[Answer]) -> str | None:
        """Where the lane's batches go; what is in flight to another than that is called back."""
        refused = self._refresher.refusal(lane.topic)
        if refused is not None:
            self._on_changed_topic(lane.topic)
            answers += self.accumulator.refuse_all(lane, refused)
            return None
        view = self._connection.known_topic(lane.topic)
        address = (
            self._connection.leader_address(view, lane.partition) if view and lane.partition < view.partitions else None
        )
        if address is None:
            self._refresher.ask(lane.topic)
            return None
        if lane.in_flight and lane.address != address:
            moved = OutcomeUnknown(f"the leader moved from {lane.address} to {address} before it answered")
            answers += self.accumulator.recall(lane, moved, now)
        elif (
            lane.in_flight
            and min(batch.sent_at for batch in lane.batches if batch.correlation is not None) + _STALL_S < now
        ):
            self._refresher.ask(lane.topic, address)
        if lane.address != address:
            lane.address = address
            lane.not_before = 0.0  # somebody else leads: what the former one refused is no reason to wait
        return address

    def _header(self, batch: OutgoingBatch, correlation: int, after: bytes, now: float) -> pb.ProduceHeader:
        return pb.ProduceHeader(
            correlation=correlation,
            topic=batch.topic,
            partition=batch.partition,
            uuid=batch.uuid,
            acks=self._acks if batch.stage is None and batch.due == NOT_SCHEDULED else pb.ALL,
            record_count=batch.record_count,
            schema_fingerprint=batch.fingerprint,
            timeout_ms=max(1, min(int((batch.deadline - now) * 1000), _BROKER_TIMEOUT_MS_MAX)),
            after=after,
            stage=batch.stage,
            record_uuids=batch.record_uuids,
            due_us=batch.due.at_us,
            delay_ms=batch.due.delay_ms,
            attributes=_to_wire(batch.attributes),
            traceparent=batch.traceparent,
        )

    def _stream(self, address: str) -> ProduceStream:
        stream = self._streams.get(address)
        if stream is None:
            client = self._connection.client
            stream = self._streams[address] = self._open_stream(address, self._on_results, self._on_broken, client)
        return stream

    def _wake(self) -> None:
        with self.lock:
            self._renew_at = 0.0
            self.work.notify()

    def _note(self, answers: Iterable[Answer]) -> None:
        """Under `lock`, before a flush can see that nothing is left to wait for: the errors that it has to raise."""
        for answer in answers:
            if answer.error is not None and not answer.outcome.observed:
                if len(self.failures) >= _FAILURES_MAX:
                    self.failures = [failure for failure in self.failures if not failure.outcome.observed][
                        : _FAILURES_MAX - 1
                    ]
                self.failures.append(answer)

    def raise_failures(self) -> None:
        """The first error of what nobody has looked at since this was called last."""
        with self.lock:
            failures = list(self.failures)
            self.failures.clear()
        for failure in failures:
            if failure.error is not None and not failure.outcome.observed:
                raise failure.error

    def _tell(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            answer.tell()
        if answers:
            with self.lock:
                self.progress.notify_all()

    # ------------------------------------------------------------------ answers (in the streams' threads)

    def _on_results(self, stream: ProduceStream, results: Sequence[pb.ProduceResult]) -> None:
        answers: list[Answer] = []
        now = self._clock()
        with self.lock:
            for result in results:
                stream.bytes -= stream.correlations.pop(result.correlation, 0)
                if result.HasField("there"):
                    answers += self._there(result)
                    continue
                if not result.HasField("error"):
                    answers += self._placed(result)
                    continue
                error = from_wire(result.error)
                found = self.accumulator.in_flight.get(result.correlation)
                if found is not None:
                    self._learn(found[0], error)
                answers += _final(self.accumulator.refuse(result.correlation, error, now))
            self._note(answers)
            self.work.notify()
        self._tell(answers)

    def _placed(self, result: pb.ProduceResult) -> list[Answer]:
        found = self.accumulator.in_flight.get(result.correlation)
        if found is None:
            return []
        batch = found[1]
        place = BatchPlace(
            batch.partition, result.base_offset, batch.record_count, result.timestamp_us, result.duplicate
        )
        return _final(self.accumulator.answer(result.correlation, place))

    def _there(self, result: pb.ProduceResult) -> list[Answer]:
        found = self.accumulator.in_flight.get(result.correlation)
        if found is None:
            return []
        there, count = result.there, found[1].record_count
        places = dict(zip(there.positions, map(RecordPlace, there.offsets, there.timestamps_us), strict=False))
        if not places or max(places) >= count or not found[1].record_uuids:
            error = InternalError(
                f"the broker says that records {sorted(places)[:5]} of {count} are there already: see its log"
            )
            return _final(self.accumulator.refuse(result.correlation, error, self._clock()))
        return _final(self.accumulator.shorten(result.correlation, places))

    def _learn(self, lane: Lane, error: TritonMQError) -> None:
        if isinstance(error, UnknownTopic | UnknownPartition | SchemaMismatch):
            self._connection.forget(lane.topic)
            self._on_changed_topic(lane.topic)
        if isinstance(error, NotLeader) and error.leader:
            self._connection.note_leader(lane.topic, lane.partition, error)
        if error.retriable and not isinstance(error, _SAME_LEADER):
            self._refresher.ask(lane.topic, lane.address)

    def _on_broken(self, stream: ProduceStream, error: TritonMQError, reached: bool) -> None:
        answers: list[Answer] = []
        now = self._clock()
        with self.lock:
            if self._streams.get(stream.address) is stream:
                del self._streams[stream.address]
            for correlation in stream.correlations:
                found = self.accumulator.in_flight.get(correlation)
                if found is not None:
                    self._learn(found[0], error)
                answers += _final(self.accumulator.refuse(correlation, error, now, reached=reached))
            self._note(answers)
            self.work.notify()
        self._tell(answers)


def _final(answer: Answer | None) -> list[Answer]:
    """None: the batch will be sent again, or has been given up."""
    return [] if answer is None else [answer]


def _to_wire(attributes: Attributes) -> pb.BatchAttributes | None:
    """None for the usual ones."""
    if attributes == USUAL:
        return None
    priority = None if attributes.priority == PRIORITY_USUAL else attributes.priority
    return pb.BatchAttributes(priority=priority, ttl_ms=attributes.ttl_ms)
