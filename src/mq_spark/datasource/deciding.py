"""What the driver does to commit: have the coordinator decide the manifest. Used by streams and batch writes alike."""

from __future__ import annotations

from collections.abc import Sequence

from mq_protocol.manifest import StagedPart
from mq_spark.datasource.cluster import connect
from mq_spark.datasource.failpoints import reached
from mq_spark.datasource.manifest import MicroBatch
from mq_spark.planning.options import SinkOptions


def decide(options: SinkOptions, micro_batch: MicroBatch, manifest: Sequence[StagedPart]) -> None:
    """Have the micro-batch decided and published: returns when every partition has published it, here or long ago.

    Asks again until the deadline (the same key gives the same answer), and then raises. Raises `ReplayMismatch`,
    `StaleMicroBatch`, `FencedRun`, `StagedBatchMissing` for what asking again cannot mend.
    """
    reached("before_decide", micro_batch.batch_id)
    connect(options).decide(micro_batch, manifest, keep_on_mismatch=options.keep_on_mismatch)
    reached("after_decide", micro_batch.batch_id)
