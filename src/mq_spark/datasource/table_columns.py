"""A table in Spark's catalog, `CREATE TABLE … USING tritonmq OPTIONS (…)`: its options, kept in its first column.

Spark tells a Python source the OPTIONS of a table once, when it asks for the columns, and never again when the table is
read or written. The columns it keeps in the catalog, with what is said of each, and hands them over each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from mq_protocol.errors import InvalidSetting
from mq_spark.planning.catalog_table import is_of_table
from mq_spark.planning.security_options import SECRETS

_KEY: Final = "tritonmq.options"


def with_options(columns: StructType, given: Mapping[str, str]) -> StructType:
    """The columns, and in the first one the options of the table; unchanged if `given` are no table's. Raises
    `InvalidSetting` for an option that holds a secret: whoever sees the table would see it."""
    kept = {name: value for name, value in given.items() if is_of_table(name)}
    if not kept:
        return columns
    for name in kept:
        if name.removeprefix("option.") in SECRETS:
            raise InvalidSetting(
                f"option {name.removeprefix('option.')} holds a secret, and whoever sees a table sees its options: "
                "give tritonmq.token.location or certs, which name files"
            )
    first, *others = columns.fields
    marked = StructField(first.name, first.dataType, first.nullable, {**first.metadata, _KEY: json.dumps(kept)})
    return StructType([marked, *others])


def options_of(columns: StructType | None) -> dict[str, str]:
    """What `with_options` has put there, each of the OPTIONS twice, as Spark hands them over when the table is made;
    empty for other columns."""
    for column in columns or ():
        if _KEY in column.metadata:
            kept = json.loads(column.metadata[_KEY])
            return {**kept, **{name.removeprefix("option."): value for name, value in kept.items()}}
    return {}
