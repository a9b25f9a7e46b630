"""Columns of classes, and rows of their objects: what a field's type becomes, and what is refused by its name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import numpy as np
import pyarrow as pa
import pydantic
import pytest

from mq_client import Admin, InvalidRequest, Producer, Reader, SchemaMismatch
from mq_client.producing.classes import as_mapping, schema_of
from mq_protocol.sql.ddl import format_schema

Carrier = NewType("Carrier", str)


@dataclass
class Stop:
    city: str
    at: datetime | None = None


@dataclass
class Flight:
    VERSION: ClassVar[int] = 3
    carrier: Carrier
    number: Annotated[int, "int"]
    price: Annotated[Decimal, "decimal(10, 2)"]
    late: bool
    stops: list[Stop]
    tags: dict[str, int | None] = dataclasses.field(default_factory=dict)
    day: date | None = None
    kind: Literal["cargo", "people"] = "people"
    raw: Annotated[bytes | None, 3, pa.binary()] = None
    weight: Optional[np.float32] = None  # noqa: UP045


FLIGHT = (
    "carrier string NOT NULL, number int NOT NULL, price decimal(10,2) NOT NULL, late boolean NOT NULL, "
    "stops array<struct<city: string NOT NULL, at: timestamp>> NOT NULL, tags map<string,int> NOT NULL, day date, "
    "kind string NOT NULL, raw binary, weight float"
)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    score: Annotated[float, pydantic.Field(ge=0)]
    inner: Stop | None = None


class Words(TypedDict):
    word: str
    count: NotRequired[int]


class Point(NamedTuple):
    x: float
    y: float | None


def words(given: object) -> str:
    return format_schema(schema_of(given)).replace("`", "").replace(": ", ":")


def as_words(text: str) -> str:
    return words(text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Stop, "city string NOT NULL, at timestamp"),
        (
            Model,
            "name string NOT NULL, score double NOT NULL, inner struct<city: string NOT NULL, at: timestamp>",
        ),
        (Words, "word string NOT NULL, count long"),
        (Point, "x double NOT NULL, y double"),
        (pa.schema([("a", pa.int64())]), "a long"),
        ("a long", "a long"),
    ],
)
def test_a_class_gives_columns(given: object, text: str) -> None:
    assert words(given) == as_words(text)


def test_every_type_that_a_field_may_have() -> None:
    assert words(Flight) == as_words(FLIGHT.replace("map<string,int>", "map<string,long>"))


def test_whatever_speaks_arrows_protocol_gives_columns() -> None:
    class Foreign:
        def __arrow_c_schema__(self) -> object:
            return pa.schema([("a", pa.int64())]).__arrow_c_schema__()

    assert words(Foreign()) == "a long"


class Loop(TypedDict):
    me: list[Loop]


def made(**fields: Any) -> type:
    return dataclasses.make_dataclass("Made", fields.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 1}, "schema is {'a': 1}: give words"),
        (dict, "schema is dict: give words"),
        (int, "schema is int"),
        (Flight("a", 1, Decimal(1), True, []), "schema is Flight"),
        (Loop, "Loop holds itself"),
        (made(), "no column"),
        (made(a=Decimal), r"Made.a is Decimal: say how many digits"),
        (made(a=int | str), "Made.a may be of several types"),
        (made(a=Literal[1, "b"]), "Made.a may be of several types"),
        (made(a=Any), "Made.a is"),
        (made(a=list), "Made.a is list"),
        (made(a=tuple[int, int]), "Made.a is a tuple of several values"),
        (made(a=complex), "Made.a is complex"),
        (made(a=Annotated[int, "nit"]), "Made.a: .*nit"),
        (made(a="NoSuchClass"), "the types of Made cannot be told .*NoSuchClass"),
        (made(a=np.uint8), "uint8"),
        (made(A=int, a=int), "same name"),
    ],
)
def test_what_is_no_column_is_refused_by_its_name(given: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        schema_of(given)


def test_objects_are_rows() -> None:
    assert as_mapping(Point(1.0, None)) == {"x": 1.0, "y": None}
    assert as_mapping(Stop("Rome")) == {"city": "Rome", "at": None}
    assert as_mapping(Model(name="n", score=1, extra=3)) == {"name": "n", "score": 1.0, "inner": None, "extra": 3}
    assert as_mapping(pa.scalar({"a": [1]})) == {"a": [1]}
    given = {"a": 1}
    assert as_mapping(given) is given
    for value in (None, 1, "a", b"a", [1], (1,), Stop, Model, object()):
        assert as_mapping(value) is None


def test_rows_of_classes_are_stored_and_read_back(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=Flight)
    admin.create_topic(f"{topic}-model", schema=Model)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    flight = Flight(Carrier("UA"), 7, Decimal("9.50"), False, [Stop("Rome", noon), Stop("Oslo")], {"a": 1})
    with Producer(bootstrap) as producer:
        assert producer.publish(topic, flight).result(20).offset == 0
        producer.publish(topic, dataclasses.asdict(flight)).result(20)
        producer.publish(f"{topic}-model", Model(name="n", score=2, inner=Stop("Bonn"))).result(20)
        with pytest.raises(SchemaMismatch, match=r"number.*out of its range"):
            producer.publish(topic, dataclasses.replace(flight, number=1 << 40))
        with pytest.raises(SchemaMismatch, match=r"carrier.*NOT NULL"):
            producer.publish(topic, dataclasses.replace(flight, carrier=None))  # type: ignore[arg-type]
        with pytest.raises(SchemaMismatch, match="no column 'other'"):
            producer.publish(f"{topic}-model", Model(name="n", score=2, other=1))
        with pytest.raises(InvalidRequest, match=r"the value is Table.*publish_batch"):
            producer.publish(topic, pa.table({"carrier": ["UA"]}))
        with pytest.raises(InvalidRequest, match="the value is int"):
            producer.publish(topic, 3)
    rows = Reader(bootstrap).rows(topic).to_arrow().to_pylist()
    assert rows[0] == rows[1]
    assert rows[0]["stops"] == [{"city": "Rome", "at": noon}, {"city": "Oslo", "at": None}]
    assert rows[0]["price"] == Decimal("9.50")
    assert Reader(bootstrap).rows(f"{topic}-model").to_arrow().to_pylist() == [
        {"name": "n", "score": 2.0, "inner": {"city": "Bonn", "at": None}}
    ]
