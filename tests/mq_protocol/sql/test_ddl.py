"""Spark's words to Arrow and back, and the errors on the way."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mq_protocol import limits
from mq_protocol.errors import InvalidRequest
from mq_protocol.sql.ddl import check_schema, format_schema, parse_schema

EVERYTHING = (
    "a boolean, b byte, c short, d int, e long, f float, g double, h string, i binary, j date, k timestamp, l "
    "timestamp_ntz, m decimal(10,2), n array<int>, o map<string,long>, p struct<x: double NOT NULL, y: "
    "array<map<string,struct<z: int>>>>, `q r` string NOT NULL"
)


def test_what_is_formatted_is_what_was_parsed() -> None:
    assert format_schema(parse_schema(EVERYTHING)) == EVERYTHING


def test_a_schema_is_what_spark_makes_of_the_same_words() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    spark = types.StructType(
        [
            types.StructField("a", types.ByteType()),
            types.StructField("b", types.DecimalType(10, 2), nullable=False),
            types.StructField("c", types.ArrayType(types.TimestampNTZType())),
            types.StructField("d", types.MapType(types.StringType(), types.TimestampType())),
            types.StructField("e", types.StructType([types.StructField("x", types.DateType(), nullable=False)])),
        ]
    )
    ours = parse_schema(
        "a tinyint, b decimal(10,2) NOT NULL, c array<timestamp_ntz>, d map<string,timestamp>, e struct<x: date not "
        "null>"
    )
    theirs = conversion.to_arrow_schema(spark, timezone="UTC")
    assert ours.equals(theirs, check_metadata=True)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("a BIGINT", "a long"),
        ("a: integer, b: smallint", "a int, b short"),
        ("a dec", "a decimal(10,0)"),
        ("a numeric(5)", "a decimal(5,0)"),
        ("a  array < map < string , int > >", "a array<map<string,int>>"),
        ("a real COMMENT 'it''s, dropped', b bool", "a float"),
        ("`a``b` int", "`a``b` int"),
        ("größe int", "`größe` int"),
        ("date date, `array` array<date>", "date date, array array<date>"),
    ],
)
def test_spellings_of_spark_are_understood(words: str, same: str) -> None:
    if "dropped" in words:
        words = "a real COMMENT 'it\\'s, dropped'"
    assert format_schema(parse_schema(words)) == same


@pytest.mark.parametrize(
    ("words", "says", "place"),
    [
        ("a variant", "unknown type 'variant', which topics do not have (types are: ", 2),
        ("a lng", "unknown type 'lng': did you mean 'long'?", 2),
        ("a int, b strng", "unknown type 'strng': did you mean 'string'?", 9),
        ("a xyzzy", "types are: boolean", 2),
        ("a int b", "expected ','", 6),
        ("a int,", "expected a name", 6),
        ("a", "expected the type of 'a'", 1),
        ("a array<int", "expected '>'", 11),
        ("a map<int>", "expected ','", 9),
        ("a struct<>", "expected a name", 9),
        ("a int NOT", "expected NULL", 9),
        ("a decimal(39)", "precision", 2),
        ("a decimal(4,5)", "scale", 2),
        ("a decimal(x)", "expected a number", 10),
        ("a int COMMENT b", "single quotes", 14),
        ("a int; drop", "unexpected ';'", 5),
        ("", "empty", None),
    ],
)
def test_an_error_shows_the_place_and_the_nearest_type(words: str, says: str, place: int | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_schema(words)
    assert says in str(caught.value)
    if place is not None:
        assert str(caught.value).splitlines()[-1] == "  " + " " * place + "^"


def test_a_schema_too_deep_is_refused_not_recursed_into() -> None:
    with pytest.raises(InvalidRequest, match="nested deeper"):
        parse_schema("a " + "array<" * 100_000)
    deep: pa.DataType = pa.int32()
    for _ in range(limits.SCHEMA_DEPTH_MAX):
        deep = pa.list_(deep)
    with pytest.raises(InvalidRequest, match="nested deeper"):
        check_schema(pa.schema([("a", deep)]))


def test_a_schema_too_wide_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="5000 fields"):
        check_schema(pa.schema([(f"c{i}", pa.int32()) for i in range(5000)]))


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.dictionary(pa.int32(), pa.string()), "use the type of its values"),
        (pa.large_string(), "use string"),
        (pa.string_view(), "use string"),
        (pa.uint32(), "use long"),
        (pa.timestamp("ns"), "use timestamp"),
        (pa.timestamp("us", tz="Europe/Paris"), "use timestamp"),
        (pa.decimal256(50, 2), "use decimal"),
        (pa.null(), "give the column a type"),
        (pa.binary(0), "use binary"),
        (pa.list_(pa.int8(), 2), "use array"),
        (pa.time64("us"), "use long or string"),
        (pa.dense_union([pa.field("x", pa.int8())]), "types are:"),
    ],
)
def test_a_type_spark_does_not_have_is_refused_with_what_to_use(kind: pa.DataType, advice: str) -> None:
    with pytest.raises(InvalidRequest, match=advice):
        check_schema(pa.schema([("a", kind)]))
    with pytest.raises(InvalidRequest, match=r"'a.element.x'"):
        check_schema(pa.schema([("a", pa.list_(pa.struct([("x", kind)])))]))


def test_names_that_spark_takes_for_the_same_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="'a' and 'A'"):
        check_schema(pa.schema([("a", pa.int8()), ("A", pa.int8())]))
    with pytest.raises(InvalidRequest, match=r"'s.a' and 's.a'"):
        check_schema(pa.schema([("s", pa.struct([("a", pa.int8()), ("a", pa.int8())]))]))
    with pytest.raises(InvalidRequest, match="empty name"):
        check_schema(pa.schema([("", pa.int8())]))


def test_what_is_stored_has_sparks_inner_names_and_no_metadata() -> None:
    given = pa.schema(
        [pa.field("a", pa.list_(pa.field("item", pa.int32(), nullable=False)), metadata={"x": "y"})],
        metadata={"p": "q"},
    )
    stored = check_schema(given)
    assert str(stored) == str(parse_schema("a array<int>"))
    assert stored.equals(parse_schema("a array<int>"), check_metadata=True)


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no column"):
        check_schema(pa.schema([]))
    with pytest.raises(InvalidRequest, match="at least one field"):
        check_schema(pa.schema([("a", pa.struct([]))]))
