"""Names of topics and groups (scenario C19), and topic settings."""

from __future__ import annotations

from typing import Any

import pytest

from mq_protocol import limits
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName
from mq_protocol.limits import NEAREST_CANDIDATES_MAX, NEAREST_WORD_CHARACTERS_MAX
from mq_protocol.names import (
    SETTINGS,
    TRANSACTIONS_TOPIC,
    Durability,
    OnTotalLoss,
    check_column_name,
    check_group_name,
    check_id,
    check_label,
    check_lock_name,
    check_member_id,
    check_new_group_name,
    check_new_topic_name,
    check_rack,
    check_topic_name,
    nearest,
    parse_settings,
    quoted,
    usable_label,
    user_named,
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


@pytest.mark.parametrize(
    "name", ["a", "a" * 255, "größe", "話題" * 42, "two words", "bad name!", "x*", ".hidden", "\u4e00"]
)
def test_a_new_name_may_have_any_letters_and_marks_but_those_that_are_forbidden(name: str) -> None:
    check_new_topic_name(name)
    check_new_group_name(name)
    check_member_id(name)
    check_column_name(name)
    check_rack(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("話" * 86, "has 258 bytes in UTF-8: at most 255 are allowed"),
        ("a" * 256, "has 256 characters: at most 255"),
        ("pay\u200bments", r"has the character U\+200B at character 4, which is not seen: leave it out"),
        ("\u202elive", r"U\+202E"),  # shown from right to left
        ("\ufeffa", r"U\+FEFF"),
        ("a\u2028b", r"U\+2028"),
        ("a\u2029b", r"U\+2029"),
        ("cafe\u0301", r"looks like 'caf\\xe9' and is not the same: write that"),
    ],
)
def test_a_name_that_looks_like_another_is_refused_when_it_is_made_and_stays_usable(name: str, says: str) -> None:
    with pytest.raises(InvalidTopicName, match=says):
        check_new_topic_name(name)
    for kind, check in [
        ("group name", check_new_group_name),
        ("member id", check_member_id),
        ("column name", check_column_name),
    ]:
        with pytest.raises(InvalidRequest, match=f"{kind} .*{says}"):
            check(name)
    with pytest.raises(InvalidSetting, match=f"rack .*{says}"):
        check_rack(name)
    if len(name) <= 255:
        check_topic_name(name)
        check_group_name(name)


@pytest.mark.parametrize("name", [None, 5, b"jobs", ["jobs"]])
def test_a_name_that_is_no_text_is_refused_as_such(name: Any) -> None:
    for check in (check_topic_name, check_group_name, check_member_id):
        with pytest.raises((InvalidTopicName, InvalidRequest), match=r"is no text, it is .*: give text"):
            check(name)


def test_an_error_about_a_name_says_what_the_rule_is() -> None:
    with pytest.raises(
        InvalidTopicName, match=r"'a/b' has the character U\+002F at character 2: '/', ',', control characters and"
    ):
        check_topic_name("a/b")
    with pytest.raises(InvalidTopicName, match="'a-topic' has 7 characters: at most 5 bytes are allowed"):
        check_new_topic_name("a-topic", 5)
    check_new_topic_name("a-top", 5)


@pytest.mark.parametrize("name", ["a/b", "a,b", "\\", "`", " a "])
def test_a_column_may_be_named_as_spark_allows_in_back_quotes(name: str) -> None:
    check_column_name(name)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00"])
def test_a_column_needs_a_name_that_is_one_line(name: str) -> None:
    with pytest.raises(InvalidRequest, match="column name"):
        check_column_name(name)


def test_what_zookeeper_keeps_by_name_has_no_character_above_its_own() -> None:
    """It answered with an internal error, and a traceback in the log, for as long as somebody asked."""
    for name in ("😀", "a\U00020bb7b"):
        with pytest.raises(InvalidTopicName, match="above U\\+FFFF"):
            check_new_topic_name(name)
        with pytest.raises(InvalidRequest, match="above U\\+FFFF"):
            check_lock_name(name)
        check_new_group_name(name)
        check_topic_name(name)  # one that a broker that stands alone has made stays usable


def test_a_user_is_named_with_its_kind_or_without() -> None:
    named = {"etl": "etl", "User:etl": "etl", "User:User:etl": "User:etl", "a:b": "a:b", "": ""}
    assert {text: user_named(text) for text in named} == named
    for text in ("Group:etl", "Broker:1"):
        with pytest.raises(InvalidSetting, match=f"'{text}' is no user: write NAME or User:NAME"):
            user_named(text)


def test_an_id_is_bounded_in_bytes() -> None:
    check_id("run id", "話" * 341)
    with pytest.raises(InvalidRequest, match="a run id of 1026 bytes is too long: at most 1024 are allowed"):
        check_id("run id", "話" * 342)


def test_text_from_outside_is_quoted_in_ascii_and_bounded() -> None:
    assert quoted("a\nb\u202e\x1b[2J") == r"'a\nb\u202e\x1b[2J'"
    assert quoted("plain") == "'plain'"
    for endless in ("x" * 10_000_000, "\U0001f600" * 10_000_000):
        assert len(quoted(endless)) <= 210


def test_internal_names_are_kept_from_users() -> None:
    with pytest.raises(InvalidTopicName, match="brokers' own"):
        check_topic_name(TRANSACTIONS_TOPIC)
    check_topic_name(TRANSACTIONS_TOPIC, internal=True)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("durabilty", "durability"),
        ("MIN_INSYNC", "min_insync_replicas"),
        ("batchbytesmax", "batch_bytes_max"),
        ("zzz", None),
    ],
)
def test_the_nearest_word_is_found_and_only_if_it_is_near(word: str, meant: str | None) -> None:
    assert nearest(word, SETTINGS) == meant


def test_the_nearest_word_is_sought_only_where_that_is_quick() -> None:
    long = "a" * NEAREST_WORD_CHARACTERS_MAX
    assert nearest(long, ["x", long]) == long
    assert nearest(long + "a", ["x", long]) is None
    assert nearest(long, [long + "a"]) is None
    many = [f"{number:04}" for number in range(NEAREST_CANDIDATES_MAX - 1)] + ["orders"]
    assert nearest("order", many) == "orders"
    assert nearest("order", [*many, "another"]) is None


def test_defaults_are_filled_in_and_a_majority_must_be_in_sync() -> None:
    settings = parse_settings({}, replicas=3)
    assert settings.durability is Durability.FSYNC
    assert settings.min_insync_replicas == 2
    assert settings.batch_bytes_max == limits.BATCH_BYTES_MAX
    assert settings.record_bytes_max == limits.RECORD_BYTES_MAX
    assert [parse_settings({}, replicas).min_insync_replicas for replicas in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("65536", 65536),
        ("64k", 65536),
        ("64KiB", 65536),
        ("4MiB", 4 << 20),
        ("4 mb", 4 << 20),
        ("4_000_000", 4_000_000),
    ],
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
        ({"min_insync_replicas": "most"}, "give 1 to 3"),
        ({"batch_bytes_max": "1GiB"}, "give 16KiB to 64MiB;"),
        ({"batch_bytes_max": "lots"}, "give 16KiB to 64MiB; the largest stored batch"),
        (
            {"batch_bytes_max": "64KiB", "record_bytes_max": "64KiB"},
            "record_bytes_max='64KiB' is not allowed: give 1 to 60KiB",
        ),
        ({"dedup_uuids_max": "1"}, "how many batches back"),
        ({"retention_ms": "0"}, "give 1s or more, or forever"),
        ({"retention_ms": "7days"}, "give 1s or more, or forever;"),
        ({"member_idle_ms": "999"}, "(999 means 999 ms, write 999s for seconds): give 1s or more"),
        ({"member_idle_ms": "soon"}, "how long a group's member may keep a partition"),
        ({"retention_bytes": "-5"}, "give 0 or more, or forever;"),
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


def test_no_member_gives_way_unless_its_topic_says_so() -> None:
    assert parse_settings({}, 3).member_idle_ms is None
    assert parse_settings({"member_idle_ms": "forever"}, 3).member_idle_ms is None
    assert parse_settings({"member_idle_ms": "90s"}, 3).member_idle_ms == 90_000


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("12h", 43_200_000), ("7d", 604_800_000), ("5000", 5_000), ("2 w", 1_209_600_000)]
)
def test_ages_may_have_units(text: str, ms: int) -> None:
    assert parse_settings({"retention_ms": text}, 1).retention_ms == ms


@pytest.mark.parametrize(
    "text",
    ["", "orders", "etl/orders, eu", "日本", "  padded  ", "a" * 300, "two\nlines\x1b[2J", "\u202eevil", "\ud800"],
)
def test_any_text_has_a_beginning_that_can_be_a_label(text: str) -> None:
    check_label(usable_label(text))
    assert usable_label("two\nlines\x1b[2J") == "two lines [2J"
    assert usable_label(" orders ") == "orders"


@pytest.mark.parametrize(
    "label", ["a" * (limits.LABEL_CHARACTERS_MAX + 1), "two\nlines", "\u202eevil", " a", "\ud800"], ids=ascii
)
def test_a_label_that_is_too_long_or_does_not_show_is_refused(label: str) -> None:
    with pytest.raises(InvalidRequest, match="do not show"):
        check_label(label)
