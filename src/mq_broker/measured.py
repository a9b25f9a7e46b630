"""What a broker's process counts, each instrument once: whoever does something adds to it, in one line.

A process runs one broker, so the instruments are the module's. The core counts nothing: what it decides is counted
where the shell carries it out. What each means to a reader is in docs/metrics.md.
"""

from __future__ import annotations

import logging
from typing import Final

from mq_process.measures import Counts, Durations
from mq_protocol.access.quotas import RATES, Quota

REQUESTS: Final = Counts("requests_total", "Requests and streams that have ended.", "method", "code")
REQUEST_SECONDS: Final = Durations("request_seconds", "How long one request took to be answered.", "method")
IN_FLIGHT: Final = Counts("requests_in_flight", "Requests that are being answered.", "method")
STREAMS: Final = Counts("streams", "Streams that are open.", "method")

FORWARDED: Final = Counts("forwarded_total", "Calls of clients that were passed on to another broker.", "method")

PRODUCE_SECONDS: Final = Durations("produce_seconds", "From reading a batch to its answer.", "acks")
PRODUCE_BATCHES: Final = Counts("produce_batches_total", "Batches that were answered.", "code")

LOOP_LAG: Final = Durations("loop_lag_seconds", "How late the event loop came to a tick that was due.")
LOOP_HELD: Final = Durations("loop_held_seconds", "How much of that the loop's own thread was at work.")
COLLECTION: Final = Durations(
    "garbage_collection_seconds", "Processor time of a pass of Python's collector, in which nothing else runs.",
    "generation",
)  # fmt: skip

WRITER_ROUND: Final = Durations("writer_round_seconds", "A round of the thread that writes the journals.")
WRITER_BYTES: Final = Counts("writer_bytes_total", "Bytes of entries that it took.")
FSYNC: Final = Durations("fsync_seconds", "A sync of one journal.", "kind")
FSYNC_FAILURES: Final = Counts("fsync_failures_total", "Syncs that failed.")
SCRUBBED_BYTES: Final = Counts("scrubbed_bytes_total", "Stored bytes that the scrub has verified.")
SCRUB_DAMAGE: Final = Counts("scrub_damage_total", "Journals in which the scrub found damage.")
DISK_REFUSALS: Final = Counts("disk_refusals_total", "Appends that the disk did not take.")

LINK_DROPPED: Final = Counts("link_dropped_total", "Messages to a broker that found its buffer full.", "peer")
LINK_BYTES: Final = Counts("link_bytes_total", "Bytes to and from another broker.", "peer", "direction")

COORDINATION: Final = Durations("coordination_request_seconds", "How long ZooKeeper took to answer one question.")

ISR_CHANGES: Final = Counts("isr_changes_total", "In-sync sets that this broker made another.", "change")
LEADERSHIPS: Final = Counts("leaderships_total", "Leaderships that began and ended here.", "event")
ALARMS: Final = Counts("alarms_total", "Things that an operator must look at: see the log.", "alarm")
LOG_MESSAGES: Final = Counts("log_messages_total", "Lines of the log.", "level")

TOPIC_RECORDS_IN: Final = Counts("topic_records_in_total", "Records that became readable.", "topic")
TOPIC_BYTES_IN: Final = Counts("topic_bytes_in_total", "Their bytes as stored.", "topic")
TOPIC_BYTES_OUT: Final = Counts("topic_bytes_out_total", "Bytes of batches that were sent to clients.", "topic", "to")

SINK_DECISIONS: Final = Counts("sink_decisions_total", "Micro-batches that were decided here.", "outcome")

QUOTA_WAITS: Final = Counts("quota_wait_seconds_total", "Seconds for which quotas held clients back.", "quota")
QUOTA_REFUSALS: Final = Counts("quota_refusals_total", "Requests that quotas refused.", "quota")

ALL: Final = (
    REQUESTS, REQUEST_SECONDS, IN_FLIGHT, STREAMS, PRODUCE_SECONDS, PRODUCE_BATCHES, LOOP_LAG, LOOP_HELD, COLLECTION,
    WRITER_ROUND, WRITER_BYTES, FSYNC, FSYNC_FAILURES, SCRUBBED_BYTES, SCRUB_DAMAGE,
    DISK_REFUSALS, LINK_DROPPED, LINK_BYTES, COORDINATION, ISR_CHANGES,
    LEADERSHIPS, ALARMS, LOG_MESSAGES, TOPIC_RECORDS_IN, TOPIC_BYTES_IN, TOPIC_BYTES_OUT, SINK_DECISIONS,
    QUOTA_WAITS, QUOTA_REFUSALS, FORWARDED,
)  # fmt: skip
OF_TOPICS: Final = (TOPIC_RECORDS_IN, TOPIC_BYTES_IN, TOPIC_BYTES_OUT)
GAUGES: Final = (IN_FLIGHT, STREAMS)
"""Of those that count: what goes down again."""

for _alarm in (
    "altered", "audit", "damage", "keys_away", "log_replaced", "member_idle", "old_directory", "queue_stuck",
    "ready_without_sync", "sealed_away",
):  # fmt: skip
    ALARMS.add(_alarm, n=0)  # a rule that looks at increases needs the zero before
for _quota in Quota:
    QUOTA_REFUSALS.add(_quota, n=0)
for _quota in RATES:
    QUOTA_WAITS.add(_quota, n=0)
for _level in ("warning", "error"):
    LOG_MESSAGES.add(_level, n=0)
for _event in ("taken", "lost"):
    LEADERSHIPS.add(_event, n=0)
for _change in ("shrunk", "expanded"):
    ISR_CHANGES.add(_change, n=0)


class LogCounter(logging.Handler):
    """Counts what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """One line more."""
        LOG_MESSAGES.add("error" if record.levelno >= logging.ERROR else "warning")
