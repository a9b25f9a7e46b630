"""A broker that lies: what it answers was whole, and is wrong in a few places. The clients are the real ones, over a
real connection; a record that they give is used in full. An input is which client asks, and what is answered to each
method in place of the truth."""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import random
import struct
import threading
from typing import Any, Final

import pyarrow as pa

from mq_broker.rpc.service import is_envelope
from mq_client import Admin, Consumer, Queue, Reader
from mq_client.errors import InvalidRequest, TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch, schema_from_bytes, schema_to_bytes
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import Kind
from mq_protocol.wire.envelope import halves
from tests.fuzz.altering import WORDS, altered, message
from tests.fuzz.batches import MOMENT, TYPED
from tests.played_broker import PlayedBroker, Spoken

CASES: Final = 80
"""In the ordinary run: each is a conversation, and takes some hundredths of a second."""

CASE_MS_MAX: Final = 500.0
"""Clients and the broker, with their threads."""

TIMEOUT_MS: Final = 150.0
ROWS: Final = 20

_LENGTH: Final = struct.Struct("<BI")
_METHODS: Final = ("Metadata", "ListOffsets", "Fetch", "Subscribe", "Queues", "Work")
_ASKED: Final = (
    ("Metadata", "Fetch"),
    ("Metadata", "Fetch"),
    ("Metadata", "Subscribe"),
    ("Queues", "Work"),
    ("ListOffsets",),
)
_RECORDS: Final = schema_from_bytes(b"")


def _whole() -> dict[str, list[bytes]]:
    """Of the topics `t` of records and `c` with columns, plain and compressed."""
    headers = [{"key": "h", "value": b"x"}]
    records = [{"key": b"k", "value": b"v" * i, "headers": headers * (i % 3), "timestamp": MOMENT} for i in range(ROWS)]
    rows = [{"a": i, "b": "é" * i, "c": [i, None], "d": {"x": 1.5, "y": "y"}, "e": [("k", ["v"])]} for i in range(ROWS)]
    return {
        name: [bytes(encode_batch(pa.RecordBatch.from_pylist(data, schema), codec)) for codec in (None, "lz4", "zstd")]
        for name, data, schema in (("t", records, _RECORDS), ("c", rows, TYPED))
    }


_WHOLE: Final = _whole()


def _stored(topic: str, payload: bytes) -> pb.StoredBatch:
    return pb.StoredBatch(topic=topic, record_count=ROWS, payload_bytes=len(payload), timestamp_us=5)


def _truth(method: str, topic: str, payload: bytes, address: str) -> Any:
    if method == "Metadata":
        partition = pb.PartitionInfo(leader=1, leader_epoch=1, replicas=[1], isr=[1])
        topics = [
            pb.TopicInfo(name="t", topic_id="1", partitions=[partition]),
            pb.TopicInfo(name="c", topic_id="2", partitions=[partition], typed=True, schema=schema_to_bytes(TYPED)),
        ]
        return pb.MetadataResponse(brokers=[pb.BrokerInfo(id=1, address=address)], topics=topics)
    if method == "ListOffsets":
        return pb.ListOffsetsResponse(partitions=[pb.PartitionOffsets(log_end_offset=ROWS)])
    if method == "Queues":
        return pb.QueuesResponse(queues=[pb.QueueInfo(topic=topic, group="g")])
    if method == "Work":
        lease = pb.LeaseResponse(
            lease=pb.LeaseId(leader_epoch=1, entry=1),
            ranges=[0, ROWS],
            deliveries=[1],
            failures=[0],
            lease_ms=60_000,
            batches=[_stored(topic, payload)],
        )
        pushed = pb.SessionResponse(session=1, lease=lease, lent_bytes=len(payload))
        return pb.WorkResponse(header=pb.WorkHeader(sessions=[pushed]), payload=payload)
    header = pb.BatchesHeader(batches=[_stored(topic, payload)])
    if method == "Subscribe":
        header.opened.add(topic=topic, active=True)
    return pb.BatchesResponse(header=header, payload=payload)


def generate(chance: random.Random) -> bytes:
    """Which client, which topic, and lies."""
    client, topic = chance.randrange(len(_ASKED)), chance.choice("tc")
    data = bytes([client]) + topic.encode()
    for method in chance.sample(_ASKED[client], chance.choice((1, 1, len(_ASKED[client])))):
        lie = _lie(chance, method, topic)
        data += _LENGTH.pack(_METHODS.index(method), len(lie)) + lie
    return data


def _lie(chance: random.Random, method: str, topic: str) -> bytes:
    payload = chance.choice(_WHOLE[chance.choice((topic, topic, topic, "t", "c"))])
    if chance.random() < 0.6:
        payload = altered(payload, chance, within=8 + int.from_bytes(payload[4:8], "little"))
    said = _truth(method, topic, payload, "")
    header = getattr(said, "header", None)
    pushed = [session.lease for session in getattr(header, "sessions", ())]
    for lease in pushed:
        if chance.random() < 0.2:
            _alter_numbers(lease, chance)
    for stored in (stored for each in (said, header, *pushed) for stored in getattr(each, "batches", ())):
        if chance.random() < 0.3:
            _alter_numbers(stored, chance)
    if chance.random() < 0.2:
        _alter_numbers(said, chance)
    if chance.random() < 0.1:
        said = message(type(said), chance)
    whole: bytes = said.SerializeToString()
    return altered(whole, chance, 3) if chance.random() < 0.15 else whole


def _alter_numbers(said: Any, chance: random.Random) -> None:
    strange = message(type(said), chance)
    for field in chance.sample(list(said.DESCRIPTOR.fields), min(2, len(said.DESCRIPTOR.fields))):
        said.ClearField(field.name)
        said.MergeFrom(type(said)(**{field.name: getattr(strange, field.name)}))
    if isinstance(said, pb.StoredBatch) and chance.random() < 0.5:
        said.record_count = chance.choice(WORDS) & 0xFFFFFFFF


# ---------------------------------------------------------------- the broker


class Liar:
    """Answers with what is in `said`, as bytes, else with the truth."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {}
        self.topic = "t"
        self._broker = PlayedBroker(self._serve)
        self.address = self._broker.address
        atexit.register(self._broker.close)

    def _serve(self, spoken: Spoken) -> None:
        pushed = False
        with contextlib.suppress(OSError, TritonMQError):
            while (message := spoken.hear()) is not None:
                method = spoken.opened.method
                if message.kind is Kind.OPEN and method == "Subscribe":
                    spoken.say(Kind.MESSAGE, *self._answer(method))
                elif message.kind is Kind.MESSAGE and method == "Work":
                    spoken.say(Kind.MESSAGE, *(self._answer(method) if not pushed else _SETTLED))
                    pushed = True
                elif message.kind is Kind.END:
                    if method in _METHODS:
                        if method not in ("Subscribe", "Work"):
                            spoken.say(Kind.MESSAGE, *self._answer(method))
                        spoken.say(Kind.END)
                    else:
                        spoken.fail(InvalidRequest("there is no such method"))

    def _answer(self, method: str) -> tuple[bytes, list[memoryview]]:
        """A message, or its header and the payload."""
        whole = self._whole(method)
        if not is_envelope(BROKER.methods[method].response):
            return whole, []
        with contextlib.suppress(TritonMQError):
            header, payload = halves(whole)
            return header, [payload]
        return whole, []

    def _whole(self, method: str) -> bytes:
        told = _truth(method, self.topic, _WHOLE[self.topic][0], self.address)
        lie = self.said.get(method)
        if lie is None:
            return bytes(told.SerializeToString())
        if method == "Metadata":  # with an address, so that the rest is asked for
            return lie + pb.MetadataResponse(brokers=told.brokers).SerializeToString()
        return lie


_SETTLED: Final = (
    pb.WorkHeader(sessions=[pb.SessionResponse(session=1, answers=[pb.NumberedAnswer(number=1)])]).SerializeToString(),
    [],
)
"""What a member is told once it has said something of what it was lent."""

_failures: queue.Queue[str] = queue.Queue()
"""What went wrong in a thread, or on an event loop: the clients' own do not end with such an error."""


class _Noticing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _failures.put(self.format(record))


logging.getLogger("asyncio").addHandler(_Noticing(logging.ERROR))
threading.excepthook = lambda told: _failures.put(repr(told))
_liar: list[Liar] = []


def check(data: bytes) -> bool:
    """Whether the client believed what it was told."""
    if len(data) < 2:
        return False
    if not _liar:
        _liar.append(Liar())
    liar, client = _liar[0], data[0] % len(_ASKED)
    liar.topic, liar.said, at = ("c" if data[1:2] == b"c" else "t"), {}, 2
    while at + _LENGTH.size <= len(data):
        method, size = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        liar.said[_METHODS[method % len(_METHODS)]] = data[at : at + size]
        at += size
    try:
        _ask(liar, client)
        believed = True
    except (TritonMQError, TimeoutError, queue.Empty):  # an outcome that is said again and again is waited for in vain
        believed = False
    assert _failures.empty(), _failures.get()
    return believed


def _ask(liar: Liar, client: int) -> None:
    address, topic = liar.address, liar.topic
    if client in (0, 1):
        columns = None if client == 0 else TYPED.names[::-1] if topic == "c" else ["value"]
        with Reader(address, TIMEOUT_MS) as reader:
            for batch in reader.read(topic, 0, 0, ROWS, columns=columns):
                batch.validate(full=True)
                encode_batch(batch.take(pa.array(range(batch.num_rows))), "zstd")
    elif client == 2:
        consumer = Consumer(address, start="earliest", timeout_ms=TIMEOUT_MS)
        try:
            consumer.subscribe(topic)
            consumer.start()
            repr(consumer.take(TIMEOUT_MS))
        finally:
            consumer.stop()
    elif client == 3:
        with Queue(address, topic, "g", timeout_ms=TIMEOUT_MS) as work:
            record = work.take(TIMEOUT_MS)
            if record is not None:
                repr(record)
                record.ack().result(TIMEOUT_MS / 1000)
    else:
        with Admin(address, timeout_ms=TIMEOUT_MS) as admin:
            admin.offsets(topic)


assert set(_METHODS) <= set(BROKER.methods)
