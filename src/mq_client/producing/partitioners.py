"""Which partition a record goes to when its publisher names none: the choices of `Producer(partitioner=…)`.

    key           by the hash of the key, as Kafka's default; records without a key to the partitions in turn, a few
                  dozen each
    sticky        whatever the key: to one partition until its batch is full or sent, then to the next
    round_robin   whatever the key: each record to the next partition
    random        whatever the key: each record to any partition
    a callable    `partitioner(topic, key, partitions)` answers 0 to partitions - 1. `key`: bytes or None
    another name  a callable that an installed package has under the entry point group `tritonmq.partitioners`

A record with a UUID and without a key of which the choice depends goes by its UUID, or it would not meet its first
copy.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from mq_client.errors import InvalidSetting, UnknownPartition
from mq_client.plugins import load_plugin, plugin_names
from mq_protocol.names import did_you_mean

Partitioner: TypeAlias = Callable[[str, bytes | None, int], int]

GROUP: Final = "tritonmq.partitioners"
_BUILT_IN: Final = ("key", "sticky", "round_robin", "random")


class Choice(NamedTuple):
    """`pick`: None if the accumulator chooses among all partitions. `by_key`: a key decides, by hash if there is no
    `pick`. `sticks`: the accumulator changes the partition with the batch alone."""

    pick: Partitioner | None
    by_key: bool
    sticks: bool = False


def choice_of(given: str | Partitioner) -> Choice:
    """What `Producer(partitioner=…)` means. Raises `InvalidSetting` for a name that is not known."""
    if callable(given):
        return Choice(_checked(given), by_key=True)
    match given:
        case "key":
            return Choice(None, by_key=True)
        case "sticky":
            return Choice(None, by_key=False, sticks=True)
        case "round_robin":
            turns: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
            return Choice(lambda topic, key, partitions: next(turns[topic]) % partitions, by_key=False)
        case "random":
            return Choice(lambda topic, key, partitions: random.randrange(partitions), by_key=False)  # noqa: S311 - spreads load
        case _:
            return Choice(_checked(_plugin(given)), by_key=True)


def _plugin(given: str) -> Partitioner:
    found = load_plugin(GROUP, given) if isinstance(given, str) else None
    if found is None:
        known = (*_BUILT_IN, *plugin_names(GROUP))
        raise InvalidSetting(
            f"partitioner={given!r} is not known{did_you_mean(str(given), known)} (it is one of {', '.join(known)}, or "
            "a callable)"
        )
    if not callable(found):
        raise InvalidSetting(
            f"partitioner={given!r} is {type(found).__name__} in the package that has it, not a callable"
        )
    plugin: Partitioner = found
    return plugin


def _checked(partitioner: Partitioner) -> Partitioner:
    def pick(topic: str, key: bytes | None, partitions: int) -> int:
        answer = partitioner(topic, key, partitions)
        try:
            chosen = operator.index(answer)
        except TypeError:
            chosen = -1
        if not 0 <= chosen < partitions:
            raise UnknownPartition(
                f"the partitioner answered {answer!r} for a record of topic {topic!r}: it has 0 to {partitions - 1}"
            )
        return chosen

    return pick
