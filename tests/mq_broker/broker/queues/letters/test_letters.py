"""What a dead letter looks like, and into which topics dead letters fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.queues.letters.making import DEAD_TYPE, Letters, Origin, Piece, check_fits, letter_schema, make
from mq_broker.core.work.state import Mark
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.errors import SchemaMismatch
from mq_protocol.queues.dead_letters import DEAD_COLUMN, HEADERS, HOPS_MAX

TYPED = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])
LETTERS = letter_schema(TYPED)


def with_hops(*each: list[bytes | None] | None) -> Letters:
    """Of records with these values of the header that counts; None: no headers."""
    headers = [None if hops is None else [{"key": HEADERS["hops"], "value": value} for value in hops] for hops in each]
    columns = [
        pa.array([None] * len(each), pa.binary()),
        pa.array([b""] * len(each), pa.binary()),
        pa.array(headers, RECORD_SCHEMA.field("headers").type),
        pa.array([0] * len(each), pa.timestamp("us", tz="UTC")),
    ]
    batch = encode_batch(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)).to_pybytes()
    piece = Piece(100, 5, batch, [(100 + at, Mark()) for at in range(len(each))])
    return make([piece], Origin("t", 0, "g", "rejected", RECORD_SCHEMA), RECORD_SCHEMA, 1 << 20)


def hops_told(letters: Letters) -> list[list[bytes]]:
    assert letters.batch is not None
    rows = letters.batch.column("headers").to_pylist()
    return [[header["value"] for header in row if header["key"] == HEADERS["hops"]] for row in rows]


def test_a_letter_says_how_often_it_was_one_by_the_highest_number_that_is_one() -> None:
    letters = with_hops(None, [], [b"2", b"7", b"3"], [b"x", None, b"-1"], [b"1000"], [b"4"])
    assert hops_told(letters) == [[b"1"], [b"1"], [b"8"], [b"1"], [b"1"], [b"5"]], "and the former ones are gone"
    assert (letters.ranges, letters.weary) == (((100, 106),), ())


def test_a_record_that_was_a_letter_as_often_as_it_may_is_none_any_more() -> None:
    letters = with_hops([b"%d" % HOPS_MAX], [b"%d" % (HOPS_MAX - 1)], [b"999"])
    assert hops_told(letters) == [[b"%d" % HOPS_MAX]]
    assert (letters.ranges, letters.weary) == (((101, 102),), ((100, 101), (102, 103)))
    assert with_hops([b"999"]).batch is None


def rows(schema: pa.Schema, values: list[dict[str, Any]], target: pa.Schema = LETTERS) -> Letters:
    batch = encode_batch(pa.RecordBatch.from_pylist(values, schema=schema)).to_pybytes()
    piece = Piece(10, 5, batch, [(10 + at, Mark(3, 2, error="")) for at in range(len(values))])
    return make([piece], Origin("t", 4, "g", "delivery_limit", schema), target, 1 << 20)


def test_a_row_has_its_columns_and_the_facts_in_one_more_and_what_it_lacks_is_null() -> None:
    target = pa.schema([pa.field("more", pa.int32()), *LETTERS])
    letters = rows(TYPED, [{"n": 1, "text": "x"}, {"n": 2, "text": None}], target)
    assert letters.batch is not None
    assert letters.batch.schema == target
    first, second = letters.batch.to_pylist()
    facts = first.pop(DEAD_COLUMN)
    assert (first, second["n"], second["text"]) == ({"more": None, "n": 1, "text": "x"}, 2, None)
    assert (facts["error"], facts["offset"], facts["partition"], facts["hops"]) == (None, 10, 4, 1)
    assert (facts["deliveries"], facts["failures"], facts["reason"]) == (3, 2, "delivery_limit")


def test_a_row_that_was_a_letter_counts_on() -> None:
    dead = [{"hops": 4}, None, {"hops": None}, {"hops": HOPS_MAX}]
    letters = rows(LETTERS, [{"n": at, "text": "", DEAD_COLUMN: each} for at, each in enumerate(dead)])
    assert letters.batch is not None
    assert [each["hops"] for each in letters.batch.column(DEAD_COLUMN).to_pylist()] == [5, 1, 1]
    assert letters.weary == ((13, 14),)
    own = pa.schema([pa.field("n", pa.int64()), pa.field(DEAD_COLUMN, pa.string())])  # a column of the user's
    facts = rows(own, [{"n": 1, DEAD_COLUMN: "mine"}], letter_schema(own)).batch
    assert facts is not None
    assert facts.column(DEAD_COLUMN)[0]["hops"].as_py() == 1


def test_every_column_of_a_topic_for_letters_may_be_null() -> None:
    assert letter_schema(RECORD_SCHEMA) is RECORD_SCHEMA
    assert [column.nullable for column in LETTERS] == [True, True, True]
    assert LETTERS.names == ["n", "text", DEAD_COLUMN]
    assert letter_schema(LETTERS) == LETTERS, "letters of letters have one column of facts"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (LETTERS, ""),
        (pa.schema([pa.field("more", pa.int32()), *LETTERS]), ""),
        (pa.schema([*TYPED, pa.field(DEAD_COLUMN, DEAD_TYPE, nullable=False)]), ""),
        (TYPED, f"lacks column {DEAD_COLUMN}"),
        (pa.schema([pa.field("n", pa.int32()), *list(LETTERS)[1:]]), "lacks column n int64"),
        (pa.schema([pa.field("more", pa.int32(), nullable=False), *LETTERS]), "column more may not be null"),
    ],
)
def test_a_topic_takes_letters_if_it_has_their_columns_and_needs_no_others(target: pa.Schema, why: str) -> None:
    if not why:
        check_fits(TYPED, target, "t.dead")
        return
    with pytest.raises(SchemaMismatch, match=why):
        check_fits(TYPED, target, "t.dead")
