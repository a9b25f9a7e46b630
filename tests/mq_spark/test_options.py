"""Options: what is refused, with which first words, and what the right ones come to."""

from __future__ import annotations

import pytest

from mq_protocol.errors import InvalidSetting
from mq_spark.options import EARLIEST, LATEST, parse_sink, parse_source

SOURCE = {"bootstrap.servers": "a:1", "subscribe": "t"}
SINK = {"bootstrap.servers": "a:1", "topic": "t"}


def source_error(streaming: bool = True, **extra: str) -> str:
    with pytest.raises(InvalidSetting) as caught:
        parse_source({**SOURCE, **extra}, streaming=streaming)
    return str(caught.value)


def sink_error(streaming: bool = True, **extra: str) -> str:
    with pytest.raises(InvalidSetting) as caught:
        parse_sink({**SINK, **extra}, streaming=streaming)
    return str(caught.value)


def test_a_stream_begins_at_latest_and_a_batch_read_at_earliest_as_with_kafka() -> None:
    assert parse_source(SOURCE, streaming=True).starting == LATEST
    batch = parse_source(SOURCE, streaming=False)
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)


def test_names_are_read_in_any_case_because_spark_lowers_them() -> None:
    options = parse_source(
        {**SOURCE, "startingoffsets": "EARLIEST", "maxoffsetspertrigger": "5", "INCLUDEHEADERS": "True"}, streaming=True
    )
    assert (options.starting, options.max_offsets_per_trigger, options.include_headers) == (EARLIEST, 5, True)


def test_topics_are_a_comma_list_in_a_stable_order_without_doubles() -> None:
    assert parse_source({**SOURCE, "subscribe": "b, a,,b"}, streaming=True).topics == ("a", "b")


def test_kafkas_name_for_the_brokers_is_an_alias() -> None:
    options = parse_source({"kafka.bootstrap.servers": "a:1, b:2", "subscribe": "t"}, streaming=True)
    assert options.bootstrap == "a:1,b:2"
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers is given twice"):
        parse_source({**SOURCE, "kafka.bootstrap.servers": "c:3"}, streaming=True)


def test_an_unknown_option_is_answered_with_the_nearest_right_one() -> None:
    assert source_error(startingOffset="latest") == "unknown option 'startingOffset': did you mean 'startingOffsets'?"
    assert sink_error(topics="t") == "unknown option 'topics': did you mean 'topic'?"
    assert "options are: bootstrap.servers" in source_error(zebra="1")
    assert "did you mean 'kafka.group.id'?" in source_error(**{"kafka.groupid": "g"})
    assert "TritonMQ has no Kafka client" in source_error(**{"kafka.ssl.truststore.location": "x"})


@pytest.mark.parametrize("name", ["assign", "subscribePattern", "startingTimestamp", "filter", "maxBytesPerTrigger"])
def test_a_promised_option_that_is_not_there_yet_is_refused_and_never_ignored(name: str) -> None:
    assert source_error(**{name.lower(): "x"}).startswith(f"option {name} is not supported yet: ")


def test_options_of_the_other_side_are_named_as_such() -> None:
    assert source_error(topic="t").startswith("option topic belongs to the sink")
    assert sink_error(subscribe="t").startswith("option subscribe belongs to the source")


def test_missing_options_say_how_to_write_them() -> None:
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers is missing"):
        parse_source({"subscribe": "t"}, streaming=True)
    with pytest.raises(InvalidSetting, match="subscribe is missing"):
        parse_source({"bootstrap.servers": "a:1"}, streaming=True)


@pytest.mark.parametrize("text", ["localhost", ":7400", "a:", "a:x", "a:0", "a:70000", ","])
def test_a_broker_address_is_host_and_port(text: str) -> None:
    assert source_error(**{"bootstrap.servers": text}).startswith("bootstrap.servers ")


def test_starting_offsets_may_be_given_a_partition_at_a_time() -> None:
    options = parse_source({**SOURCE, "startingOffsets": '{"t":{"0":23,"1":-2,"2":-1}}'}, streaming=True)
    assert options.starting == {"t": {0: 23, 1: EARLIEST, 2: LATEST}}


@pytest.mark.parametrize(
    "text", ["earlist", "{", '{"t":3}', '{"t":{"x":1}}', '{"t":{"0":-3}}', '{"t":{"0":true}}', '{"t":{"-1":0}}', "[]"]
)
def test_offsets_that_are_not_understood_are_answered_with_their_form(text: str) -> None:
    assert source_error(startingOffsets=text).startswith("startingOffsets")


def test_offsets_must_name_the_topics_that_are_subscribed_to() -> None:
    assert source_error(startingOffsets='{"u":{"0":1}}') == (
        "startingOffsets names u, subscribe names t: name the same topics in both"
    )


def test_what_has_no_meaning_in_a_stream_or_in_a_batch_read_is_refused() -> None:
    assert source_error(endingOffsets="latest").startswith("endingOffsets has no meaning in a stream")
    assert source_error(streaming=False, maxOffsetsPerTrigger="1").startswith("maxOffsetsPerTrigger has no meaning in a batch read")
    assert source_error(streaming=False, startingOffsets="latest").startswith("startingOffsets of a batch read cannot be latest")
    assert source_error(streaming=False, endingOffsets="earliest").startswith("endingOffsets cannot be earliest")
    assert source_error(path="x").startswith("a path has no meaning here")


@pytest.mark.parametrize(
    ("name", "value"), [("maxOffsetsPerTrigger", "0"), ("maxOffsetsPerTrigger", "many"), ("failOnDataLoss", "maybe")]
)
def test_values_that_cannot_be_are_refused_by_name(name: str, value: str) -> None:
    assert source_error(**{name: value}).startswith(f"{name}=")


def test_a_stream_may_wait_for_more_rows_but_not_for_longer_than_it_says() -> None:
    options = parse_source({**SOURCE, "minOffsetsPerTrigger": "5"}, streaming=True)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_s) == (5, 900)
    assert parse_source({**SOURCE, "maxTriggerDelay": "1500 ms"}, streaming=True).max_trigger_delay_s == 1.5
    assert source_error(maxTriggerDelay="soon").startswith("maxTriggerDelay='soon' is not a time")
    assert source_error(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4").startswith("minOffsetsPerTrigger=5 is above")


def test_a_sink_writes_to_its_topic_or_to_the_one_each_row_names() -> None:
    assert parse_sink(SINK, streaming=True).topic == "t"
    assert parse_sink({"bootstrap.servers": "a:1"}, streaming=True).topic is None
    assert sink_error(topic="").startswith("topic is empty")


def test_what_spark_itself_puts_among_a_writers_options_is_let_through() -> None:
    assert parse_sink({**SINK, "checkpointlocation": "/x", "queryname": "q"}, streaming=True).topic == "t"


def test_asynchronous_progress_tracking_is_refused_and_so_is_the_hidden_way_around_it() -> None:
    assert "exactly once rests on that" in sink_error(asyncProgressTrackingEnabled="true")
    assert "exactly once rests on that" in sink_error(_asyncProgressTrackingOverrideSinkSupportCheck="true")
    assert parse_sink({**SINK, "asyncProgressTrackingEnabled": "false"}, streaming=True).topic == "t"


def test_a_batch_write_is_idempotent_by_both_names_or_by_neither() -> None:
    options = parse_sink({**SINK, "txnAppId": "etl", "txnVersion": "7"}, streaming=False)
    assert (options.txn_app_id, options.txn_version) == ("etl", 7)
    assert sink_error(streaming=False, txnAppId="etl").startswith("txnVersion is missing")
    assert sink_error(streaming=False, txnVersion="7").startswith("txnAppId is missing")
    assert sink_error(streaming=True, txnAppId="etl", txnVersion="7").startswith("txnAppId and txnVersion belong to df.write")


def test_on_replay_mismatch_is_fail_or_keep() -> None:
    assert not parse_sink(SINK, streaming=True).keep_on_mismatch
    assert parse_sink({**SINK, "onReplayMismatch": "keep"}, streaming=True).keep_on_mismatch
    assert "did you mean 'keep'?" in sink_error(onReplayMismatch="keeep")
