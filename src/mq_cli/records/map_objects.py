"""Maps as JSON has them: an object where the keys are text, as `tritonmq produce` takes them. Arrow gives a list of
pairs.

Only the column's type says that a list of pairs is a map, and that an empty list is an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types

Shape = Callable[[Any], Any]


def row_shape(schema: pa.Schema) -> Shape | None:
    """What makes objects of the maps in a row of that schema, a dict by column. None if there is none to be made.

    A column that the schema lacks stays as it is: it may have been added since.
    """
    return _of_fields({field.name: field.type for field in schema})


def _of_fields(kinds: Mapping[str, pa.DataType]) -> Shape | None:
    shapes = {name: shape for name, kind in kinds.items() if (shape := _of(kind)) is not None}
    if not shapes:
        return None
    return lambda row: {
        name: shapes[name](value) if name in shapes and value is not None else value for name, value in row.items()
    }


def _of(kind: pa.DataType) -> Shape | None:
    if types.is_struct(kind):
        return _of_fields({kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)})
    if types.is_map(kind):
        return _of_map(kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _of(kind.value_type)
        return None if inner is None else lambda values: [None if value is None else inner(value) for value in values]
    return None


def _of_map(kind: pa.MapType) -> Shape | None:
    inner = _of(kind.item_type)
    text = types.is_string(kind.key_type) or types.is_large_string(kind.key_type)
    if not text and inner is None:
        return None

    def shape(pairs: list[tuple[Any, Any]]) -> Any:
        shaped = [(key, value if value is None or inner is None else inner(value)) for key, value in pairs]
        found = dict(shaped) if text else {}
        return found if text and len(found) == len(shaped) else shaped  # an object cannot have a key twice

    return shape
