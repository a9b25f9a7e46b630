"""Documents of ZooKeeper that a stranger has altered: every field of each kind, replaced by values that nobody would
write."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e400,
    2**31,
    2**63,
    10**400,
    "",
    "../../x",
    "..",
    "/etc/passwd",
    "a\x00b",
    "a\nb",
    "\u202e",
    "\ud800",
    "x" * 100_000,
    "12",
    [],
    [[]],
    [None],
    [-1],
    [1, 1],
    [1] * 1_000,
    [[1, "a"], [1, "b"]],
    [[2**40, "../x"]],
    {},
    {"a": 1},
    {"-1": {"target": [1], "origin": [1]}},
    {"99999": {"target": [1], "origin": [1]}},
    {"0": {"target": [], "origin": []}},
    {"²": {"target": [1], "origin": [1]}},
)


def altered(document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(what was done, the bytes): each field absent, or replaced by each value; and bytes that are no document at
    all."""
    for field in document:
        without = {name: value for name, value in document.items() if name != field}
        yield f"{field} absent", _dump(without)
        for number, value in enumerate(VALUES):
            changed = copy.deepcopy(document)
            changed[field] = value
            yield f"{field} {number}", _dump(changed)
    for number, data in enumerate(
        (b"", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b"NaN")
    ):
        yield f"bytes {number}", data


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")
