"""What clients make of a broker that lies. They run in a child: what they believed in vain once ended the process."""

from __future__ import annotations

import functools
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.limits import BATCH_DECODED_BYTES_CEILING

TIMEOUT_MS: Final = 30_000
_OFFSETS: Final = struct.pack("<3i", 0, 3, 8)


def _records(*values: bytes, codec: str | None = None) -> bytes:
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [None] * len(values),
            "value": values,
            "headers": [None] * len(values),
            "timestamp": [None] * len(values),
        },
        schema=RECORD_SCHEMA,
    )
    return bytes(encode_batch(rows, codec))


def _places(*offsets: int) -> bytes:
    """Two records, whose values are said to end there."""
    whole = _records(b"aaa", b"bbbbb")
    assert whole.count(_OFFSETS) == 1
    return whole.replace(_OFFSETS, struct.pack("<3i", *offsets))


def _declared(size: int) -> bytes:
    """One record, compressed, whose value is said to have that size."""
    whole = _records(bytes(5_000), codec="zstd")
    begins = b"(\xb5/\xfd"  # as zstd has it
    assert whole.count(struct.pack("<q", 5_000) + begins) == 1
    return whole.replace(struct.pack("<q", 5_000) + begins, struct.pack("<q", size) + begins)


def _numbers() -> bytes:
    return bytes(encode_batch(pa.RecordBatch.from_pydict({"n": [1, 2]})))


LIES: Final[dict[str, tuple[bytes, dict[str, Any], str]]] = {
    "offsets behind the values": (_places(0, 3, 1 << 24), {}, "offset"),
    "a first offset behind the values": (_places(1 << 24, 1 << 24, 1 << 24), {}, "offset"),
    "a negative offset": (_places(0, -(1 << 20), 8), {}, "offset"),
    "offsets that go back": (_places(0, 8, 3), {}, "offset"),
    "a body that is cut off": (_records(b"aaa", b"bbbbb")[:-16], {}, "the body is"),
    "metadata that is cut off": (_records(b"aaa", b"bbbbb")[:40], {}, "does not fit"),
    "no bytes": (b"", {}, "0 bytes are no Arrow message"),
    "more records than there are": (_records(b"aaa", b"bbbbb"), {"record_count": 3}, "its header claims 3"),
    "no records": (_records(b"aaa", b"bbbbb"), {"record_count": 0}, "was asked for"),
    "records without end": (_records(b"aaa", b"bbbbb"), {"record_count": (1 << 32) - 1}, "was asked for"),
    "another place": (_records(b"aaa", b"bbbbb"), {"base_offset": 7}, "was asked for"),
    "half of the bytes": (_records(b"aaa", b"bbbbb"), {"payload_bytes": 100}, "add up to"),
    "another schema": (_numbers(), {}, "columns"),
    "16 GiB once it is decoded": (_declared(16 << 30), {"record_count": 1}, str(BATCH_DECODED_BYTES_CEILING)),
    "less than nothing": (_declared(-2), {"record_count": 1}, "declares -2 bytes"),
    "less than is there": (_declared(8), {"record_count": 1}, "corrupt batch"),
    "kept rows that are not there": (_records(b"aaa", b"bbbbb"), {"kept": b"\x07"}, "header claims 3"),
    "kept rows without end": (_records(b"aaa", b"bbbbb"), {"kept": bytes(1 << 20)}, "of a batch of 2"),
}
TEXTS: Final = {
    "texts that are none": (b"\xff\xff\xff\xff", "UTF8"),
    "a character that is cut off": ("é".encode()[:1] + b"abc", "UTF8"),
}


def _stored(payload: bytes, changes: dict[str, Any], topic: str = "t") -> pb.StoredBatch:
    told = {"record_count": 2, "payload_bytes": len(payload), "topic": topic, **changes}
    return pb.StoredBatch(**told)


def _texts(text: bytes) -> bytes:
    """A row of the topic `c` with that for its text."""
    from tests.fuzz.batches import TYPED

    row = pa.RecordBatch.from_pylist([{"b": "abcd"}], TYPED)
    return bytes(encode_batch(row)).replace(b"abcd", text)


def main() -> None:
    """The child: what each client says to each lie, as JSON."""
    from mq_client import Admin, Consumer, Reader
    from mq_client.errors import TritonMQError
    from tests.fuzz.lying import Liar

    liar = Liar()
    told: dict[str, str] = {}

    def tried(name: str, topic: str, method: str, payload: bytes, stored: pb.StoredBatch) -> None:
        header = pb.BatchesHeader(batches=[stored])
        if method == "Subscribe":
            header.opened.add(topic=topic, active=True)
        liar.topic = topic
        liar.said = {method: pb.BatchesResponse(header=header, payload=payload).SerializeToString()}
        try:
            if method == "Fetch":
                with Reader(liar.address, TIMEOUT_MS) as reader:
                    believed: object = [b.to_pylist() for b in reader.read(topic, 0, 0, 2)]
            else:
                with Consumer(liar.address, start="earliest", timeout_ms=TIMEOUT_MS) as consumer:
                    consumer.subscribe(topic)
                    believed = consumer.take(TIMEOUT_MS)
        except TritonMQError as error:
            told[name] = f"{type(error).__name__}: {error}"
        else:
            told[name] = f"believed: {believed!r}"[:300]

    for name, (payload, changes, _) in LIES.items():
        tried(name, "t", "Fetch", payload, _stored(payload, changes))
        if not changes:
            tried(f"{name}, pushed", "t", "Subscribe", payload, _stored(payload, changes))
    for name, (text, _) in TEXTS.items():
        payload = _texts(text)
        tried(name, "c", "Fetch", payload, _stored(payload, {"record_count": 1}, "c"))
    liar.said = {"Metadata": pb.MetadataResponse(more=True).SerializeToString()}
    try:
        with Admin(liar.address, timeout_ms=TIMEOUT_MS) as admin:
            told["topics without end"] = repr(admin.list_topics())
    except TritonMQError as error:
        told["topics without end"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(told))


@functools.cache
def _ran() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.mq_client.test_lying_broker"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def _told() -> dict[str, str]:
    done = _ran()
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-3_000:]}"
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.xdist_group("lying broker")
@pytest.mark.parametrize("name", [*LIES, *TEXTS])
def test_a_lie_is_an_error_that_says_what_is_wrong(name: str) -> None:
    said = _told()[name]
    assert said.startswith("CorruptBatch: topic "), said
    assert (LIES[name][2] if name in LIES else TEXTS[name][1]) in said


@pytest.mark.xdist_group("lying broker")
@pytest.mark.parametrize("name", [name for name, (_, changes, _) in LIES.items() if not changes])
def test_a_lie_that_is_pushed_is_an_error_too(name: str) -> None:
    said = _told()[f"{name}, pushed"]
    assert said.startswith("CorruptBatch: "), said


@pytest.mark.xdist_group("lying broker")
def test_an_answer_that_never_ends_is_an_error() -> None:
    assert _told()["topics without end"].startswith("InternalError: a broker has told")


if __name__ == "__main__":
    main()
