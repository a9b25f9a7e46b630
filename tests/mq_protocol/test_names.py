"""Names of topics and groups (scenario C19), and topic settings."""

from __future__ import annotations

import pytest

from mq_protocol import limits
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName
from mq_protocol.names import (
    SETTINGS,
    TRANSACTIONS_TOPIC,
    Durability,
    OnTotalLoss,
    check_group_name,
    check_topic_name,
    nearest,
    parse_settings,
)

BAD = ["", ".", "..", "a" * 256, "a/b", "a,b", " a", "a ", *(f"a{mark}b" for mark in "\0\x01\x18\x1f\x8f\ud805\ufffa")]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_bad_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(InvalidTopicName) as caught:
        check_topic_name(name)
    str(caught.value).encode()  # shown in ASCII: a surrogate must not break whoever prints it
    with pytest.raises(InvalidRequest, match="group name"):
        check_group_name(name)


@pytest.mark.parametrize("name", ["a", "a" * 255, "a.b-c_d", "größe", "話題", "two words", "..."])
def test_a_good_name_passes(name: str) -> None:
    check_topic_name(name)
    check_group_name(name)


def test_internal_names_are_kept_from_users() -> None:
    with pytest.raises(InvalidTopicName, match="brokers' own"):
        check_topic_name(TRANSACTIONS_TOPIC)
    check_topic_name(TRANSACTIONS_TOPIC, internal=True)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("durabilty", "durability"), ("MIN_INSYNC", "min_insync_replicas"), ("batchbytesmax", "batch_bytes_max"), ("zzz", None)],
)
def test_the_nearest_word_is_found_and_only_if_it_is_near(word: str, meant: str | None) -> None:
    assert nearest(word, SETTINGS) == meant


def test_defaults_are_filled_in_and_a_majority_must_be_in_sync() -> None:
    settings = parse_settings({}, replicas=3)
    assert settings.durability is Durability.FSYNC
    assert settings.min_insync_replicas == 2
    assert settings.batch_bytes_max == limits.BATCH_BYTES_MAX
    assert settings.record_bytes_max == limits.RECORD_BYTES_MAX
    assert [parse_settings({}, replicas).min_insync_replicas for replicas in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("65536", 65536), ("64k", 65536), ("64KiB", 65536), ("4MiB", 4 << 20), ("4 mb", 4 << 20), ("4_000_000", 4_000_000)],
)
def test_sizes_may_have_units(text: str, bytes_: int) -> None:
    assert parse_settings({"batch_bytes_max": text}, 1).batch_bytes_max == bytes_


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"durabilty": "os"}, "unknown topic setting 'durabilty': did you mean 'durability'?"),
        ({"durability": "sync"}, "did you mean 'fsync'"),
        ({"min_insync_replicas": "4"}, "give 1 to 3"),
        ({"min_insync_replicas": "0"}, "give 1 to 3"),
        ({"min_insync_replicas": "most"}, "not a number"),
        ({"batch_bytes_max": "1GiB"}, "out of range"),
        ({"batch_bytes_max": "lots"}, "not a number"),
        ({"batch_bytes_max": "64KiB", "record_bytes_max": "64KiB"}, "record_bytes_max=65536 is out of range"),
        ({"dedup_uuids_max": "1"}, "how many batches back"),
        ({"retention_ms": "0"}, "give 1000 to"),
        ({"retention_ms": "a week"}, "not a number"),
        ({"retention_bytes": "-5"}, "not a number"),
        ({"on_total_loss": "recover"}, "durability=fsync promises to keep"),
        ({"on_total_loss": "recovery", "durability": "memory"}, "did you mean 'recover'"),
    ],
)
def test_a_wrong_setting_names_itself_and_what_is_allowed(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_settings(given, replicas=3)
    assert says in str(caught.value)


def test_only_what_is_kept_in_memory_goes_on_by_itself_after_a_total_loss() -> None:
    assert parse_settings({"durability": "memory"}, 3).on_total_loss is OnTotalLoss.RECOVER
    assert parse_settings({"durability": "memory", "on_total_loss": "stop"}, 3).on_total_loss is OnTotalLoss.STOP
    assert parse_settings({"durability": "os"}, 3).on_total_loss is OnTotalLoss.STOP


def test_records_stay_below_a_smaller_batch() -> None:
    settings = parse_settings({"batch_bytes_max": "64KiB"}, replicas=1)
    assert settings.record_bytes_max == 65536 - limits.BATCH_OVERHEAD_BYTES


def test_nothing_is_dropped_unless_retention_says_so() -> None:
    for given in ({}, {"retention_ms": "forever", "retention_bytes": "-1"}):
        settings = parse_settings(given, 3)
        assert (settings.retention_ms, settings.retention_bytes) == (None, None)


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("12h", 43_200_000), ("7d", 604_800_000), ("5000", 5_000), ("2 w", 1_209_600_000)]
)
def test_ages_may_have_units(text: str, ms: int) -> None:
    assert parse_settings({"retention_ms": text}, 1).retention_ms == ms
