"""What one request may ask for: each bound with a request that is at it and one that is above, and no method without a
bound."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from mq_broker.rpc import bounds, service
from mq_broker.rpc.bounds import BOUNDS, Bounded
from mq_broker.rpc.calls import PEER_UNARY
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.service import UNARY
from mq_broker.security.authority import Authority
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, RequestTooLarge, TritonMQError
from mq_protocol.limits import REQUEST_BYTES_MAX, REQUEST_TOPICS_MAX
from tests.mq_broker.others import Others
from tests.mq_broker.rpc.streaming import Answering

STREAMS: dict[str, Any] = {
    "Produce": pb.ProduceRequest,
    "Subscribe": pb.SubscribeRequest,
    "Fetch": pb.FetchRequest,
    "Lock": pb.LockRequest,
    "WatchOffsets": pb.WatchOffsetsRequest,
    "Work": pb.WorkRequest,
}
REQUESTS: dict[str, Any] = {name: method.request for name, method in (UNARY | PEER_UNARY).items()} | STREAMS
LISTS = [(method, path) for method, bound in BOUNDS.items() for path in bound.lists]
COUNTED = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
PADDING_FIELD = 1_000
SMALLER_MOST = 10_000


def read(method: str, data: bytes) -> Any:
    return asyncio.run(Bounded(method, REQUESTS[method]).read(data))


def refused(method: str, data: bytes) -> TritonMQError:
    with pytest.raises(TritonMQError) as raised:
        read(method, data)
    return raised.value


def _lists_of(descriptor: Descriptor, prefix: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        if field.type not in COUNTED:
            continue
        path = prefix + field.name
        if field.is_repeated:
            yield path
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from _lists_of(field.message_type, path + ".")


def _padded(size: int) -> bytes:
    """A message with nothing in it but a field that nobody knows, of `size` bytes in all."""
    tag = _varint(PADDING_FIELD << 3 | 2)
    for length_bytes in range(1, 6):
        padding = size - len(tag) - length_bytes
        if len(_varint(padding)) == length_bytes:
            return tag + _varint(padding) + bytes(padding)
    raise AssertionError(size)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _with(method: str, path: str, count: int) -> bytes:
    """A request with so many elements in that list, each as small as it can be, and unlike the others where it must
    be."""
    request = REQUESTS[method]()
    *parents, last = path.split(".")
    holder: Any = request
    for parent in parents:
        holder = getattr(holder, parent)
        if hasattr(holder, "add"):
            holder = holder.add()
    elements = getattr(holder, last)
    once = BOUNDS[method].lists[path].once
    if last == "settings":
        elements.update({str(number): "" for number in range(count)})
    elif path == "set":
        elements.update({str(number): 0 for number in range(count)})
    elif last == "uuids":
        elements.extend([b""] * count)
    elif path == "partitions" and method in ("ListOffsets", "DescribeQueue", "SweepQueue"):
        elements.extend(range(count))
    elif not hasattr(elements, "add"):  # names
        elements.extend(str(number) for number in range(count))
    else:
        for number in range(count):
            added = elements.add()
            if once:
                setattr(added, once[-1], type(getattr(added, once[-1]))(number))
    data: bytes = request.SerializeToString()
    return data


def test_each_method_that_is_served_has_a_bound() -> None:
    assert set(BOUNDS) == set(REQUESTS)


def _turns_of_others(method: str, data: bytes) -> int:
    """How many turns of the loop others have until the request is read or refused."""

    async def main() -> int:
        async with Others() as others:
            with contextlib.suppress(RequestTooLarge):
                await Bounded(method, REQUESTS[method]).read(data)
            return others.turns

    return asyncio.run(main())


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_with_many_elements_rests_while_it_is_read(more: int) -> None:
    """On the loop, a piece at a time: a thread that counts would take the interpreter from the loop. Without rests
    others have as many turns as there are pieces, which are fewer than 80."""
    data = _with("StartMoves", "moves", BOUNDS["StartMoves"].lists["moves"].most + more)
    assert _turns_of_others("StartMoves", data) > 150


def test_a_request_of_many_bytes_waits_before_it_is_read() -> None:
    assert _turns_of_others("Queues", _padded(REQUEST_BYTES_MAX)) > 150


def test_a_method_without_a_bound_cannot_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BOUNDS, "Groups")
    with pytest.raises(LookupError, match="Groups has no row"):
        service.served(Answering(), Gate(Authority()))


def test_each_list_in_a_request_has_a_bound() -> None:
    for method in set(REQUESTS) - {"Produce"}:
        lists = set(_lists_of(REQUESTS[method].DESCRIPTOR))
        assert set(BOUNDS[method].lists) >= lists, method
        numbers = set(BOUNDS[method].lists) - lists
        assert numbers <= {"partitions"}, "of numbers only those that are worked through one by one"


def _counts() -> Iterator[Any]:
    """A list that may have a million elements is tried with a smaller bound, and under `make test` with its own."""
    for method, path in LISTS:
        most = BOUNDS[method].lists[path].most
        yield (method, path, min(most, SMALLER_MOST))
        if most > SMALLER_MOST:
            yield pytest.param(method, path, most, marks=pytest.mark.long)


@pytest.mark.parametrize(("method", "path", "most"), [*_counts()])
def test_as_many_elements_as_are_allowed_are_read_and_one_more_is_refused(
    method: str, path: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = BOUNDS[method]
    lists = {**bound.lists, path: bound.lists[path]._replace(most=most)}
    monkeypatch.setitem(BOUNDS, method, replace(bound, lists=lists))
    read(method, _with(method, path, most))
    error = refused(method, _with(method, path, most + 1))
    assert isinstance(error, RequestTooLarge)
    assert method in str(error)
    assert str(most) in str(error)
    assert "ask several times" in str(error)


@pytest.mark.parametrize("method", ["Metadata", "Publish", "Decide"])
def test_a_request_may_have_as_many_bytes_as_its_bound_and_not_one_more(method: str) -> None:
    most = BOUNDS[method].bytes_max
    assert len(_padded(most)) == most
    read(method, _padded(most))
    error = refused(method, _padded(most + 1))
    assert isinstance(error, RequestTooLarge)
    assert f"{most + 1} bytes is above {most}" in str(error)


def test_elements_are_counted_before_objects_are_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes on the wire are an element, which takes about fifty times as much as an object."""
    flood = b"\x0a\x00" * (BOUNDS["StartMoves"].bytes_max // 2)
    monkeypatch.setattr(bounds, "parse", lambda data, kind: pytest.fail("it was parsed"))
    assert isinstance(refused("StartMoves", flood), RequestTooLarge)
    most = BOUNDS["Decide"].lists["manifest"].most  # its other list may have more elements
    assert isinstance(refused("Decide", _with("Decide", "manifest", most + 1)), RequestTooLarge)


def test_elements_are_counted_over_all_parts_of_a_message_that_comes_in_parts() -> None:
    """Of a field that is there twice protobuf makes one, with the elements of both."""
    half = BOUNDS["Subscribe"].lists["open.partitions"].most // 2 + 1
    halves = []
    for first in (0, half):
        places = [pb.SubscribePartition(partition=number) for number in range(first, first + half)]
        halves.append(pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=places)).SerializeToString())
    assert isinstance(refused("Subscribe", b"".join(halves)), RequestTooLarge)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Metadata", pb.MetadataRequest(topics=["a", "b", "a"])),
        ("ListOffsets", pb.ListOffsetsRequest(partitions=[1, 2, 1])),
        (
            "ListOffsets",
            pb.ListOffsetsRequest(spans=[pb.OffsetSpan(partition=1), pb.OffsetSpan(partition=1, end_offset=5)]),
        ),
        ("WatchOffsets", pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic="t")] * 2)),
        ("MoveCursors", pb.MoveCursorsRequest(positions=[pb.CursorPosition(topic="t", offset=n) for n in (1, 2)])),
        ("Subscribe", pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=[pb.SubscribePartition(topic="t")] * 2))),
        ("Subscribe", pb.SubscribeRequest(settled=[pb.CursorPosition(topic="t", offset=n) for n in (1, 2)])),
        ("StartMoves", pb.StartMovesRequest(moves=[pb.PartitionMove(topic="t", target=[n]) for n in (1, 2)])),
    ],
)
def test_what_is_named_twice_is_refused(method: str, request_: Any) -> None:
    error = refused(method, request_.SerializeToString())
    assert type(error) is InvalidRequest
    assert "twice" in str(error)
    assert "name each once" in str(error)


def test_one_partition_of_two_topics_is_not_named_twice() -> None:
    places = [pb.TopicPartition(topic=topic) for topic in "ab"]
    assert len(read("WatchOffsets", pb.WatchOffsetsRequest(partitions=places).SerializeToString()).partitions) == 2


def test_bytes_that_are_no_request_are_refused_whatever_their_size() -> None:
    names = pb.MetadataRequest(topics=[f"topic {number}" for number in range(REQUEST_TOPICS_MAX)]).SerializeToString()
    chance = random.Random(3)
    for tail in (b"\x0a", b"\x0a\x05abc", b"\x80" * 20, b"\x0b\x0c", b"\x0f", b"\x0d\x01", b"\x0a\xff\xff\xff\xff\x0f"):
        assert isinstance(refused("Metadata", names + tail), InvalidRequest), tail
    for _ in range(300):
        noise = bytearray(names)
        for _ in range(chance.randrange(1, 20)):
            noise[chance.randrange(len(noise))] = chance.randrange(256)
        with contextlib.suppress(InvalidRequest, RequestTooLarge):
            read("Metadata", bytes(noise))


def test_the_count_is_protobufs_own() -> None:
    """Whatever is on the wire beside: unknown fields, numbers, parts of a message."""
    chance = random.Random(5)
    for _ in range(200):
        request = pb.SubscribeRequest()
        count = chance.randrange(0, 40)
        for number in range(count):
            request.open.partitions.add(
                topic="t" * chance.randrange(300), partition=number, offset=chance.randrange(1 << 60)
            )
        for number in range(chance.randrange(40)):
            request.settled.add(partition=number)
        data = _padded(chance.randrange(10, 400)) + request.SerializeToString() + b"\x98\x06\x05" + b"\x9d\x06abcd"
        found = _counted(data)
        assert found.get("open.partitions", 0) == count
        assert found.get("settled", 0) == len(request.settled)


def _counted(data: bytes) -> dict[str, int]:
    count = bounds._Count("Subscribe", data)
    for _ in count.over(bounds._plan(pb.SubscribeRequest, BOUNDS["Subscribe"].lists, ""), 0, len(data)):
        pass
    return count._found
