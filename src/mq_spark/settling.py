"""`settle`: what a batch read of a queue group was lent is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_protocol.errors import InvalidRequest
from mq_spark.datasource.lease_batch import lent_to, settle_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def settle(rows: DataFrame) -> int:
    """Settle the records that the batch read was lent which these rows are of (`lease.group`), all of them, whatever
    was filtered out since. Returns how many records there were. Said again, it changes nothing.

    `rows`: the DataFrame of the read, or one that has a column of it. Of a join of several reads, all are settled.
    Raises `InvalidRequest` for a DataFrame without such a column, `LeaseLost` if others were lent some records
    meanwhile: it names them, and all others are settled. Other `TritonMQError`s: it is not known what is settled, call
    it again.
    """
    reads = lent_to(rows.schema)
    if not reads:
        raise InvalidRequest(
            "settle knows what was read by a column of a batch read with lease.group, and this DataFrame has none: "
            "give the DataFrame that load() returned; a stream settles by itself"
        )
    return settle_all(reads)
