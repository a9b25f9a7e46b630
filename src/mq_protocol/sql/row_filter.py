"""A filter over a topic's columns, in a small part of SQL: parsed where it is written, carried out where the rows are
stored.

    filter     = and { OR and }            and = not { AND not }            not = NOT not | test
    test       = "(" filter ")" | column | column compare literal | literal compare column
               | column IS [NOT] NULL | column [NOT] IN "(" literal { "," literal } ")"
    compare    = "=" "==" "!=" "<>" "<" "<=" ">" ">="
    literal    = 12 | -1.5e3 | 'text, a quote is written ''' | TRUE | FALSE
    column     = name | `any name`        top-level columns, in any case, as Spark finds them

It means what the same text means in Spark's `.filter(...)`: a comparison with null is neither true nor false, only rows
for which the whole is true are kept, and NaN is above every number. Dates and times are written as text, `'2026-03-29'`
and `'2026-03-29T01:30:00'`, in UTC unless they say otherwise (Spark takes the session's time zone). There is no
arithmetic, no function and no comparison between columns, so a filter costs a pass over its columns and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from mq_protocol import limits
from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean

_TOKEN: Final = re.compile(
    r"(?P<blank>\s+)|(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<name>[^\W\d]\w*)|(?P<quoted>`[^`]+`)|(?P<compare><=|>=|<>|!=|==|=|<|>)|(?P<sign>[(),])"
)
_SHOWN_CHARACTERS: Final = 100
_WORDS: Final = frozenset({"and", "or", "not", "is", "in", "null", "true", "false"})
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

_Columns: TypeAlias = Mapping[str, pa.Array]
_Test: TypeAlias = Callable[[_Columns], pa.Array]
"""From columns to booleans, null where it is not known."""


@dataclass(frozen=True)
class RowFilter:
    """A filter bound to a schema: `columns` are those that it looks at, in the schema's order."""

    text: str
    columns: tuple[str, ...]
    _test: _Test

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """For each row whether it is kept, never null. `rows` has at least `columns`."""
        return pc.fill_null(self._test({name: rows.column(name) for name in self.columns}), False)


def parse_filter(text: str, schema: pa.Schema, barred: Collection[str] = ()) -> RowFilter:
    """`barred`: names of what the rows have beside the schema, which cannot be compared.

    Raises `InvalidSetting` that begins with "filter" and says which column, which literal or which character is wrong.
    """
    if len(text) > limits.FILTER_CHARACTERS_MAX:
        raise InvalidSetting(f"filter has {len(text)} characters: at most {limits.FILTER_CHARACTERS_MAX} are allowed")
    parser = _Parser(text, schema, barred)
    test = parser.whole()
    return RowFilter(text, tuple(name for name in schema.names if name in parser.used), test)


# ------------------------------------------------------------------ reading it


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The keyword that it is, or nothing."""
        lowered = self.text.lower()
        return lowered if self.kind == "name" and lowered in _WORDS else ""


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise InvalidSetting(f"filter is not understood at character {at + 1}, {text[at : at + 20]!r}: {_FORM}")
        kind = found.lastgroup or ""
        if kind != "blank":
            yield _Token(kind, found.group(), at)
        at = found.end()
    yield _Token("end", "", at)


_FORM: Final = "write comparisons of a column with a value, IS NULL and IN (…), joined by AND, OR, NOT"


class _Parser:
    """Owns the place in the text, and which columns have been named. One descent, no going back."""

    def __init__(self, text: str, schema: pa.Schema, barred: Collection[str]) -> None:
        self.used: set[str] = set()
        self._barred = barred
        self._schema = schema
        # Of columns, by their names in small letters: a schema may have thousands
        self._places: dict[str, list[int]] = {}
        for place, name in enumerate(schema.names):
            self._places.setdefault(name.lower(), []).append(place)
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> _Test:
        test = self._any()
        if self._peek().kind != "end":
            raise self._wrong("AND, OR or the end")
        return test

    # -------------------------------------------------------------- and, or, not

    def _any(self) -> _Test:
        tests = [self._all()]
        while self._took("or"):
            tests.append(self._all())
        return _joined(pc.or_kleene, tests)

    def _all(self) -> _Test:
        tests = [self._not()]
        while self._took("and"):
            tests.append(self._not())
        return _joined(pc.and_kleene, tests)

    def _not(self) -> _Test:
        self._depth += 1
        if self._depth > limits.FILTER_DEPTH_MAX:
            raise InvalidSetting(f"filter is nested more than {limits.FILTER_DEPTH_MAX} deep: write it flatter")
        test = _inverted(self._not()) if self._took("not") else self._test()
        self._depth -= 1
        return test

    # -------------------------------------------------------------- one test

    def _test(self) -> _Test:
        if self._took("("):
            inner = self._any()
            self._expect(")")
            return inner
        token = self._peek()
        if token.kind in ("number", "text") or token.word in ("true", "false"):
            literal = self._literal()
            operator = self._operator()
            return _comparison(self._column(), _MIRRORED.get(operator, operator), literal)
        column = self._column()
        if self._peek().kind == "compare":
            return _comparison(column, self._operator(), self._literal())
        if self._took("is"):
            negated = self._took("not")
            self._expect("null")
            return _is_null(column, negated)
        if self._took("not"):
            self._expect("in")
            return _inverted(self._in(column))
        if self._took("in"):
            return self._in(column)
        if not pa.types.is_boolean(column.type):
            raise self._wrong(f"a comparison of column {column.name!r}, IS NULL or IN")
        return lambda columns: columns[column.name]

    def _in(self, column: pa.Field) -> _Test:
        self._expect("(")
        literals = [self._literal()]
        while self._took(","):
            literals.append(self._literal())
        self._expect(")")
        return _in(column, literals)

    def _column(self) -> pa.Field:
        token = self._peek()
        if token.kind not in ("name", "quoted") or token.word:
            raise self._wrong("a column")
        self._next += 1
        name = token.text.strip("`")
        if self._peek().text == "(":
            raise InvalidSetting(f"filter calls {name!r}, and filters have no functions: {_FORM}")
        found = [self._schema.field(place) for place in self._places.get(name.lower(), ())]
        exact = [field for field in found if field.name == name]
        if not found:
            names = ", ".join(self._schema.names)
            if name.lower() in self._barred:
                raise InvalidSetting(
                    f"filter names {name!r}, which cannot be compared in a topic without a schema (its columns are: "
                    f"{names}): give the topic a schema to compare others"
                )
            raise InvalidSetting(
                f"filter names column {name!r}, which the topic does not have{did_you_mean(name, self._schema.names)} "
                f"(its columns are: {names})"
            )
        if len(found) > 1 and not exact:
            raise InvalidSetting(
                f"filter names column {name!r}, and the topic has {len(found)} of that name: write its exact case"
            )
        field = (exact or found)[0]
        self.used.add(field.name)
        return field

    def _operator(self) -> str:
        token = self._peek()
        if token.kind != "compare":
            raise self._wrong("a comparison")
        self._next += 1
        return {"==": "=", "<>": "!="}.get(token.text, token.text)

    def _literal(self) -> _Token:
        token = self._peek()
        if token.word == "null":
            raise InvalidSetting("filter compares with NULL, which is never true: write IS NULL or IS NOT NULL")
        if token.kind not in ("number", "text") and token.word not in ("true", "false"):
            raise self._wrong("a number, a 'text', TRUE or FALSE")
        self._next += 1
        return token

    # -------------------------------------------------------------- tokens

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _took(self, wanted: str) -> bool:
        token = self._peek()
        if token.word == wanted or (token.kind == "sign" and token.text == wanted):
            self._next += 1
            return True
        return False

    def _expect(self, wanted: str) -> None:
        if not self._took(wanted):
            raise self._wrong(wanted.upper())

    def _wrong(self, expected: str) -> InvalidSetting:
        token = self._peek()
        found = repr(token.text) if token.text else "the end"
        return InvalidSetting(f"filter has {found} at character {token.at + 1} where {expected} is expected: {_FORM}")


# ------------------------------------------------------------------ what it does


def _joined(operation: Callable[[Any, Any], Any], tests: Sequence[_Test]) -> _Test:
    if len(tests) == 1:
        return tests[0]
    return lambda columns: reduce(operation, (test(columns) for test in tests))


def _inverted(test: _Test) -> _Test:
    return lambda columns: pc.invert(test(columns))


def _is_null(column: pa.Field, negated: bool) -> _Test:
    operation = pc.is_valid if negated else pc.is_null
    return lambda columns: operation(columns[column.name])


def _comparison(column: pa.Field, operator: str, literal: _Token) -> _Test:
    operation, value = _COMPARE[operator], _value(column, literal)
    if not pa.types.is_floating(column.type):
        return lambda columns: operation(columns[column.name], value)

    def test(columns: _Columns) -> pa.Array:
        numbers = columns[column.name].cast(pa.float64())
        found = operation(numbers, value)
        return pc.or_kleene(found, pc.is_nan(numbers)) if operator in (">", ">=") else found

    return test


def _in(column: pa.Field, literals: Sequence[_Token]) -> _Test:
    if pa.types.is_floating(column.type):  # by comparing, not by hashing: 0.0 and -0.0 are the same number
        return _joined(pc.or_kleene, [_comparison(column, "=", literal) for literal in literals])
    values = pa.array([_value(column, literal).as_py() for literal in literals], column.type)
    unknown = pa.scalar(None, pa.bool_())

    def test(columns: _Columns) -> pa.Array:
        found = columns[column.name]
        return pc.if_else(pc.is_valid(found), pc.is_in(found, value_set=values), unknown)

    return test


def _value(column: pa.Field, literal: _Token) -> pa.Scalar:
    """The literal in the column's own type (a float's: double). Raises `InvalidSetting` if it is none of that type."""
    kind = column.type
    makers = [make for applies, make in _LITERALS if applies(kind)]
    if not makers:
        raise InvalidSetting(
            f"filter compares column {column.name!r}, which is {kind}: only IS NULL can be asked of it"
        )
    try:
        return pa.scalar(makers[0](kind, literal), pa.float64() if pa.types.is_floating(kind) else kind)
    except (ValueError, OverflowError, pa.ArrowException):
        shown = literal.text if len(literal.text) <= _SHOWN_CHARACTERS else literal.text[:_SHOWN_CHARACTERS] + "..."
        in_quotes = literal.kind == "number" and (pa.types.is_string(kind) or pa.types.is_binary(kind))
        raise InvalidSetting(
            f"filter compares column {column.name!r}, which is {kind}, with {shown}: write a value of that type"
            f"{', in quotes' if in_quotes else ''}"
        ) from None


def _number(literal: _Token) -> str:
    if literal.kind != "number":
        raise ValueError
    if len(literal.text) > limits.FILTER_NUMBER_CHARACTERS_MAX:
        raise InvalidSetting(
            f"filter has a number of {len(literal.text)} characters at character {literal.at + 1}: "
            f"at most {limits.FILTER_NUMBER_CHARACTERS_MAX} are allowed"
        )
    return literal.text


def _integer(kind: pa.DataType, literal: _Token) -> int:
    value, half = int(_number(literal)), 1 << kind.bit_width - 1
    if not -half <= value < half:
        raise ValueError
    return value


def _decimal(kind: pa.Decimal128Type, literal: _Token) -> Decimal:
    """Exactly the column's scale, and digits that fit its precision. Worked out from the text: Arrow reads outside its
    tables for an exponent that is far from the column's, and Python would write out the zeros of a billion."""
    mantissa, _, exponent = _number(literal).lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    significant = (whole + fraction).lstrip("0")
    digits = significant.rstrip("0")
    if not digits:
        return Decimal((0, (0,), -kind.scale))
    power = int(exponent or "0") - len(fraction) + len(significant) - len(digits)  # the value is digits * 10**power
    zeros = power + kind.scale
    if zeros < 0 or len(digits) + zeros > kind.precision:
        raise ValueError
    return Decimal((mantissa[0] == "-", tuple(map(int, digits + "0" * zeros)), -kind.scale))


def _text(literal: _Token) -> str:
    if literal.kind != "text":
        raise ValueError
    return literal.text[1:-1].replace("''", "'")


def _truth(_kind: pa.DataType, literal: _Token) -> bool:
    if not literal.word:
        raise ValueError
    return literal.word == "true"


def _moment(kind: pa.TimestampType, literal: _Token) -> datetime:
    """In the years 1 to 9999 of UTC, which is what `datetime` can hold."""
    moment = datetime.fromisoformat(_text(literal))
    if kind.tz is None:
        if moment.tzinfo is not None:
            raise ValueError
        return moment
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_LITERALS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, _Token], object]], ...]] = (
    (pa.types.is_boolean, _truth),
    (pa.types.is_signed_integer, _integer),
    (pa.types.is_floating, lambda _kind, literal: float(_number(literal))),
    (pa.types.is_decimal128, _decimal),
    (pa.types.is_string, lambda _kind, literal: _text(literal)),
    (pa.types.is_binary, lambda _kind, literal: _text(literal).encode()),
    (pa.types.is_date, lambda _kind, literal: date.fromisoformat(_text(literal))),
    (pa.types.is_timestamp, _moment),
)
"""For each kind of column how its literals are read. `ValueError`: it is no literal of that kind."""
