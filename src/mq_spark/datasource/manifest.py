"""What a micro-batch wrote: the tasks' messages, and the manifest that they come to.

Pure. A commit runs in another process than the tasks, in a fresh object: all that it knows is in these messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from mq_protocol.errors import InvalidRequest

WRITE_PREFIX: Final = "write:"
"""How the query ids of batch writes begin that have no name of their own. Those of named ones begin with "app:"."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The unit of deduplication: under the key `(query_id, sink)` batch ids only grow. `run_id` tells two drivers
    apart."""

    query_id: str
    sink: str
    batch_id: int
    run_id: str

    @property
    def once(self) -> bool:
        """The key was made for this write alone (a batch write without txnAppId): it need not be remembered for
        long."""
        return self.query_id.startswith(WRITE_PREFIX)


@dataclass(frozen=True, slots=True)
class Staged:
    """Staged batches of one partition, in the order of their rows. UUIDs are 16 bytes. `topic_id` is the topic's of
    that moment."""

    topic: str
    partition: int
    uuids: tuple[bytes, ...]
    row_count: int
    topic_id: str = ""


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """All that the driver will know of a task."""

    micro_batch: MicroBatch
    staged: tuple[Staged, ...]


def manifest_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[MicroBatch, list[Staged]]:
    """The micro-batch that all messages belong to, and what they staged, a line for each partition: topics by name,
    partitions by number, batches in the order of the tasks. Raises `InvalidRequest` if a message is missing or they
    contradict each other.
    """
    given = [message for message in messages if isinstance(message, StagedMessage)]
    if len(given) < len(messages) or not given:
        raise InvalidRequest(
            f"{len(messages) - len(given)} of {len(messages)} tasks left no message: nothing can be committed"
        )
    micro_batches = {message.micro_batch for message in given}
    if len(micro_batches) > 1:
        named = "; ".join(sorted(map(str, micro_batches)))
        raise InvalidRequest(f"the tasks of one commit name several micro-batches, restart the query: {named}")
    lines: dict[tuple[str, int, str], Staged] = {}
    for staged in (staged for message in given for staged in message.staged):
        place = staged.topic, staged.partition, staged.topic_id
        before = lines.get(place)
        uuids, row_count = (before.uuids, before.row_count) if before is not None else ((), 0)
        lines[place] = Staged(
            staged.topic, staged.partition, uuids + staged.uuids, row_count + staged.row_count, staged.topic_id
        )
    return given[0].micro_batch, [lines[place] for place in sorted(lines)]
