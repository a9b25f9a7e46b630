"""Each method has one part of the broker that answers it, and stubs made from mq.proto are answered."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from pathlib import Path
from typing import Any, get_args, get_type_hints

import grpc
import pytest

from mq_broker.broker import server
from mq_broker.broker.server import Services
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch
from mq_protocol.methods import BROKER, PEER, Kind, Method
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import FINGERPRINT, SCHEMA, rows, standalone
from tests.mq_protocol.test_methods import generated_stubs

METHODS = {method.attribute: method for service in (BROKER, PEER) for method in service.methods.values()}
PARTS = [
    each for each in vars(server).values() if inspect.isclass(each) and each.__module__.startswith("mq_broker.broker.")
]


@pytest.mark.parametrize("attribute", METHODS)
def test_a_handler_takes_and_gives_the_messages_of_its_row(attribute: str) -> None:
    method = METHODS[attribute]
    (part,) = (each for each in PARTS if callable(getattr(each, attribute, None)))
    hints = get_type_hints(getattr(part, attribute))
    answer = hints.pop("return")
    names = list(hints.values())
    if method.kind is Kind.UNARY:
        assert (names, answer) == ([method.request, float], method.response)
        return
    assert answer is type(None)
    requests, send = names
    asked = requests if method.kind is Kind.ANSWERS else get_args(requests)[0]
    assert _message(asked) is _carried(method, method.request)
    assert _message(get_args(send)[0][0]) is _carried(method, method.response)


def _message(hint: Any) -> Any:
    """Of an envelope, the header."""
    return get_args(hint)[0] if get_args(hint) else hint


def _carried(method: Method, message: Any) -> Any:
    header = message.DESCRIPTOR.fields_by_name.get("header")
    return getattr(pb, header.message_type.name) if header is not None else message


class Part:
    async def fetch(self) -> None: ...


def test_a_method_that_no_part_or_two_parts_have_is_refused() -> None:
    with pytest.raises(LookupError, match="is to be a method of one part of the broker: no part of the broker has it"):
        Services()
    every = type("Every", (), dict.fromkeys(METHODS, Part.fetch))
    assert all(hasattr(Services(every()), attribute) for attribute in METHODS)
    with pytest.raises(LookupError, match=r"fetch is to be a method of one part of the broker: .*Every.*Part"):
        Services(every(), Part())


@real_time
async def test_stubs_that_are_made_from_the_contract_produce_and_fetch(tmp_path: Path) -> None:
    stubs = generated_stubs(tmp_path)
    payload = bytes(encode_batch(rows(1, 2, 3)))
    header = pb.ProduceHeader(
        correlation=1,
        topic="t",
        uuid=uuid.uuid4().bytes,
        record_count=3,
        schema_fingerprint=FINGERPRINT,
        timeout_ms=10_000,
    )

    def converse(address: str) -> tuple[pb.ProduceResponse, list[pb.BatchesResponse], grpc.StatusCode]:
        with grpc.insecure_channel(address) as channel:
            broker = stubs.BrokerStub(channel)
            made = next(broker.Produce(iter([pb.ProduceRequest(header=header, payload=payload)]), timeout=20))
            read = list(broker.Fetch(pb.FetchRequest(topic="t", start_offset=0, end_offset=3), timeout=20))
            try:
                broker.DeleteTopic(pb.DeleteTopicRequest(name="none"), timeout=20)
            except grpc.RpcError as error:
                return made, read, error.code()
            raise AssertionError("there is no such topic")

    address = f"127.0.0.1:{free_port()}"
    async with standalone(tmp_path / "data", grpc=address) as broker:
        await broker.create_topic("t")
        made, read, refused = await asyncio.to_thread(converse, address)
        assert [result.base_offset for result in made.results] == [0]
        assert [decode_batch(each.payload, SCHEMA).column("n").to_pylist() for each in read] == [[1, 2, 3]]
        assert refused is grpc.StatusCode.NOT_FOUND
