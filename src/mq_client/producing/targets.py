"""A topic that is written to, and its batches that are open. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from mq_client.cluster.connection import TopicView
from mq_client.producing.batches import RECORD_OVERHEAD_BYTES, records_to_batch
from mq_client.producing.futures import BatchOutcome
from mq_client.producing.lanes import USUAL, Attributes
from mq_client.producing.rows import RowShape
from mq_protocol import limits

OTHERS_MAX: Final = 64
"""Of a topic: places where records of other attributes are gathered, beside those in which some are."""

_T = TypeVar("_T")


class OpenBatch:
    """Records of one partition, a list a column, until the batch closes. Of a typed topic: `rows`.

    Most records are a value and no more, so `keys` and `headers` end with the last record that has any: the rest have
    none. `clock_ns` is when each record came; the few whose timestamp was given are in `given_us`, by their place in
    the batch. Either each record has a UUID of its own, or none has.

    A signal's exception may come between any two calls of the main thread: what was appended by then is cut off again.
    """

    __slots__ = (
        "clock_ns",
        "given_us",
        "headers",
        "keys",
        "opened_at",
        "outcome",
        "rows",
        "size",
        "traceparent",
        "uuids",
        "values",
    )

    def __init__(self, topic: str, now: float) -> None:
        self.values: list[bytes | None] = []
        self.clock_ns: list[int] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Sequence[tuple[str, bytes | None]] | None] = []
        self.given_us: dict[int, int] = {}
        self.rows: list[Sequence[Any]] = []
        self.uuids: dict[bytes, int] = {}  # each record's own, in order; or none has one
        self.traceparent = b""  # of the first record that has one
        self.size = 0
        self.opened_at = now
        self.outcome = BatchOutcome(topic)

    def cut(self, count: int) -> None:
        """There are `count` records, and nothing of another."""
        for column in (self.values, self.clock_ns, self.keys, self.headers, self.rows):
            del column[count:]
        self.given_us.pop(count, None)
        for uuid in [uuid for uuid, index in self.uuids.items() if index >= count]:
            del self.uuids[uuid]

    def built(self) -> pa.RecordBatch:
        """The records as a batch of a topic of records."""
        timestamps_us = np.array(self.clock_ns, np.int64) // 1000
        for index, given in self.given_us.items():
            timestamps_us[index] = given
        return records_to_batch(self.keys, self.values, self.headers, timestamps_us)


def fits_uuid(batch: OpenBatch, uuid: bytes | None) -> bool:
    """Whether a record with that UUID, or with none, may join the batch."""
    if uuid is None:
        return not batch.uuids
    return bool(batch.uuids) and uuid not in batch.uuids and len(batch.uuids) < limits.RECORD_UUIDS_MAX


def put(column: list[_T | None], index: int, item: _T) -> None:
    """At `index` of a column that may end before it: see `OpenBatch`."""
    column += [None] * (index - len(column))
    column.append(item)


class Target:
    """A topic that is written to: what the producer needs of it, its open batches, and the partition that keyless
    records go to.

    Records without a key take turns among a few partitions from `first` on, some dozens to each; when a batch closes,
    from another one on. So few come to have full batches instead of many to have small ones, and still not one to have
    all. `others` gather records of other attributes than `attributes`.
    """

    __slots__ = (
        "_room",
        "attributes",
        "batch_bytes_max",
        "dropped",
        "first",
        "open",
        "others",
        "plain_size_max",
        "record_bytes_max",
        "rows",
        "sticky",
        "view",
    )

    def __init__(self, view: TopicView, batch_bytes_max: int, random: Random, attributes: Attributes = USUAL) -> None:
        self.view = view
        self.attributes = attributes
        self.others: dict[Attributes, Target] = {}
        self._room = OTHERS_MAX
        self.dropped = False  # the topic has changed: another stands for it, or will
        self.batch_bytes_max = min(batch_bytes_max, view.settings.batch_bytes_max - limits.BATCH_OVERHEAD_BYTES)
        self.record_bytes_max = view.settings.record_bytes_max
        # Of what `add_plain` takes
        self.plain_size_max = -1 if view.typed else self.record_bytes_max + RECORD_OVERHEAD_BYTES
        self.rows = RowShape(view.schema, view.name) if view.typed else None
        self.open: list[OpenBatch | None] = [None] * view.partitions
        self.first = self.sticky = random.randrange(view.partitions)

    def make_room(self) -> None:
        """Forget others in which nothing is gathered: each record may have attributes of its own."""
        if len(self.others) >= self._room:
            self.others = {each: other for each, other in self.others.items() if any(other.open)}
            self._room = 2 * len(self.others) + OTHERS_MAX
