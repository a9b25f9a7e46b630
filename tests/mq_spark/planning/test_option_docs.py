"""The page that sets Kafka's options beside ours: complete, with the code's defaults, and a test for every row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mq_spark.planning import options
from mq_spark.planning.option_values import EARLIEST, LATEST, mentions
from mq_spark.planning.options import SinkOptions, SourceOptions, parse_sink, parse_source

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "kafka-options.md").read_text()
FILES = {
    "unit": sorted((ROOT / "tests" / "mq_spark").rglob("test_*.py")),
    "readers": [ROOT / "tests/mq_spark/datasource/test_readers.py"],
    "read_from": [ROOT / "tests/mq_spark/datasource/test_read_from.py"],
    "source": [ROOT / "tests/spark/test_source.py"],
    "sink": [ROOT / "tests/spark/test_sink.py"],
    "errors": [ROOT / "tests/spark/test_errors.py"],
    "suites": sorted((ROOT / "tests/spark/suites").glob("*.py")),
    "crashes": [ROOT / "tests/spark/test_crashes.py"],
}
"""`unit` needs no broker; `readers` and `read_from` make Spark's calls on a real broker; the others run real Spark."""

READING = {
    "kafka.bootstrap.servers": ["unit: test_kafkas_name_for_the_brokers_is_an_alias"],
    "subscribe": ["suites: whole_topics"],
    "subscribePattern": ["readers: test_a_pattern_is_looked_for_between_runs_and_while_one_goes_on"],
    "assign": ["readers: test_partitions_that_are_added_and_those_that_are_assigned"],
    "includeHeaders": ["sink: test_headers_survive_the_way_in_and_out"],
    "kafka.group.id, groupIdPrefix": [
        "source: test_progress_is_seen_at_the_brokers_under_the_querys_id_or_the_name_that_was_given"
    ],
    "kafka.client.rack": ["read_from: test_a_task_reads_from_the_replica_in_its_rack"],
    "readFrom": ["unit: test_reads_go_to_the_leader_unless_any_replica_will_do"],
    "includeMetadata": ["source: test_a_typed_topic_streams_its_own_columns_and_its_metadata_on_request"],
    ".schema(...)": ["readers: test_what_the_broker_leaves_out_is_not_sent"],
    "filter": ["source: test_a_filter_keeps_what_sparks_own_would_keep"],
    "startingOffsets": ["suites: from_offsets"],
    "startingTimestamp": ["readers: test_a_stream_begins_at_a_time_or_says_that_nothing_follows_it"],
    "startingOffsetsByTimestamp": ["suites: times"],
    "startingOffsetsByTimestampStrategy": ["readers: test_a_stream_begins_at_a_time_or_says_that_nothing_follows_it"],
    "endingOffsets, batch": ["suites: explicit"],
    "endingTimestamp, endingOffsetsByTimestamp, batch": ["suites: times"],
    "failOnDataLoss": [
        "readers: test_a_topic_that_was_made_again_is_read_from_its_first_record_or_ends_the_query",
        "readers: test_rows_that_retention_has_removed_are_a_loss_and_may_be_passed_over",
    ],
    "maxOffsetsPerTrigger": ["suites: rows_max"],
    "minOffsetsPerTrigger, maxTriggerDelay": [
        "suites: rows_min",
        "unit: test_a_micro_batch_waits_for_enough_rows_until_its_time_is_up",
    ],
    "minPartitions, maxRecordsPerPartition": ["source: test_a_task_has_no_more_rows_than_max_records_per_partition"],
    "maxBytesPerTrigger": [
        "readers: test_limits_of_rows_and_bytes_hold_together_and_neither_holds_for_all_that_is_available"
    ],
    "kafkaConsumer.pollTimeoutMs, fetchOffset.numRetries, fetchOffset.retryIntervalMs": [
        "unit: test_what_only_tunes_kafkas_client_is_passed_over_with_one_warning"
    ],
    "kafka.isolation.level": ["unit: test_what_may_not_be_dropped_in_silence_is_refused_with_what_to_do"],
    "other kafka.…": [
        "unit: test_what_only_tunes_kafkas_client_is_passed_over_with_one_warning",
        "unit: test_what_may_not_be_dropped_in_silence_is_refused_with_what_to_do",
    ],
    "requestTimeoutMs, also of the sink": [
        "errors: test_nobody_listening_is_said_within_the_deadline_and_names_the_address"
    ],
}
WRITING = {
    "columns key, value, headers, topic, partition": [
        "sink: test_a_batch_write_puts_each_row_where_it_asks_to_be",
        "sink: test_headers_survive_the_way_in_and_out",
    ],
    "topic": ["sink: test_rows_may_name_their_topics"],
    "includeHeaders": ["unit: test_kafkas_sink_takes_include_headers_and_so_does_this_one"],
    "append, complete": ["sink: test_complete_mode_appends_every_result_as_kafkas_sink_does"],
    "update": ["sink: test_update_mode_is_refused_by_spark_and_goes_by_for_each_batch_each_change_once"],
    "keyColumn": ["sink: test_typed_rows_go_where_the_producer_would_put_them_by_the_same_key_column"],
    "a column partition of typed rows": ["sink: test_typed_rows_go_to_the_partition_that_they_name"],
    "onReplayMismatch": [
        "crashes: "
        "test_a_micro_batch_whose_log_was_lost_and_that_is_planned_again_wider_is_refused_or_kept_and_never_doubled"
    ],
    "txnAppId, txnVersion": ["sink: test_a_batch_write_with_an_application_and_a_version_is_written_once"],
}
"""The rows of the page's tables by their first words, and what shows that they hold."""

BESIDE_THE_TABLES = {
    "added partitions": ["readers: test_partitions_that_are_added_and_those_that_are_assigned"],
    "several starts": ["unit: test_one_time_counts_before_times_and_times_before_offsets_as_with_kafka"],
    "AvailableNow": [
        "readers: test_a_pattern_is_looked_for_between_runs_and_while_one_goes_on",
        "readers: test_partitions_that_are_added_and_those_that_are_assigned",
    ],
}

TOLD = {"bootstrap.servers": "127.0.0.1:1"}


def rows(title: str) -> list[str]:
    """The first words of each row of the sections whose titles begin so: Kafka's name, or ours where Kafka has none."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        if section.startswith(title):
            for line in section.splitlines():
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                if line.startswith("| ") and cells[0] != "Kafka's connector":
                    found.append((cells[0] if cells[0] != "—" else cells[1].partition("`: `")[0]).replace("`", ""))
    return found


def default(option: str) -> str:
    """What a table says of an option's default."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and f"`{option}`" in " ".join(cells[:2]):
            return cells[2]
    raise LookupError(option)


def test_every_option_is_on_the_page() -> None:
    names = {*options._SOURCE, *options._SINK, *options._BOTH}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []


def test_every_row_of_the_page_has_a_test_that_shows_it() -> None:
    assert sorted(rows("Reading")) == sorted(READING)
    assert sorted(rows("Writing")) == sorted(WRITING)


@pytest.mark.parametrize(
    "shown", [*READING.values(), *WRITING.values(), *BESIDE_THE_TABLES.values()], ids=lambda shown: shown[0]
)
def test_every_test_that_is_to_show_a_row_is_there(shown: list[str]) -> None:
    for each in shown:
        where, _, test = each.partition(": ")
        assert any(f"def {test}(" in path.read_text() for path in FILES[where]), each


def stream() -> SourceOptions:
    return parse_source({**TOLD, "subscribe": "t"}, streaming=True)


def batch() -> SourceOptions:
    return parse_source({**TOLD, "subscribe": "t"}, streaming=False)


def sink() -> SinkOptions:
    return parse_sink({**TOLD, "topic": "t"}, streaming=True)


def written(value: object) -> str:
    """A default as the tables write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_the_defaults_that_are_written_are_those_of_the_code() -> None:
    assert (mentions(stream().starting, LATEST), mentions(batch().starting, EARLIEST)) == (True, True)
    assert default("startingOffsets") == "**`latest`** for a stream, **`earliest`** for a batch"
    assert mentions(batch().ending, LATEST)
    assert default("endingOffsets") == "`latest`"
    assert default("failOnDataLoss") == f"`{written(stream().fail_on_data_loss)}`"
    assert default("includeMetadata") == f"`{written(stream().include_metadata)}`"
    assert default("includeHeaders") == f"`{written(stream().include_headers)}`"
    assert stream().max_trigger_delay_s == 15 * 60
    assert default("maxTriggerDelay") == "none; `15m`"
    assert default("groupIdPrefix").endswith(f"`{stream().group_id_prefix}`")
    assert default("requestTimeoutMs") == f"{stream().timeout_ms}; {sink().timeout_ms} for the sink"
    assert not sink().keep_on_mismatch
    assert default("onReplayMismatch") == "`fail`"
    assert (stream().max_offsets_per_trigger, stream().max_bytes_per_trigger, stream().max_records_per_partition) == (
        None,
    ) * 3
    assert default("maxOffsetsPerTrigger") == "no limit"
    assert re.fullmatch("`leader`(; none)?", default("readFrom"))
