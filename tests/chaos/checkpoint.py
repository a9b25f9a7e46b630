"""What a streaming query's checkpoint says that it has done. Reads Spark's files; needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class MicroBatch(NamedTuple):
    """One that Spark planned: the source's offsets by partition, `start` to `end` - 1. `committed`: Spark knows it to
    be done."""

    number: int
    start: dict[int, int]
    end: dict[int, int]
    committed: bool


def micro_batches(checkpoint: Path, source: str) -> Iterator[MicroBatch]:
    """What the checkpoint's logs say, in order. The first is empty: what it ends with is where the stream began."""
    start: dict[int, int] = {}
    numbers = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*") if path.name.isdigit())
    for number in numbers:
        *_, offsets = (checkpoint / "offsets" / str(number)).read_text().splitlines()
        end = {int(partition): offset for partition, offset in json.loads(offsets)[source].items()}
        yield MicroBatch(number, start or end, end, (checkpoint / "commits" / str(number)).exists())
        start = end
