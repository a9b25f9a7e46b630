"""Rows that were measured, kept as JSON beside the table: so that some can be measured again without the others.

A part is what one module measured in one run, with the load that the machine had before.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench.measure import Spread
from benchmarks.kafka.compare import Compared, Comparison


@dataclass(frozen=True, slots=True)
class Part:
    """`run`: what kind and when; `load`: the machine's load averages before it."""

    run: str
    load: str
    rows: tuple[Compared, ...]


def write(path: Path, parts: Mapping[str, Part]) -> None:
    document = {name: dataclasses.asdict(part) for name, part in parts.items()}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> dict[str, Part]:
    """The parts by module; none if there is no such file."""
    if not path.exists():
        return {}
    document: dict[str, Any] = json.loads(path.read_text())
    return {name: Part(each["run"], each["load"], tuple(map(_row, each["rows"]))) for name, each in document.items()}


def _row(found: Mapping[str, Any]) -> Compared:
    spreads = (
        Spread(**found[name] | {"samples": tuple(found[name]["samples"])}) for name in ("ours", "theirs", "times")
    )
    return Compared(Comparison(**found["asked"]), *spreads)
