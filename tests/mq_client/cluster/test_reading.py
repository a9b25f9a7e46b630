"""How a read goes on: from replica to replica, over elections, until its time is over. Brokers and clock are the
test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_client import reader as reader_module
from mq_client.errors import (
    CorruptBatch,
    InvalidRequest,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    PartitionUnavailable,
    TritonMQError,
    UnknownTopic,
    Unreachable,
)
from mq_client.producing.batches import records_to_batch
from mq_client.reader import Reader
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info

Message = Envelope[pb.BatchesHeader] | Exception


def stored(base: int, count: int, *, claimed: int | None = None) -> Envelope[pb.BatchesHeader]:
    """A stored batch whose values are its offsets."""
    batch = records_to_batch([], [b"%d" % at for at in range(base, base + count)], [], [0] * count)
    payload = memoryview(encode_batch(batch))
    said = pb.StoredBatch(
        topic="t",
        base_offset=base,
        record_count=count if claimed is None else claimed,
        payload_bytes=len(payload),
        timestamp_us=5,
    )
    return Envelope(pb.BatchesHeader(batches=[said]), (payload,))


def refused(error: TritonMQError) -> Envelope[pb.BatchesHeader]:
    return Envelope(pb.BatchesHeader(error=to_wire(error)))


def broke() -> Unreachable:
    return Unreachable("connection reset")


class Call:
    """A fetch, as the reader sees it."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.cancelled = False

    def __iter__(self) -> Iterator[Any]:
        for message in self._messages:
            if isinstance(message, Exception):
                raise message
            yield SimpleNamespace(header=message.header, payload=bytes(message.payload))

    def cancel(self) -> None:
        self.cancelled = True


class Logs:
    """Owns what brokers answer to fetches: `play[address]` is asked with the request. Notes each fetch."""

    def __init__(self) -> None:
        self.play: dict[str, Callable[[pb.FetchRequest], list[Message]]] = {}
        self.fetched: list[tuple[str, int]] = []
        self.requests: list[pb.FetchRequest] = []
        self.allowed_s: list[float] = []
        self.calls: list[Call] = []

    def open_fetch(self, address: str, request: pb.FetchRequest, timeout_s: float, client: Any) -> Call:
        self.fetched.append((address, request.start_offset))
        self.requests.append(request)
        self.allowed_s.append(timeout_s)
        call = Call(self.play[address](request))
        self.calls.append(call)
        return call


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    made = Logs()
    monkeypatch.setattr(reader_module, "FetchCall", made.open_fetch)
    return made


@pytest.fixture
def reader(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Of topic `t`, led by broker 1, with followers 2 and 3 asked in that order."""
    info = topic_info(1)
    scripted.learn(info)
    scripted.clock.now += 0.5
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(info))
    made = Reader(scripted, 10_000)
    monkeypatch.setattr(made._replicas, "_random", SimpleNamespace(shuffle=lambda found: found.sort()))
    return made


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def everything(request: pb.FetchRequest) -> list[Message]:
    return [stored(request.start_offset, request.end_offset - request.start_offset)]


# ---------------------------------------------------------------- one broker


def test_a_read_asks_for_exactly_what_is_wanted(reader: Reader, logs: Logs) -> None:
    logs.play = {"b:1": everything}
    assert values(reader.read("t", 0, 3, 8, chunk_bytes_max=77)) == [3, 4, 5, 6, 7]
    [request] = logs.requests
    assert (request.topic, request.partition, request.start_offset, request.end_offset) == ("t", 0, 3, 8)
    assert (request.leader_epoch, request.chunk_bytes_max, request.project, request.topic_id) == (1, 77, False, "")
    assert logs.calls[0].cancelled
    assert reader.payload_bytes > 0


def test_what_a_broker_sends_beyond_what_is_wanted_is_cut_off(reader: Reader, logs: Logs) -> None:
    logs.play = {"b:1": lambda request: [stored(0, 4), stored(4, 6)]}
    assert values(reader.read("t", 0, 2, 7)) == [2, 3, 4, 5, 6]
    [first, second] = reader.read_stored("t", 0, 2, 7)
    assert (first.base_offset, first.end_offset, first.timestamp_us) == (2, 4, 5)
    assert (second.base_offset, second.end_offset) == (4, 7)


@pytest.mark.parametrize("message", [stored(3, 2), stored(0, 4, claimed=5)])
def test_a_broker_that_sends_something_else_than_it_says_is_refused(
    reader: Reader, logs: Logs, message: Envelope[pb.BatchesHeader]
) -> None:
    logs.play = {"b:1": lambda request: [message]}
    with pytest.raises(CorruptBatch, match=r"at offset 3, and 2 was asked for|its header claims 5"):
        list(reader.read("t", 0, 2, 9))


def test_a_batch_that_was_given_already_is_not_given_again(reader: Reader, logs: Logs) -> None:
    logs.play = {"b:1": lambda request: [stored(0, 4), stored(0, 4), stored(4, 2)]}
    assert values(reader.read("t", 0, 0, 6)) == [0, 1, 2, 3, 4, 5]


# ---------------------------------------------------------------- another replica


def test_what_one_replica_did_not_give_is_asked_of_the_next_from_there_on(
    reader: Reader, logs: Logs, clock: Clock
) -> None:
    logs.play = {
        "b:1": lambda request: [stored(0, 2), broke()],
        "b:2": lambda request: [refused(Unreachable("x"))],
        "b:3": everything,
    }
    assert values(reader.read("t", 0, 0, 5)) == [0, 1, 2, 3, 4]
    assert logs.fetched == [("b:1", 0), ("b:2", 2), ("b:3", 2)]
    assert clock.slept == []
    assert all(call.cancelled for call in logs.calls)
    assert [request.topic_id for request in logs.requests] == ["", "x", "x"]


def test_one_stream_of_several_is_given_half_of_the_time_and_the_last_all(reader: Reader, logs: Logs) -> None:
    broken: Callable[[pb.FetchRequest], list[Message]] = lambda request: [broke()]  # noqa: E731
    logs.play = {"b:1": broken, "b:2": broken, "b:3": everything}
    list(reader.read("t", 0, 0, 5))
    assert logs.allowed_s == [5.0, 5.0, 10.0]
    logs.allowed_s.clear()
    long = Reader(reader._connection, 60_000)
    long._replicas = reader._replicas
    list(long.read("t", 0, 0, 5))
    assert logs.allowed_s == [10.0, 10.0, 60.0]


def test_after_the_last_replica_it_waits_and_looks_at_who_leads(
    reader: Reader, scripted: Scripted, logs: Logs, clock: Clock
) -> None:
    broken: Callable[[pb.FetchRequest], list[Message]] = lambda request: [broke()]  # noqa: E731
    logs.play = {
        "b:1": broken,
        "b:2": lambda request: everything(request) if len(logs.fetched) > 3 else [broke()],
        "b:3": broken,
    }
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2"), told(topic_info(2, epoch=2)))
    scripted._answered = "b:3"
    assert values(reader.read("t", 0, 0, 2)) == [0, 1]
    assert [address for address, _ in logs.fetched] == ["b:1", "b:2", "b:3", "b:2"]
    assert len(clock.slept) == 1
    assert scripted.addresses_asked() == ["b:1"]  # b:3, which failed last, would have been asked last
    assert logs.requests[-1].leader_epoch == 2


def test_a_refusal_is_raised_at_once_with_all_before_it_given(reader: Reader, logs: Logs) -> None:
    logs.play = {"b:1": lambda request: [stored(0, 2), refused(InvalidRequest("no"))]}
    found = reader.read("t", 0, 0, 5)
    assert next(found).num_rows == 2
    with pytest.raises(InvalidRequest):
        next(found)


def test_an_offset_beyond_the_end_is_asked_for_once_more_of_whoever_leads(
    reader: Reader, logs: Logs, clock: Clock
) -> None:
    logs.play = {
        "b:1": lambda request: [refused(OffsetOutOfRange("beyond"))] if len(logs.fetched) < 2 else everything(request)
    }
    assert values(reader.read("t", 0, 5, 6)) == [5]
    assert logs.fetched == [("b:1", 5), ("b:1", 5)]
    logs.fetched.clear()
    logs.play = {"b:1": lambda request: [refused(OffsetOutOfRange("beyond"))]}
    with pytest.raises(OffsetOutOfRange):
        list(reader.read("t", 0, 5, 6))
    assert len(logs.fetched) == 2


def test_an_offset_that_is_no_longer_kept_is_raised_at_once(reader: Reader, logs: Logs) -> None:
    logs.play = {"b:1": lambda request: [refused(OffsetOutOfRange("gone", 7))]}
    with pytest.raises(OffsetOutOfRange):
        list(reader.read("t", 0, 5, 6))
    assert len(logs.fetched) == 1


def test_when_nobody_gives_it_that_is_told_after_the_time_given(reader: Reader, logs: Logs, clock: Clock) -> None:
    logs.play = dict.fromkeys(("b:1", "b:2", "b:3"), lambda request: [broke()])
    began = clock.now
    with pytest.raises(
        PartitionUnavailable, match=r"partition 0: no replica gave offset 3 within 10000 ms, last: .*reset"
    ):
        list(reader.read("t", 0, 3, 4))
    assert clock.now - began == pytest.approx(10.0)


def test_progress_gives_a_read_its_whole_time_anew(reader: Reader, logs: Logs, clock: Clock) -> None:
    began = clock.now

    def now_and_then(request: pb.FetchRequest) -> list[Message]:
        return (
            [stored(request.start_offset, 1), broke()] if clock.now - began >= 6 * request.start_offset else [broke()]
        )

    logs.play = dict.fromkeys(("b:1", "b:2", "b:3"), now_and_then)
    assert values(reader.read("t", 0, 0, 4)) == [0, 1, 2, 3]
    assert clock.now - began > 10


def test_a_topic_made_anew_is_not_read_on(reader: Reader, scripted: Scripted, logs: Logs) -> None:
    logs.play = dict.fromkeys(
        ("b:1", "b:2", "b:3"), lambda request: [stored(0, 2), broke()] if not request.start_offset else [broke()]
    )
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(topic_info(1, topic_id="another")))
    found = reader.read("t", 0, 0, 5)
    assert next(found).num_rows == 2
    with pytest.raises(UnknownTopic, match="deleted and made again while it was read"):
        next(found)


def test_a_replica_that_knows_the_leader_is_believed(reader: Reader, scripted: Scripted, logs: Logs) -> None:
    logs.play = dict.fromkeys(
        ("b:1", "b:2", "b:3"), lambda request: everything(request) if len(logs.fetched) > 3 else [broke()]
    )
    logs.play["b:2"] = lambda request: [refused(NotLeader("3 does", 3, 4))]
    assert values(reader.read("t", 0, 0, 2)) == [0, 1]
    assert [address for address, _ in logs.fetched] == ["b:1", "b:2", "b:3", "b:3"]
    assert logs.requests[-1].leader_epoch == 4


# ---------------------------------------------------------------- the end of the log


END = refused(NotYetWritten("that is all"))


def test_what_is_not_written_yet_is_waited_for_at_the_same_replica(
    reader: Reader, scripted: Scripted, logs: Logs, clock: Clock
) -> None:
    logs.play = {"b:1": lambda request: [END] if len(logs.fetched) < 3 else everything(request)}
    assert values(reader.read("t", 0, 3, 5)) == [3, 4]
    assert logs.fetched == [("b:1", 3)] * 3
    assert len(clock.slept) == 2
    assert scripted.asked == []  # who leads is known well enough for a second


def test_a_log_that_does_not_grow_ends_the_read_with_where_to_go_on(reader: Reader, logs: Logs, clock: Clock) -> None:
    logs.play = {"b:1": lambda request: [stored(0, 2), END] if request.start_offset == 0 else [END]}
    found = reader.read("t", 0, 0, 5)
    assert next(found).num_rows == 2
    began = clock.now
    with pytest.raises(
        NotYetWritten, match=r"ends at offset 2, and nothing came there for 10000 ms.*read on from 2"
    ) as late:
        next(found)
    assert (late.value.retriable, late.value.definite) == (True, True)
    assert clock.now - began == pytest.approx(10.0)


def test_a_read_with_a_time_limit_ends_with_what_has_come(reader: Reader, logs: Logs, clock: Clock) -> None:
    logs.play = {"b:1": lambda request: [stored(0, 2), END] if request.start_offset == 0 else [END]}
    began = clock.now
    assert values(reader.read("t", 0, 0, 5, timeout_ms=700)) == [0, 1]
    assert clock.now - began == pytest.approx(0.7)
    assert max(logs.allowed_s) == pytest.approx(0.7)
    assert list(reader.read("t", 0, 2, 5, timeout_ms=700)) == []  # nothing yet is no error
    logs.play = dict.fromkeys(("b:1", "b:2", "b:3"), lambda request: [broke()])
    with pytest.raises(PartitionUnavailable, match="within 700 ms"):
        list(reader.read("t", 0, 2, 5, timeout_ms=700))


def test_a_time_limit_ends_a_read_between_two_batches(reader: Reader, logs: Logs, clock: Clock) -> None:
    logs.play = {"b:1": lambda request: [stored(0, 2), stored(2, 2), stored(4, 2)]}
    found = reader.read("t", 0, 0, 6, timeout_ms=700)
    assert next(found).num_rows == 2
    clock.now += 0.7
    assert list(found) == []


def test_a_read_is_ended_by_its_bytes(reader: Reader, logs: Logs) -> None:
    logs.play = {"b:1": lambda request: [stored(at, 2) for at in range(0, 10, 2)]}
    size = len(stored(0, 2).payload)
    assert values(reader.read("t", 0, 0, 10, max_bytes=2 * size)) == [0, 1, 2, 3]
    assert values(reader.read("t", 0, 0, 10, max_bytes=1)) == [0]
    assert values(reader.read("t", 0, 0, 10, max_bytes=limits.MESSAGE_BYTES_MAX)) == list(range(10))


def test_waits_are_short_again_after_progress(reader: Reader, logs: Logs, clock: Clock) -> None:
    def play(request: pb.FetchRequest) -> list[Message]:
        if len(logs.fetched) == 15:
            return [stored(0, 1), broke()]
        return everything(request) if request.start_offset and len(logs.fetched) > 18 else [broke()]

    logs.play = dict.fromkeys(("b:1", "b:2", "b:3"), play)
    assert values(reader.read("t", 0, 0, 2)) == [0, 1]
    assert max(clock.slept) > 0.07
    assert min(clock.slept[4:]) <= 0.02
