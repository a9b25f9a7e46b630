"""How consumed messages are written: as they went in, as JSON, or by a template like kcat's. Reads nothing."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from mq_cli.commands import flag, option
from mq_cli.terminal import printable_bytes, printable_json

if TYPE_CHECKING:
    import pyarrow as pa

    from mq_cli.records.map_objects import Shape
    from mq_client import Admin, ConsumerRecord, TopicDescription


class MessageWriter:
    """Writes records to standard output, or to `out`, as bytes: what was produced comes out as it went in.

    One way of three: `as_json`, a `template`, or values, a line each. `for_terminal`: what is not seen is written as an
    escape, since it would command the terminal. Raises `click.BadParameter` for a senseless template.
    """

    def __init__(
        self,
        *,
        as_json: bool,
        template: str | None = None,
        flush_each: bool = False,
        for_terminal: bool = False,
        out: BinaryIO | None = None,
    ) -> None:
        self._as_json = as_json
        self._template = None if template is None else _parse_template(template)
        self._flush_each = flush_each
        self._shown = printable_bytes if for_terminal else bytes
        self._shown_json = printable_json if for_terminal else str
        self._out = sys.stdout.buffer if out is None else out
        self._shape: Shape | None = None

    def knows(self, topic: TopicDescription) -> None:
        """Of this topic's rows the maps whose keys are text are written as objects. Without it they are arrays of
        pairs."""
        self.knows_schema(topic.schema if topic.typed else None)

    def knows_schema(self, schema: pa.Schema | None) -> None:
        """The same, of rows with these columns; None: of a topic of messages."""
        from mq_cli.records.map_objects import row_shape

        self._shape = None if schema is None else row_shape(schema)

    def write(self, record: ConsumerRecord) -> None:
        if self._shape is not None and isinstance(record.value, dict):
            record = record._replace(value=self._shape(record.value))
        if self._as_json:
            self._out.write(self._shown_json(json.dumps(_document(record), ensure_ascii=False)).encode() + b"\n")
        elif self._template is not None:
            self._out.write(b"".join(self._part(record, part) for part in self._template))
        else:
            self._out.write(self._shown(value_bytes(record.value)) + b"\n")
        if self._flush_each:
            self._out.flush()

    def _part(self, record: ConsumerRecord, part: bytes | _Field) -> bytes:
        return part if isinstance(part, bytes) else self._shown(_field(record, part.letter))

    def flush(self) -> None:
        self._out.flush()


def write_records(admin: Admin, topic: str, ask: Callable[[], Sequence[ConsumerRecord]], *, as_json: bool) -> bool:
    """Write what brokers are asked for, if they know the topic. Whether there was any."""
    writer = MessageWriter(as_json=as_json, for_terminal=sys.stdout.isatty())
    writer.knows(admin.describe_topic(topic))
    records = ask()
    for record in records:
        writer.write(record)
    writer.flush()
    return bool(records)


RECORDS_JSON: Final = flag("Write whole records, one JSON object per line.", "--json")


def count_option(default: int) -> Any:
    return option("The largest number of messages.", "-n", type=click.IntRange(1, 10_000), default=default)


@dataclass(frozen=True, slots=True)
class _Field:
    letter: str


_FIELDS = "tpoksTDh"


def _parse_template(text: str) -> list[bytes | _Field]:
    """kcat's way: %-letters, and `\\n`, `\\t`, `\\\\`, `%%`."""
    parts: list[bytes | _Field] = []
    at = 0
    while at < len(text):
        pair = text[at : at + 2]
        if pair[0] == "%" and pair[1:] and pair[1] in _FIELDS:
            parts.append(_Field(pair[1]))
        elif pair in _ESCAPES:
            parts.append(_ESCAPES[pair])
        elif pair[0] == "%":
            raise click.BadParameter(
                f"{pair!r} means nothing: use {', '.join('%' + letter for letter in _FIELDS)} or %%",
                param_hint="--format",
            )
        else:
            parts.append(pair[0].encode())
            at += 1
            continue
        at += 2
    return parts


_ESCAPES = {"\\n": b"\n", "\\t": b"\t", "\\\\": b"\\", "%%": b"%"}


def _field(record: ConsumerRecord, letter: str) -> bytes:
    match letter:
        case "t":
            return record.topic.encode()
        case "p":
            return str(record.partition).encode()
        case "o":
            return str(record.offset).encode()
        case "k":
            return record.key or b""
        case "s":
            return value_bytes(record.value)
        case "T":
            return str(record.timestamp // 1000).encode()
        case "D":
            return (_time(record) or "").encode()
        case _:
            return b",".join(key.encode() + b"=" + (value or b"") for key, value in record.headers)


def value_bytes(value: Any) -> bytes:
    """A value as it was produced; of a topic with columns, its row as JSON."""
    if isinstance(value, bytes):
        return value
    if value is None:
        return b""
    return json.dumps(_plain(value), ensure_ascii=False).encode()


def _document(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _time(record),
        "timestamp_us": record.timestamp,
        "key": _plain(record.key),
        "value": _plain(record.value),
        "headers": [{"key": key, "value": _plain(value)} for key, value in record.headers],
    }


def _time(record: ConsumerRecord) -> str | None:
    try:
        return str(_plain(record.time))
    except OverflowError:  # a producer may write any time; Python's calendar has an end
        return None


def _plain(value: Any) -> Any:
    """As JSON has it. Bytes are text where they are UTF-8, else `{"base64": …}`."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode("ascii")}
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value
