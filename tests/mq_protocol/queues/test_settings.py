"""Settings of queue groups: defaults, what is allowed, and errors that say what to give."""

from __future__ import annotations

import pytest

from mq_protocol.errors import InvalidSetting
from mq_protocol.queues.settings import (
    QUEUE_SETTINGS,
    DeadLetter,
    Dropped,
    Order,
    QueueSettings,
    parse_queue_settings,
)


def test_what_is_not_given_has_its_default() -> None:
    usual = QueueSettings(dead_letter="orders.dead")
    assert parse_queue_settings({}, "orders") == usual
    named = {name: setting.default for name, setting in QUEUE_SETTINGS.items() if name != "dead_letter"}
    assert parse_queue_settings(named, "orders") == usual


def test_a_topic_of_dead_letters_and_one_with_a_long_name_park_theirs() -> None:
    for topic in ("orders.dead", "x" * 251):
        assert parse_queue_settings({}, topic).dead_letter is DeadLetter.PARK
    assert parse_queue_settings({}, "x" * 250).dead_letter == "x" * 250 + ".dead"


def test_what_is_given_is_read_by_what_it_is() -> None:
    given = {
        "lease_ms": "2m",
        "retry_ms": "250",
        "retry_factor": "1.5",
        "dead_letter": "drop",
        "in_flight_max": "7",
        "paused": "true",
        "order": "key",
        "filter": "amount > 5",
        "ttl_ms": "36h",
        "bytes_max": "64MiB",
    }
    assert parse_queue_settings(given, "orders") == QueueSettings(
        lease_ms=120_000,
        retry_ms=250,
        retry_factor=1.5,
        dead_letter=DeadLetter.DROP,
        in_flight_max=7,
        paused=True,
        order=Order.KEY,
        filter="amount > 5",
        ttl_ms=129_600_000,
        bytes_max=64 << 20,
    )
    for never in ("forever", " Forever "):
        unbounded = parse_queue_settings({"ttl_ms": never, "idle_ms": never}, "orders")
        assert (unbounded.ttl_ms, unbounded.idle_ms) == (0, 0)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="order=all to one: leave one of the two out"):
        parse_queue_settings({"spill": "true", "order": "all"}, "orders")
    with pytest.raises(InvalidSetting, match="with order=key those before do: leave one of the two out"):
        parse_queue_settings({"priority": "weighted", "order": "key"}, "orders")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("lease_ms", "999", "1s to 12h"),
        ("lease_ms", "30", r"\(30 means 30 ms, write 30s for seconds\): give 1s to 12h"),
        ("lease_ms", "50000000", "is not allowed: give 1s to 12h"),
        ("lease_ms", "13h", "1s to 12h"),
        ("lease_ms", "soon", "1s to 12h"),
        ("length_max", "-1", "0 to 16777216"),
        ("length_max", "16777217", "0 to 16777216"),
        ("overflow", "drop-head", "did you mean 'drop_head'.*give reject or drop_head"),
        ("bytes_max", "1025g", "0 to 1024GiB"),
        ("bytes_max", "much", "0 to 1024GiB"),
        ("dropped", "dad", "did you mean 'dead'.*give drop or dead"),
        ("ttl_ms", "0", "1s to 365d, or forever"),
        ("ttl_ms", "999", "1s to 365d, or forever"),
        ("ttl_ms", "60", r"\(60 means 60 ms, write 60s for seconds\)"),
        ("ttl_ms", "366d", "1s to 365d, or forever"),
        ("ttl_ms", "never", "1s to 365d, or forever"),
        ("idle_ms", "59s", "1m to 365d, or forever"),
        ("idle_ms", "366d", "1m to 365d, or forever"),
        ("expired", "died", "did you mean 'dead'.*give drop or dead"),
        ("delivery_limit", "-1", "0 to 1000"),
        ("delivery_limit", "1001", "0 to 1000"),
        ("delivery_limit", "1.5", "0 to 1000"),
        ("delivery_limit", "1_0", "0 to 1000"),
        ("in_flight_max", "\N{ARABIC-INDIC DIGIT FIVE}", "1 to 1000000"),
        ("retry_factor", " 2", "1 to 10"),
        ("retry_ms", "8d", "0 to 7d"),
        ("retry_factor", "nan", "1 to 10"),
        ("retry_factor", "inf", "1 to 10"),
        ("retry_factor", "0.5", "1 to 10"),
        ("in_flight_max", "0", "1 to 1000000"),
        ("paused", "perhaps", "true or false"),
        ("dead_letter", "orders", "the queue's own topic"),
        ("dead_letter", "__transactions", "the brokers' own"),
        ("dead_letter", "a/b", "a topic's name, park or drop"),
        ("dead_letter", "x" * 256, "a topic's name, park or drop"),
        ("dead_letter", "None", "park to keep it"),  # as Python writes it
        ("dead_letter", "dorp", "did you mean 'drop'"),
        ("order", "keys", r"did you mean 'key'\? give none"),
        ("order", "fifo", "none, key or all"),
        ("order_by", "customer", "give order=key too"),
        ("lease_msx", "1s", "did you mean 'lease_ms'"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(name: str, value: str, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why) as refused:
        parse_queue_settings({name: value}, "orders")
    assert name in str(refused.value)


def test_what_is_dropped_becomes_no_dead_letter_where_those_are_parked() -> None:
    for given, topic in (({"dead_letter": "park"}, "orders"), ({}, "orders.dead")):
        with pytest.raises(InvalidSetting, match="dropped=dead needs a topic for dead letters"):
            parse_queue_settings({"dropped": "dead", **given}, topic)
    assert parse_queue_settings({"dropped": "dead"}, "orders.dead", partly=True).dropped is Dropped.DEAD
    assert parse_queue_settings({"dropped": "dead", "dead_letter": "drop"}, "orders").dropped is Dropped.DEAD


def test_dead_letters_may_go_to_a_topic() -> None:
    assert parse_queue_settings({"dead_letter": "failed.orders"}, "orders").dead_letter == "failed.orders"


def test_a_column_of_keys_is_refused_where_there_are_no_keys_and_taken_where_order_is_not_named() -> None:
    with pytest.raises(InvalidSetting, match="order=all has none"):
        parse_queue_settings({"order": "all", "order_by": "customer"}, "orders")
    assert parse_queue_settings({"order_by": "customer"}, "orders", partly=True).order_by == "customer"
    with pytest.raises(InvalidSetting, match="order=none has none"):
        parse_queue_settings({"order": "none", "order_by": "customer"}, "orders", partly=True)
