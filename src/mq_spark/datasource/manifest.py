"""What a micro-batch wrote: the tasks' messages, and the manifest that they come to.

Pure. A commit runs in another process than the tasks, in a fresh object: all that it knows is in these messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from mq_protocol.errors import InvalidRequest
from mq_protocol.manifest import StagedPart, by_partition

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


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """All that the driver will know of a task."""

    micro_batch: MicroBatch
    staged: tuple[StagedPart, ...]


def manifest_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[MicroBatch, list[StagedPart]]:
    """The micro-batch that all messages belong to, and what they staged, a line for each partition: topics by name,
    partitions by number, batches in the order of the tasks. Raises `InvalidRequest` if a message is missing or they
    contradict each other.
    """
    given = [message for message in messages if isinstance(message, StagedMessage)]
    if messages and not any(messages):
        raise InvalidRequest(
            "Spark has handed no row to this sink, as it does under trigger(continuous=…), which no sink in Python can "
            "have: nothing is written; stop the query, and start it with trigger(processingTime=…)"
        )
    if len(given) < len(messages) or not given:
        raise InvalidRequest(
            f"{len(messages) - len(given)} of {len(messages)} tasks left no message: nothing can be committed"
        )
    micro_batches = {message.micro_batch for message in given}
    if len(micro_batches) > 1:
        named = "; ".join(sorted(map(str, micro_batches)))
        raise InvalidRequest(f"the tasks of one commit name several micro-batches, restart the query: {named}")
    lines = by_partition(part for message in given for part in message.staged)
    return given[0].micro_batch, sorted(lines, key=lambda line: (line.topic, line.partition, line.topic_id))
