"""What Spark's catalog hands over for a table: `CREATE TABLE … USING tritonmq OPTIONS (…)`. Pure.

Such a table is read and written with the same options. Spark adds properties of its own, and the user's TBLPROPERTIES;
each of the OPTIONS it hands over twice, once with a prefix.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

_MARK: Final = "provider"
_PREFIX: Final = "option."


def is_of_table(name: str) -> bool:
    """Whether it is one of the OPTIONS of a table, or the mark by which a table is known."""
    return name.lower() == _MARK or name.lower().startswith(_PREFIX)


def of_table(given: Mapping[str, str], known: Container[str]) -> dict[str, str] | None:
    """The options of a table, None if `given` are no table's. `known`: names of options, in lower case.

    The OPTIONS are all there, misspelt ones too; of what stands beside them only what is an option (from `WITH (…)`, or
    `spark.read.option(…).table(…)`). A table that names one topic to read is written to the same.
    """
    lower = {name.lower(): value for name, value in given.items()}
    if _MARK not in lower:
        return None
    options = {name.removeprefix(_PREFIX): value for name, value in lower.items() if name.startswith(_PREFIX)}
    options |= {name: value for name, value in lower.items() if name in known and name != "path"}
    topic = options.get("subscribe", "")
    if topic and "," not in topic:
        options.setdefault("topic", topic)
    return options
