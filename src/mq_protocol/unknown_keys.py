"""Keys of a stored document that this version does not know: a newer version has written them, and every write keeps
them.

Brokers of two versions share these documents during a rolling upgrade. Each of them reads a document, changes what it
knows and writes the whole of it. What it does not know travels beside the rest as one JSON text (`NodeState.unknown`,
`TopicSpec.unknown`, `Move.unknown`), which nobody looks into.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

STATE_UNKNOWN_BYTES_MAX: Final = 4 << 10
"""A broker keeps a state node in memory for each of its partitions."""

_DEPTH_MAX: Final = 16
"""What is nested deeper could be read on a shallow stack, and then not be written on a deep one."""


def unknown_keys(document: dict[str, Any], known: Collection[str], bytes_max: int) -> str:
    """The keys that are not `known`, with their values, as JSON; empty if there are none. Raises `ValueError` for too
    much."""
    rest = {key: value for key, value in document.items() if key not in known}
    if not rest:
        return ""
    _check_depth(rest, _DEPTH_MAX)
    text = json.dumps(rest, separators=(",", ":"), sort_keys=True)
    if len(text) > bytes_max:
        raise ValueError(f"keys that this version does not know take {len(text)} bytes, not up to {bytes_max}")
    return text


def with_unknown(document: dict[str, Any], unknown: str) -> dict[str, Any]:
    """The document as it is to be written: what is known to this version, and what `unknown_keys` has found."""
    return {**json.loads(unknown), **document} if unknown else document


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise ValueError(f"keys that this version does not know are nested deeper than {_DEPTH_MAX}")
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, left - 1)
