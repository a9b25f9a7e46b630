"""Options: what is refused, with which first words, and what the right ones come to."""

from __future__ import annotations

import pytest

from mq_protocol.errors import InvalidSetting
from mq_spark.planning.option_values import EARLIEST, LATEST, AtTime
from mq_spark.planning.options import parse_sink, parse_source

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
    assert parse_source({**SOURCE, "subscribe": "b, a,,b"}, streaming=True).subscription.topics == ("a", "b")


def test_kafkas_name_for_the_brokers_is_an_alias() -> None:
    options = parse_source({"kafka.bootstrap.servers": "a:1, b:2", "subscribe": "t"}, streaming=True)
    assert options.bootstrap == "a:1,b:2"
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers is given twice"):
        parse_source({**SOURCE, "kafka.bootstrap.servers": "c:3"}, streaming=True)


def test_an_unknown_option_is_answered_with_the_nearest_right_one() -> None:
    assert source_error(startingOffset="latest") == "unknown option 'startingOffset': did you mean 'startingOffsets'?"
    assert sink_error(topics="t") == "unknown option 'topics': did you mean 'topic'?"
    assert "options are: assign, bootstrap.servers" in source_error(zebra="1")
    assert "did you mean 'kafka.group.id'?" in source_error(**{"kafka.groupid": "g"})
    assert "did you mean 'kafka.max.poll.records'?" in source_error(**{"kafka.max.pol.records": "3"})
    assert "Kafka's clients have none of this name" in source_error(**{"kafka.zebra": "3"})


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
    assert source_error(streaming=False, maxOffsetsPerTrigger="1").startswith(
        "maxOffsetsPerTrigger has no meaning in a batch read"
    )
    assert source_error(streaming=False, startingOffsets="latest").startswith(
        "startingOffsets of a batch read cannot be latest"
    )
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
    assert source_error(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4").startswith(
        "minOffsetsPerTrigger=5 is above"
    )


def test_topics_may_be_matched_by_a_pattern_of_whole_names() -> None:
    meant = parse_source({"bootstrap.servers": "a:1", "subscribePattern": "orders-.*"}, streaming=True).subscription
    assert meant.matching(["orders-2", "orders-1", "old-orders-1", "orders"]) == ("orders-1", "orders-2")
    assert meant.covers("orders-7", 3)
    assert not meant.covers("order", 0)
    assert source_error_without_topics(subscribePattern="(").startswith(
        "subscribePattern='(' is no regular expression: "
    )
    assert source_error_without_topics(subscribePattern="").startswith("subscribePattern is empty")


def source_error_without_topics(**options: str) -> str:
    with pytest.raises(InvalidSetting) as caught:
        parse_source({"bootstrap.servers": "a:1", **options}, streaming=True)
    return str(caught.value)


def test_partitions_may_be_assigned_one_by_one() -> None:
    given = {
        "bootstrap.servers": "a:1",
        "assign": '{"u":[2,0,2],"t":[1]}',
        "startingOffsets": '{"t":{"1":5},"u":{"0":1,"2":2}}',
    }
    options = parse_source(given, streaming=True)
    meant = options.subscription
    assert (meant.topics, meant.assigned) == (("t", "u"), {"t": (1,), "u": (0, 2)})
    assert meant.partitions("u", 3) == (0, 2)
    assert meant.covers("t", 1)
    assert not meant.covers("t", 0)
    with pytest.raises(InvalidSetting, match="assign names partition 2 of topic u, which has 0 to 1"):
        meant.partitions("u", 2)


@pytest.mark.parametrize(
    "text", ["t", "{}", "[]", '{"t":0}', '{"t":[]}', '{"t":[-1]}', '{"t":["0"]}', '{"t":[true]}', "{"]
)
def test_an_assignment_that_is_not_understood_is_answered_with_its_form(text: str) -> None:
    error = source_error_without_topics(assign=text)
    assert error.startswith("assign")
    assert '(it is {"topic":[0,1],"other":[2]})' in error


def test_topics_are_named_in_one_way_only() -> None:
    assert source_error(assign='{"t":[0]}').startswith("subscribe and assign are given together")
    assert source_error(subscribePattern="t").startswith("subscribe and subscribePattern are given together")


def test_a_query_may_begin_at_a_time_and_a_batch_read_end_at_one() -> None:
    each = '{"t":{"0":1000,"1":2000}}'
    stream = parse_source({**SOURCE, "startingTimestamp": "1767225600000"}, streaming=True)
    assert stream.starting == AtTime("startingTimestamp", 1767225600000_000, otherwise_latest=False)
    latest = {"startingOffsetsByTimestamp": each, "startingOffsetsByTimestampStrategy": "Latest"}
    assert parse_source({**SOURCE, **latest}, streaming=True).starting == AtTime(
        "startingOffsetsByTimestamp", {"t": {0: 1_000_000, 1: 2_000_000}}, otherwise_latest=True
    )
    batch = parse_source({**SOURCE, "endingTimestamp": "5"}, streaming=False)
    assert batch.ending == AtTime("endingTimestamp", 5_000, otherwise_latest=True)
    assert parse_source({**SOURCE, "endingOffsetsByTimestamp": each}, streaming=False).ending == AtTime(
        "endingOffsetsByTimestamp", {"t": {0: 1_000_000, 1: 2_000_000}}, otherwise_latest=True
    )


def test_one_time_counts_before_times_and_times_before_offsets_as_with_kafka() -> None:
    several = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0":1}}'}
    assert isinstance(parse_source({**SOURCE, **several}, streaming=True).starting, AtTime)
    one = parse_source({**SOURCE, **several, "startingTimestamp": "7"}, streaming=True).starting
    assert isinstance(one, AtTime)
    assert one.option == "startingTimestamp"


def test_the_last_time_of_all_is_what_kafkas_users_write_for_never() -> None:
    never = parse_source({**SOURCE, "endingTimestamp": str(2**63 - 1)}, streaming=False).ending
    each = parse_source({**SOURCE, "endingOffsetsByTimestamp": f'{{"t":{{"0":{2**63 - 1}}}}}'}, streaming=False).ending
    assert isinstance(never, AtTime)
    assert isinstance(each, AtTime)
    assert each.times_us == {"t": {0: never.times_us}}


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "1.5", "99999999999999999999"])
def test_a_time_is_in_milliseconds_since_1970(text: str) -> None:
    assert source_error(startingTimestamp=text).startswith(
        f"startingTimestamp={text!r} is not a time: write milliseconds"
    )
    assert source_error(streaming=False, endingTimestamp=text).startswith(f"endingTimestamp={text!r} is not a time")


@pytest.mark.parametrize("text", ["5", "{", '{"t":{"0":-1}}', '{"t":{"0":"1"}}', '{"t":[1]}', '{"u":{"0":1}}'])
def test_times_that_are_not_understood_are_answered_with_their_form(text: str) -> None:
    assert source_error(startingOffsetsByTimestamp=text).startswith("startingOffsetsByTimestamp ")
    assert source_error(streaming=False, endingOffsetsByTimestamp=text).startswith("endingOffsetsByTimestamp ")


def test_the_strategy_for_times_that_nothing_follows_is_error_or_latest() -> None:
    error = source_error(startingOffsetsByTimestampStrategy="latests")
    assert error.startswith("startingOffsetsByTimestampStrategy='latests' is not known: did you mean 'latest'?")
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        assert source_error(**{name: "1"}).startswith(f"{name} has no meaning in a stream")


def test_bytes_are_written_as_spark_writes_sizes() -> None:
    for text, expected in (("1000", 1000), ("10b", 10), ("4k", 4096), ("2MB", 2 << 20), ("1g", 1 << 30)):
        assert parse_source({**SOURCE, "maxBytesPerTrigger": text}, streaming=True).max_bytes_per_trigger == expected
    for text in ("0", "-1", "1.5m", "many", "10x", ""):
        assert source_error(maxBytesPerTrigger=text).startswith(f"maxBytesPerTrigger={text!r} is not a number of bytes")
    assert source_error(streaming=False, maxBytesPerTrigger="1").startswith(
        "maxBytesPerTrigger has no meaning in a batch read"
    )


def test_a_filter_is_not_empty() -> None:
    assert parse_source({**SOURCE, "filter": "delay > 5"}, streaming=True).filter == "delay > 5"
    assert source_error(filter=" ").startswith("filter is empty")


def test_what_only_tunes_kafkas_client_is_passed_over_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "3",
        "kafka.max.poll.records": "9",
        "kafka.request.timeout.ms": "3000",
        "kafka.isolation.level": "read_committed",
    }
    for _ in range(3):
        assert parse_source({**SOURCE, **options}, streaming=True).subscription.topics == ("t",)
        assert parse_source({**SOURCE, **options}, streaming=None) == parse_source(SOURCE, streaming=None)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        f"options of Kafka's client that mean nothing here are passed over: {', '.join(sorted(options))}"
    )
    caplog.clear()
    assert parse_sink({**SINK, "kafka.acks": "all", "kafka.linger.ms": "5"}, streaming=True).topic == "t"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "kafka.acks, kafka.linger.ms" in told


def test_what_may_not_be_dropped_in_silence_is_refused_with_what_to_do() -> None:
    assert "said by startingOffsets" in source_error(**{"kafka.auto.offset.reset": "earliest"})
    assert "give the rows a column partition" in sink_error(**{"kafka.partitioner.class": "x.Y"})
    assert "is not known: did you mean 'read_committed'?" in source_error(**{"kafka.isolation.level": "read_comited"})


def test_a_table_of_sparks_catalog_serves_both_sides() -> None:
    """As Spark hands over `CREATE TABLE … USING tritonmq OPTIONS (…) TBLPROPERTIES ('made.by' 'me')`."""
    given = {"bootstrap.servers": "a:1", "subscribe": "t", "startingoffsets": "earliest"}
    table = {**given, **{f"option.{name}": value for name, value in given.items()}}
    table |= {"provider": "tritonmq", "owner": "me", "path": "file:/warehouse/t", "made.by": "me"}
    assert parse_source(table, streaming=False) == parse_source(given, streaming=False)
    assert parse_sink(table, streaming=False) == parse_sink(SINK, streaming=False)
    assert parse_sink({**table, "option.subscribe": "t,u", "subscribe": "t,u"}, streaming=False).topic is None
    assert parse_source({**table, "maxoffsetspertrigger": "3"}, streaming=True).max_offsets_per_trigger == 3
    with pytest.raises(InvalidSetting, match="unknown option 'subscrib': did you mean 'subscribe'"):
        parse_source({**table, "option.subscrib": "t"}, streaming=False)


def test_a_whole_topic_may_begin_at_a_word_and_offsets_may_be_those_that_a_query_shows() -> None:
    two = {"bootstrap.servers": "a:1", "subscribe": "t,u"}
    starting = parse_source({**two, "startingOffsets": '{"t":"eArLiEst","u":{"0":23}}'}, streaming=True).starting
    assert starting == {"t": EARLIEST, "u": {0: 23}}
    shown = '{"/":{"ids":{"t":"1f"}},"t":{"0":4}}'
    assert parse_source({**SOURCE, "startingOffsets": shown}, streaming=True).starting == {"t": {0: 4}}
    assert "cannot be latest" in source_error(streaming=False, startingOffsets='{"t":"latest"}')


def test_reads_go_to_the_leader_unless_any_replica_will_do() -> None:
    default = parse_source(SOURCE, streaming=True)
    assert (default.read_from, default.rack) == ("leader", "")
    given = parse_source({**SOURCE, "readFrom": "ANY", "kafka.client.rack": "zone-b"}, streaming=True)
    assert (given.read_from, given.rack) == ("any", "zone-b")
    assert source_error(readFrom="leder") == "readFrom=leder is not known: give leader or any"


def test_a_sink_writes_to_its_topic_or_to_the_one_each_row_names() -> None:
    assert parse_sink(SINK, streaming=True).topic == "t"
    assert parse_sink({"bootstrap.servers": "a:1"}, streaming=True).topic is None
    assert sink_error(topic="").startswith("topic is empty")


def test_kafkas_sink_takes_include_headers_and_so_does_this_one() -> None:
    assert parse_sink({**SINK, "includeHeaders": "true"}, streaming=True).topic == "t"
    assert sink_error(includeHeaders="maybe").startswith("includeHeaders='maybe' is neither true nor false")


def test_a_key_column_is_not_empty() -> None:
    assert parse_sink({**SINK, "keyColumn": "carrier"}, streaming=True).key_column == "carrier"
    assert sink_error(keyColumn="").startswith("keyColumn is empty")


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
    assert "kept for queue groups" in sink_error(streaming=False, txnAppId="work:x/0/g", txnVersion="7")
    assert sink_error(streaming=True, txnAppId="etl", txnVersion="7").startswith(
        "txnAppId and txnVersion belong to df.write"
    )


def test_on_replay_mismatch_is_fail_or_keep() -> None:
    assert not parse_sink(SINK, streaming=True).keep_on_mismatch
    assert parse_sink({**SINK, "onReplayMismatch": "keep"}, streaming=True).keep_on_mismatch
    assert "did you mean 'keep'?" in sink_error(onReplayMismatch="keeep")


def test_that_brokers_pass_on_is_said_for_the_source_and_for_the_sink() -> None:
    assert parse_source({**SOURCE, "forward": "true"}, streaming=True).forward
    assert parse_sink({"bootstrap.servers": "a:1", "FORWARD": " True "}, streaming=False).forward
    assert not parse_source(SOURCE, streaming=False).forward
    assert source_error(forward="gateway:7490") == "forward='gateway:7490' is neither true nor false"
