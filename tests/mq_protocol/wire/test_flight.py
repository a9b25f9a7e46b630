"""Flight's messages beside Arrow's own code for them, and tickets that a stranger wrote."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import flight as arrow

from mq_protocol.errors import InvalidRequest, RequestTooLarge, TritonMQError
from mq_protocol.limits import FLIGHT_REQUEST_BYTES_MAX, OFFSET_MAX, PARTITIONS_PER_TOPIC_MAX
from mq_protocol.wire.flight import (
    Wanted,
    data_message,
    descriptor_of,
    endpoint,
    flight_info,
    location,
    prefix_of,
    schema_result,
    split_message,
    ticket_of,
)

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("é", pa.list_(pa.string()))])
ALL = Wanted("t", 3, 10, 20, ("é", "n"), "n > 3", "ab" * 16)


def ticket(text: str | bytes) -> bytes:
    """As Arrow writes it."""
    data: bytes = arrow.Ticket(text).serialize()
    return data


def command(text: str | bytes) -> bytes:
    data: bytes = arrow.FlightDescriptor.for_command(text).serialize()
    return data


def path(*names: str) -> bytes:
    data: bytes = arrow.FlightDescriptor.for_path(*names).serialize()
    return data


@pytest.mark.parametrize("wanted", [ALL, Wanted("t", 0), Wanted("t", 1, end=5), Wanted("t", 2, 0, 0)])
def test_what_arrow_writes_into_a_ticket_or_a_command_is_read_as_it_was_meant(wanted: Wanted) -> None:
    assert ticket_of(ticket(wanted.to_bytes())) == wanted
    assert descriptor_of(command(wanted.to_bytes())) == wanted


def test_a_ticket_of_a_long_command_is_not_too_long_to_be_read() -> None:
    wanted = Wanted("t", columns=tuple("é" * 100 + str(number) for number in range(300)))
    made = replace(descriptor_of(command(wanted.to_bytes())), partition=9_999, topic_id="ab" * 16)
    assert ticket_of(ticket(made.to_bytes())) == made


def test_a_path_is_a_topic_and_perhaps_a_partition() -> None:
    assert descriptor_of(path("flüge")) == Wanted("flüge")
    assert descriptor_of(path("t", "12")) == Wanted("t", 12)
    for names in ((), ("t", "1", "2"), ("t", ""), ("t", "-1"), ("t", "1.0"), ("t", "१"), ("t", "1" * 50)):
        with pytest.raises(InvalidRequest):
            descriptor_of(path(*names))


def test_what_is_listed_begins_with_the_text_of_the_criteria() -> None:
    assert prefix_of(b"") == ""
    assert prefix_of(b"\x0a\x03abc") == "abc"
    with pytest.raises(InvalidRequest, match="no UTF-8"):
        prefix_of(b"\x0a\x01\xff")


def test_arrow_reads_what_is_answered() -> None:
    schema = SCHEMA.serialize().to_pybytes()
    where = location("host:7", tls=True)
    endpoints = [endpoint(ALL, [where]), endpoint(Wanted("t", 1), [])]
    info = arrow.FlightInfo.deserialize(flight_info(schema, Wanted("t"), endpoints))
    assert info.schema == SCHEMA
    assert (info.total_records, info.total_bytes) == (-1, -1)
    assert [ticket_of(each.ticket.serialize()) for each in info.endpoints] == [ALL, Wanted("t", 1)]
    assert [[each.uri for each in one.locations] for one in info.endpoints] == [[b"grpc+tls://host:7"], []]
    assert json.loads(info.descriptor.command) == {"topic": "t"}
    assert arrow.SchemaResult.deserialize(schema_result(schema)).schema == SCHEMA
    assert location("h:1", tls=False) == "grpc+tcp://h:1"


def test_a_batch_is_split_where_its_body_begins_and_put_together_in_order() -> None:
    batch = pa.record_batch([pa.array([1, 2, 3]), pa.array([["a"], None, []], pa.list_(pa.string()))], schema=SCHEMA)
    message = batch.serialize()
    header, body = split_message(message)
    assert message.to_pybytes()[8:] == bytes(header) + bytes(body)
    assert pa.ipc.read_message(message).body.to_pybytes() == bytes(body)
    assert len(header) >= 128
    # Field 2, whose length has two bytes, field 3, and field 1000, whose tag has two
    beginning = bytes([0x12, len(header) & 127 | 128, len(header) >> 7])
    assert data_message(header, b"body", b"xy") == beginning + bytes(header) + b"\x1a\x02xy\xc2\x3e\x04body"


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "a number": "1",
    "no topic": "{}",
    "an unknown key": '{"topic": "t", "partition": 0, "limit": 3}',
    "a key twice": '{"topic": "t", "partition": 0, "topic": "u"}',
    "a topic that is no text": '{"topic": 1, "partition": 0}',
    "half a character": '{"topic": "\\ud800", "partition": 0}',
    "no partition": '{"topic": "t"}',
    "a partition that is a truth value": '{"topic": "t", "partition": true}',
    "a partition that is a text": '{"topic": "t", "partition": "0"}',
    "a partition below 0": '{"topic": "t", "partition": -1}',
    "a partition that no topic has": f'{{"topic": "t", "partition": {PARTITIONS_PER_TOPIC_MAX}}}',
    "a start with a point": '{"topic": "t", "partition": 0, "start": 1.0}',
    "an end that no log has": f'{{"topic": "t", "partition": 0, "end": {OFFSET_MAX + 1}}}',
    "a number of 5,000 digits": f'{{"topic": "t", "partition": 0, "end": {"9" * 5_000}}}',
    "no number": '{"topic": "t", "partition": 0, "start": NaN}',
    "columns that are a text": '{"topic": "t", "partition": 0, "columns": "n"}',
    "no column": '{"topic": "t", "partition": 0, "columns": []}',
    "a column that is no text": '{"topic": "t", "partition": 0, "columns": [1]}',
    "too many columns": json.dumps({"topic": "t", "partition": 0, "columns": ["n"] * 5_000}),
    "a filter that is no text": '{"topic": "t", "partition": 0, "filter": []}',
    "lists in lists": "[" * 60_000,
    "objects in objects": '{"topic":' * 6_000,
    "no UTF-8": b'{"topic": "\xff", "partition": 0}',
    "nothing": "",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_ticket_that_is_wrong_is_refused_by_a_short_error(what: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ticket_of(ticket(WRONG[what]))
    assert len(str(refused.value)) < 500


MALFORMED = {
    "a tag alone": b"\x0a",
    "a length that runs past the end": b"\x0a\x05ab",
    "a length without an end": b"\x0a" + b"\xff" * 12,
    "a group": b"\x0b\x0c",
    "a fixed value that is cut off": b"\x09\x00",
    "a number in place of the text": b"\x08\x01",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_bytes_that_are_no_message_are_refused(what: str) -> None:
    for read in (ticket_of, descriptor_of, prefix_of):
        with pytest.raises(InvalidRequest):
            read(MALFORMED[what])


def test_a_message_above_the_bound_is_refused_and_one_at_the_bound_is_read() -> None:
    said = json.dumps({"topic": "t", "partition": 0, "filter": ""})
    longest = FLIGHT_REQUEST_BYTES_MAX - 4  # a tag, and a length of three bytes
    assert len(ticket(said.ljust(longest))) == FLIGHT_REQUEST_BYTES_MAX
    assert ticket_of(ticket(said.ljust(longest))) == Wanted("t", 0)
    with pytest.raises(RequestTooLarge, match="name fewer columns"):
        ticket_of(ticket(said.ljust(longest + 1)))


def test_fields_that_are_not_known_are_passed_over_and_the_last_of_a_field_counts() -> None:
    strange = b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x20\x7f" + b"\x2a\x01x"
    assert ticket_of(ticket("{}") + strange + ticket(ALL.to_bytes())) == ALL


def test_altered_messages_are_read_or_refused_by_our_own_errors() -> None:
    chance, refused = random.Random(7), 0
    for _ in range(3_000):
        data = bytearray(chance.choice([ticket(ALL.to_bytes()), command(ALL.to_bytes()), path("t", "1")]))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for read in (ticket_of, descriptor_of, prefix_of):
            try:
                read(bytes(data))
            except TritonMQError:
                refused += 1
    assert 1_000 < refused < 9_000
