"""Options: what is refused, with which first words, and what the right ones come to."""

from __future__ import annotations

from typing import Any

import pytest

from mq_protocol.errors import InvalidSetting
from mq_spark.planning.option_values import EARLIEST, LATEST, AtTime
from mq_spark.planning.options import SinkOptions, SourceOptions, parse_sink, parse_source

BROKERS = {"bootstrap.servers": "a:1"}
SOURCE = {**BROKERS, "subscribe": "t"}
SINK = {**BROKERS, "topic": "t"}


def stream(**more: str) -> SourceOptions:
    return parse_source({**SOURCE, **more}, streaming=True)


def read(**more: str) -> SourceOptions:
    return parse_source({**SOURCE, **more}, streaming=False)


def sink(**more: str) -> SinkOptions:
    return parse_sink({**SINK, **more}, streaming=True)


def write(**more: str) -> SinkOptions:
    return parse_sink({**SINK, **more}, streaming=False)


def topics(**more: str) -> SourceOptions:
    """A stream that is not told a topic yet."""
    return parse_source({**BROKERS, **more}, streaming=True)


EACH = '{"t":{"0":1000,"1":2000}}'
TIMES = "startingOffsetsByTimestamp"
SHAPE = '(it is {"topic":[0,1],"other":[2]})'
ASYNC = "exactly once rests on that"
OFFSETS = ("earlist", "{", '{"t":3}', '{"t":{"x":1}}', '{"t":{"0":-3}}', '{"t":{"0":true}}', '{"t":{"-1":0}}', "[]")
ASSIGNED = ("t", "{}", "[]", '{"t":0}', '{"t":[]}', '{"t":[-1]}', '{"t":["0"]}', '{"t":[true]}', "{")
OF_TIMES = ("5", "{", '{"t":{"0":-1}}', '{"t":{"0":"1"}}', '{"t":[1]}', '{"u":{"0":1}}')

REFUSED: list[tuple[Any, dict[str, str], str]] = [
    (stream, {"startingOffset": "latest"}, "unknown option 'startingOffset': did you mean 'startingOffsets'?"),
    (sink, {"topics": "t"}, "unknown option 'topics': did you mean 'topic'?"),
    (stream, {"zebra": "1"}, "…options are: assign, bootstrap.servers"),
    (stream, {"kafka.groupid": "g"}, "…did you mean 'kafka.group.id'?"),
    (stream, {"kafka.max.pol.records": "3"}, "…did you mean 'kafka.max.poll.records'?"),
    (stream, {"kafka.zebra": "3"}, "…Kafka's clients have none of this name"),
    (stream, {"topic": "t"}, "option topic belongs to the sink"),
    (sink, {"subscribe": "t"}, "option subscribe belongs to the source"),
    (topics, {}, "subscribe is missing"),
    *(
        (stream, {"bootstrap.servers": text}, "bootstrap.servers ")
        for text in ("localhost", ":7400", "a:", "a:x", "a:0", "a:70000", ",")
    ),
    # where it begins and ends
    *((stream, {"startingOffsets": text}, "startingOffsets") for text in OFFSETS),
    (
        stream,
        {"startingOffsets": '{"u":{"0":1}}'},
        "startingOffsets names u, subscribe names t: name the same topics in both",
    ),
    (read, {"startingOffsets": '{"t":"latest"}'}, "…cannot be latest"),
    (stream, {"endingOffsets": "latest"}, "endingOffsets has no meaning in a stream"),
    (read, {"startingOffsets": "latest"}, "startingOffsets of a batch read cannot be latest"),
    (read, {"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
    (stream, {"path": "x"}, "a path has no meaning here"),
    *(
        (made, {name: text}, f"{name}={text!r} is not a time{': write milliseconds' if made is stream else ''}")
        for made, name in ((stream, "startingTimestamp"), (read, "endingTimestamp"))
        for text in ("", "yesterday", "-1", "1.5", "99999999999999999999")
    ),
    *((stream, {TIMES: text}, f"{TIMES} ") for text in OF_TIMES),
    *((read, {"endingOffsetsByTimestamp": text}, "endingOffsetsByTimestamp ") for text in OF_TIMES),
    (stream, {f"{TIMES}Strategy": "latests"}, f"{TIMES}Strategy='latests' is not known: did you mean 'latest'?"),
    (stream, {"endingTimestamp": "1"}, "endingTimestamp has no meaning in a stream"),
    (stream, {"endingOffsetsByTimestamp": "1"}, "endingOffsetsByTimestamp has no meaning in a stream"),
    # how much
    (stream, {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger="),
    (stream, {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger="),
    (read, {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger has no meaning in a batch read"),
    (stream, {"maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is not a time"),
    (stream, {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger=5 is above"),
    *(
        (stream, {"maxBytesPerTrigger": text}, f"maxBytesPerTrigger={text!r} is not a number of bytes")
        for text in ("0", "-1", "1.5m", "many", "10x", "")
    ),
    (read, {"maxBytesPerTrigger": "1"}, "maxBytesPerTrigger has no meaning in a batch read"),
    # which topics and rows
    (topics, {"subscribePattern": "("}, "subscribePattern='(' is no regular expression: "),
    (topics, {"subscribePattern": ""}, "subscribePattern is empty"),
    *((topics, {"assign": text}, "assign") for text in ASSIGNED),
    *((topics, {"assign": text}, f"…{SHAPE}") for text in ASSIGNED),
    (stream, {"assign": '{"t":[0]}'}, "subscribe and assign are given together"),
    (stream, {"subscribePattern": "t"}, "subscribe and subscribePattern are given together"),
    (stream, {"filter": " "}, "filter is empty"),
    (stream, {"readFrom": "leder"}, "readFrom=leder is not known: give leader or any"),
    (stream, {"failOnDataLoss": "maybe"}, "failOnDataLoss="),
    (stream, {"forward": "gateway:7490"}, "forward='gateway:7490' is neither true nor false"),
    # the sink
    (sink, {"topic": ""}, "topic is empty"),
    (sink, {"includeHeaders": "maybe"}, "includeHeaders='maybe' is neither true nor false"),
    (sink, {"keyColumn": ""}, "keyColumn is empty"),
    (sink, {"asyncProgressTrackingEnabled": "true"}, f"…{ASYNC}"),
    (sink, {"_asyncProgressTrackingOverrideSinkSupportCheck": "true"}, f"…{ASYNC}"),
    (write, {"txnAppId": "etl"}, "txnVersion is missing"),
    (write, {"txnVersion": "7"}, "txnAppId is missing"),
    (sink, {"txnAppId": "etl", "txnVersion": "7"}, "txnAppId and txnVersion belong to df.write"),
    (sink, {"onReplayMismatch": "keeep"}, "…did you mean 'keep'?"),
]
"""How it is given, what, and the first words of the error; behind `…` words that are in it."""


@pytest.mark.parametrize(("made", "given", "words"), REFUSED)
def test_what_is_wrong_is_refused_whole_and_named(made: Any, given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        made(**given)
    if words.startswith("…"):
        assert words.removeprefix("…") in str(refused.value)
    else:
        assert str(refused.value).startswith(words)


def test_a_stream_begins_at_latest_and_a_batch_read_at_earliest_as_with_kafka() -> None:
    assert stream().starting == LATEST
    assert (read().starting, read().ending) == (EARLIEST, LATEST)


def test_names_are_read_in_any_case_because_spark_lowers_them() -> None:
    options = stream(startingoffsets="EARLIEST", maxoffsetspertrigger="5", INCLUDEHEADERS="True")
    assert (options.starting, options.max_offsets_per_trigger, options.include_headers) == (EARLIEST, 5, True)


def test_topics_are_a_comma_list_in_a_stable_order_without_doubles() -> None:
    assert stream(subscribe="b, a,,b").subscription.topics == ("a", "b")


def test_kafkas_name_for_the_brokers_is_an_alias() -> None:
    options = parse_source({"kafka.bootstrap.servers": "a:1, b:2", "subscribe": "t"}, streaming=True)
    assert options.bootstrap == "a:1,b:2"
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers is given twice"):
        stream(**{"kafka.bootstrap.servers": "c:3"})
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers is missing"):
        parse_source({"subscribe": "t"}, streaming=True)


def test_offsets_are_given_a_partition_at_a_time_by_a_word_for_a_topic_or_as_a_query_shows_them() -> None:
    assert stream(startingOffsets='{"t":{"0":23,"1":-2,"2":-1}}').starting == {"t": {0: 23, 1: EARLIEST, 2: LATEST}}
    two = topics(subscribe="t,u", startingOffsets='{"t":"eArLiEst","u":{"0":23}}')
    assert two.starting == {"t": EARLIEST, "u": {0: 23}}
    assert stream(startingOffsets='{"/":{"ids":{"t":"1f"}},"t":{"0":4}}').starting == {"t": {0: 4}}


def test_a_stream_may_wait_for_more_rows_but_not_for_longer_than_it_says() -> None:
    options = stream(minOffsetsPerTrigger="5")
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_s) == (5, 900)
    assert stream(maxTriggerDelay="1500 ms").max_trigger_delay_s == 1.5


def test_topics_may_be_matched_by_a_pattern_of_whole_names() -> None:
    meant = topics(subscribePattern="orders-.*").subscription
    assert meant.matching(["orders-2", "orders-1", "old-orders-1", "orders"]) == ("orders-1", "orders-2")
    assert meant.covers("orders-7", 3)
    assert not meant.covers("order", 0)


def test_partitions_may_be_assigned_one_by_one() -> None:
    meant = topics(assign='{"u":[2,0,2],"t":[1]}', startingOffsets='{"t":{"1":5},"u":{"0":1,"2":2}}').subscription
    assert (meant.topics, meant.assigned) == (("t", "u"), {"t": (1,), "u": (0, 2)})
    assert meant.partitions("u", 3) == (0, 2)
    assert meant.covers("t", 1)
    assert not meant.covers("t", 0)
    with pytest.raises(InvalidSetting, match="assign names partition 2 of topic u, which has 0 to 1"):
        meant.partitions("u", 2)


def test_a_query_may_begin_at_a_time_and_a_batch_read_end_at_one() -> None:
    in_us = {"t": {0: 1_000_000, 1: 2_000_000}}
    starting = stream(startingTimestamp="1767225600000").starting
    assert starting == AtTime("startingTimestamp", 1767225600000_000, otherwise_latest=False)
    starting = stream(**{TIMES: EACH, f"{TIMES}Strategy": "Latest"}).starting
    assert starting == AtTime(TIMES, in_us, otherwise_latest=True)
    assert read(endingTimestamp="5").ending == AtTime("endingTimestamp", 5_000, otherwise_latest=True)
    ending = read(endingOffsetsByTimestamp=EACH).ending
    assert ending == AtTime("endingOffsetsByTimestamp", in_us, otherwise_latest=True)


def test_one_time_counts_before_times_and_times_before_offsets_as_with_kafka() -> None:
    several = {"startingOffsets": "earliest", TIMES: '{"t":{"0":1}}'}
    assert isinstance(stream(**several).starting, AtTime)
    one = stream(**several, startingTimestamp="7").starting
    assert isinstance(one, AtTime)
    assert one.option == "startingTimestamp"


def test_the_last_time_of_all_is_what_kafkas_users_write_for_never() -> None:
    never = read(endingTimestamp=str(2**63 - 1)).ending
    each = read(endingOffsetsByTimestamp=f'{{"t":{{"0":{2**63 - 1}}}}}').ending
    assert isinstance(never, AtTime)
    assert isinstance(each, AtTime)
    assert each.times_us == {"t": {0: never.times_us}}


def test_bytes_are_written_as_spark_writes_sizes() -> None:
    for text, expected in (("1000", 1000), ("10b", 10), ("4k", 4096), ("2MB", 2 << 20), ("1g", 1 << 30)):
        assert stream(maxBytesPerTrigger=text).max_bytes_per_trigger == expected


def test_what_only_tunes_kafkas_client_is_passed_over_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "3",
        "kafka.max.poll.records": "9",
        "kafka.request.timeout.ms": "3000",
        "kafka.isolation.level": "read_committed",
    }
    for _ in range(3):
        assert stream(**options).subscription.topics == ("t",)
        assert parse_source({**SOURCE, **options}, streaming=None) == parse_source(SOURCE, streaming=None)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        f"options of Kafka's client that mean nothing here are passed over: {', '.join(sorted(options))}"
    )
    caplog.clear()
    assert sink(**{"kafka.acks": "all", "kafka.linger.ms": "5"}).topic == "t"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "kafka.acks, kafka.linger.ms" in told


@pytest.mark.parametrize(
    ("made", "given", "words"),
    [
        (stream, {"kafka.auto.offset.reset": "earliest"}, "said by startingOffsets"),
        (sink, {"kafka.partitioner.class": "x.Y"}, "give the rows a column partition"),
        (stream, {"kafka.isolation.level": "read_comited"}, r"is not known: did you mean 'read_committed'\?"),
    ],
)
def test_what_may_not_be_dropped_in_silence_is_refused_with_what_to_do(
    made: Any, given: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidSetting, match=words):
        made(**given)


def test_a_table_of_sparks_catalog_serves_both_sides() -> None:
    """As Spark hands over `CREATE TABLE … USING tritonmq OPTIONS (…) TBLPROPERTIES ('made.by' 'me')`."""
    given = {**SOURCE, "startingoffsets": "earliest"}
    table = {**given, **{f"option.{name}": value for name, value in given.items()}}
    table |= {"provider": "tritonmq", "owner": "me", "path": "file:/warehouse/t", "made.by": "me"}
    assert parse_source(table, streaming=False) == parse_source(given, streaming=False)
    assert parse_sink(table, streaming=False) == parse_sink(SINK, streaming=False)
    assert parse_sink({**table, "option.subscribe": "t,u", "subscribe": "t,u"}, streaming=False).topic is None
    assert parse_source({**table, "maxoffsetspertrigger": "3"}, streaming=True).max_offsets_per_trigger == 3
    with pytest.raises(InvalidSetting, match="unknown option 'subscrib': did you mean 'subscribe'"):
        parse_source({**table, "option.subscrib": "t"}, streaming=False)


def test_reads_go_to_the_leader_unless_any_replica_will_do() -> None:
    assert (stream().read_from, stream().rack) == ("leader", "")
    given = stream(readFrom="ANY", **{"kafka.client.rack": "zone-b"})
    assert (given.read_from, given.rack) == ("any", "zone-b")


def test_a_sink_writes_to_its_topic_or_to_the_one_each_row_names() -> None:
    assert sink().topic == "t"
    assert parse_sink(BROKERS, streaming=True).topic is None


def test_kafkas_sink_takes_include_headers_and_so_does_this_one() -> None:
    assert sink(includeHeaders="true").topic == "t"


def test_what_spark_itself_puts_among_a_writers_options_is_let_through() -> None:
    assert sink(checkpointlocation="/x", queryname="q", asyncProgressTrackingEnabled="false").topic == "t"


def test_a_batch_write_is_idempotent_by_both_names_or_by_neither() -> None:
    options = write(txnAppId="etl", txnVersion="7")
    assert (options.txn_app_id, options.txn_version) == ("etl", 7)
    assert write().txn_app_id is None
    with pytest.raises(InvalidSetting, match="kept for queue groups"):
        write(txnAppId="work:x/0/g", txnVersion="7")


def test_what_is_said_of_filters_keys_and_replays_is_kept() -> None:
    assert stream(filter="delay > 5").filter == "delay > 5"
    assert sink(keyColumn="carrier").key_column == "carrier"
    assert (sink().keep_on_mismatch, sink(onReplayMismatch="keep").keep_on_mismatch) == (False, True)


def test_that_brokers_pass_on_is_said_for_the_source_and_for_the_sink() -> None:
    assert stream(forward="true").forward
    assert parse_sink({**BROKERS, "FORWARD": " True "}, streaming=False).forward
    assert not read().forward
