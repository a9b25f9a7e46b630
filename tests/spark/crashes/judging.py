"""What came out, compared with what went in. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many rows came out too often, how many too seldom, and what came out of its micro-batch's turn."""

    duplicates: int
    losses: int
    disorder: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return self == Verdict(0, 0)

    def __str__(self) -> str:
        return f"{self.duplicates} duplicates, {self.losses} losses" + "".join(f"; {each}" for each in self.disorder)


def compare(expected: Counter[tuple[str, str]], found: Counter[tuple[str, str]]) -> Verdict:
    """Multisets of `(topic, value)`: a row in the wrong topic is a duplicate there and a loss here."""
    return Verdict((found - expected).total(), (expected - found).total())


def disorder(logs: Mapping[str, Sequence[str]], micro_batch_of: Mapping[str, int]) -> tuple[str, ...]:
    """What breaks the order of micro-batches. `logs`: the values of each output partition in their order.

    A micro-batch becomes visible in a partition at once and after the one before it, so their numbers never fall.
    """
    wrong = []
    for name, values in logs.items():
        last = -1
        for value in values:
            number = micro_batch_of.get(value)
            if number is None:
                continue
            if number < last:
                wrong.append(f"{name}: {value} of micro-batch {number} stands behind micro-batch {last}")
                break
            last = number
    return tuple(wrong)


def micro_batches_of(places: Iterable[tuple[str, int, int]], ends: Mapping[int, Mapping[int, int]]) -> dict[str, int]:
    """Which micro-batch read each value. `places`: (value, partition, offset); `ends`: micro-batch to its end offsets
    by partition.

    Left out are values that several micro-batches read, and what none has read yet.
    """
    found: dict[str, int] = {}
    several: set[str] = set()
    for value, partition, offset in places:
        number = min((batch for batch, end in ends.items() if offset < end.get(partition, 0)), default=None)
        if number is None:
            continue
        if found.setdefault(value, number) != number:
            several.add(value)
    return {value: number for value, number in found.items() if value not in several}


def places_of_files(file_of: Mapping[str, str], source_log: Iterable[str]) -> list[tuple[str, int, int]]:
    """Places, as `micro_batches_of` takes them, of values read from files. `file_of`: the name of each value's file;
    `source_log`: the lines of Spark's log of files seen. Their place in that log is the offset that micro-batches end
    at: one that is planned anew may take several."""
    entries = [json.loads(line) for line in source_log if line.startswith("{")]
    place_of = {entry["path"].rpartition("/")[2]: int(entry["batchId"]) for entry in entries}
    return [(value, 0, place_of[name]) for value, name in file_of.items() if name in place_of]
