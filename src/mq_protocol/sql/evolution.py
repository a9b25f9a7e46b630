"""What the columns of a topic may become: nullable ones are added behind those that there are, and nothing else ever
changes.

So each version of a topic's schema is the beginning of the next. A stored batch carries no schema; how many nodes it
has says of which version it is (`mq_protocol.arrow.decode_batch`), and a reader of any version can read it: what it
lacks is null. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from mq_protocol.errors import InvalidRequest
from mq_protocol.sql.ddl import check_column_names, check_schema, format_type

_INSTEAD: Final = "leave it out where it is read (.schema(...), columns=), or make another topic and copy"


def extended(topic: str, schema: pa.Schema, added: pa.Schema) -> pa.Schema:
    """The schema with these columns behind its own. Raises `InvalidRequest` for a name that is there, or a NOT NULL
    column."""
    present = {field.name.lower(): field for field in schema}
    for field in added:
        known = present.get(field.name.lower())
        if known is not None:
            raise InvalidRequest(
                f"topic {topic!r} has a column {known.name!r} already, which is {format_type(known.type)} and stays "
                "so: choose another name"
            )
    check_column_names(added)
    after = check_schema(pa.schema([*schema, *added]))
    check_extension(topic, schema, after)
    return after


def check_extension(topic: str, before: pa.Schema, after: pa.Schema) -> None:
    """Raises `InvalidRequest` unless `after` is `before`, or that and nullable columns behind it; says what to do
    instead."""
    for at, field in enumerate(before):
        found = after.field(at) if at < len(after) else None
        if found is None or (found.name != field.name and field.name not in after.names):
            renamed = "" if found is None else f" (nor be called {found.name!r} from now on)"
            raise InvalidRequest(f"column {field.name!r} of topic {topic!r} cannot be dropped{renamed}: {_INSTEAD}")
        if found.name != field.name:
            raise InvalidRequest(
                f"column {field.name!r} of topic {topic!r} must stay where it is: add columns behind the others"
            )
        if found.type != field.type or found.nullable != field.nullable:
            is_now, asked = _words(field), _words(found)
            raise InvalidRequest(
                f"column {field.name!r} of topic {topic!r} is {is_now} and cannot become {asked}: add a column under "
                "another name"
            )
    for field in list(after)[len(before) :]:
        if not field.nullable:
            raise InvalidRequest(
                f"column {field.name!r} is NOT NULL, and what topic {topic!r} holds already has no value for it: leave "
                "NOT NULL out"
            )


def versions(schema: pa.Schema, earlier: Sequence[int]) -> tuple[pa.Schema, ...]:
    """Every version that the schema has had, the present one first. `earlier`: how many columns each former one had."""
    return (schema, *(pa.schema(list(schema)[:count]) for count in earlier if count < len(schema)))


def _words(field: pa.Field) -> str:
    return f"{format_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
