"""What is written when replicas move, partitions are added and settings change."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from mq_broker.broker.administration.topic_changes import (
    arrived,
    begun,
    called_off,
    check_level,
    check_partitions,
    is_complete,
    with_columns,
    with_settings,
)
from mq_broker.coordination.interface import Move, TopicSpec
from mq_protocol.arrow import schema_from_bytes, schema_to_bytes
from mq_protocol.errors import IncompatibleVersion, InvalidRequest, InvalidSetting, UnknownPartition
from mq_protocol.limits import MEMBERS_MAX, PARTITIONS_PER_TOPIC_MAX
from mq_protocol.names import SETTINGS
from mq_protocol.sql.ddl import parse_schema

TOPIC = TopicSpec("t", "id", ((1, 2, 3), (2, 3, 1)))
LIVE = (1, 2, 3, 4, 5, 6)


def test_a_move_begins_with_the_brokers_of_both_ends() -> None:
    after = begun(TOPIC, {0: (4, 2, 5)}, LIVE)
    assert after.assignment == ((1, 2, 3, 4, 5), (2, 3, 1))
    assert after.moving == {0: Move((4, 2, 5), (1, 2, 3))}
    assert begun(after, {0: (4, 2, 5)}, LIVE) == after, "asked again it is the same"


def test_a_move_ends_with_its_target_alone() -> None:
    after = begun(TOPIC, {0: (4, 2, 5), 1: (2, 3, 4)}, LIVE)
    over = arrived(after, {0: after.moving[0]})
    assert over.assignment == ((4, 2, 5), (2, 3, 1, 4))
    assert over.moving == {1: Move((2, 3, 4), (2, 3, 1))}
    assert arrived(over, {0: after.moving[0]}) == over


def test_a_move_that_was_given_another_target_meanwhile_is_not_over() -> None:
    first = begun(TOPIC, {0: (4, 2, 5)}, LIVE)
    second = begun(first, {0: (6, 2, 3)}, LIVE)
    assert second.moving == {0: Move((6, 2, 3), (1, 2, 3))}
    assert arrived(second, {0: first.moving[0]}) == second


def test_a_move_called_off_goes_back_to_where_it_came_from() -> None:
    after = called_off(begun(TOPIC, {0: (4, 2, 5)}, LIVE), [0, 1])
    assert after.moving == {0: Move((1, 2, 3), (1, 2, 3))}
    assert called_off(after, [0]) == after
    assert arrived(after, after.moving) == TOPIC


def test_a_partition_that_stays_can_be_led_by_its_first_again() -> None:
    after = begun(TOPIC, {0: (1, 2, 3)}, LIVE)
    assert (after.assignment, after.moving) == (TOPIC.assignment, {0: Move((1, 2, 3), (1, 2, 3))})


@pytest.mark.parametrize(
    ("number", "target", "error", "says"),
    [
        (2, (1, 2, 3), UnknownPartition, "partitions 0 to 1, not 2"),
        (-1, (1, 2, 3), UnknownPartition, "partitions 0 to 1, not -1"),
        (0, (), InvalidRequest, "each once"),
        (0, (1, 1, 2), InvalidRequest, "each once"),
        (0, (1, 2, 9), InvalidRequest, "broker 9, which is not live: start it first"),
        (0, (1, 2), InvalidRequest, "has 3 replicas: name as many brokers"),
        (0, (1, 2, 3, 4), InvalidRequest, "--replicas N"),
    ],
)
def test_a_move_that_cannot_be_says_why(
    number: int, target: tuple[int, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        begun(TOPIC, {number: target}, LIVE)


def test_a_partition_that_is_sent_on_again_and_again_has_at_most_so_many_brokers() -> None:
    many = tuple(range(1, MEMBERS_MAX - 2))
    assert len(begun(replace(TOPIC, assignment=(many,), moving={0: Move((1, 2), (1,))}), {0: (2, 3, 4)}, LIVE).target)
    more = replace(TOPIC, assignment=((*many, 1_000),), moving={0: Move((1, 2), (1,))})
    with pytest.raises(InvalidRequest, match=f"is on {MEMBERS_MAX - 2} brokers, since it was sent on before"):
        begun(more, {0: (2, 3, 4)}, LIVE)


def test_a_broker_that_is_dead_may_stay_where_it_is() -> None:
    assert begun(TOPIC, {0: (4, 2, 3)}, (1, 2, 4)).moving[0].target == (4, 2, 3)


def test_all_partitions_together_may_have_more_or_fewer_replicas_as_settings_allow() -> None:
    wider = begun(TOPIC, {0: (1, 2, 3, 4), 1: (2, 3, 1, 4)}, LIVE)
    assert (wider.replicas, {len(members) for members in wider.target}) == (3, {4})
    assert begun(TOPIC, {0: (1,), 1: (2,)}, LIVE).replicas == 1
    strict = replace(TOPIC, settings={"min_insync_replicas": "2"})
    with pytest.raises(InvalidSetting, match=r"min_insync_replicas=.2. is not allowed: give 1 to 1"):
        begun(strict, {0: (1,), 1: (2,)}, LIVE)


@pytest.mark.parametrize(
    ("target", "origin", "isr", "complete"),
    [
        ((4, 5), (1, 2), (1, 2, 4), False),
        ((4, 5), (1, 2), (1, 2, 4, 5), True),
        ((2, 3, 4), (1, 2, 3), (1, 2, 3), False),
        ((1, 2, 4), (1, 2, 3), (1, 3, 4), True),  # broker 2 was dead before: it need not come back for broker 3 to go
        ((1, 2, 4), (1, 2, 3), (1, 2), False),  # as many are in sync as before, but the one that comes is not
        ((1, 2), (1, 2, 3), (1, 3), False),  # broker 3 has what broker 2 has not
        ((1, 2, 3), (1, 2, 3), (2,), True),  # called off
        ((1, 2, 3), (1, 2, 3), (4,), False),  # called off, and only one that came has everything
    ],
)
def test_a_target_stands_alone_once_no_copy_is_lost_by_it(
    target: tuple[int, ...], origin: tuple[int, ...], isr: tuple[int, ...], complete: bool
) -> None:
    assert is_complete(Move(target, origin), isr) is complete


def test_partitions_become_more_and_never_fewer() -> None:
    check_partitions(TOPIC, 2)
    check_partitions(TOPIC, 3)
    check_partitions(TOPIC, PARTITIONS_PER_TOPIC_MAX)
    with pytest.raises(InvalidRequest, match="has 2 partitions and cannot have fewer"):
        check_partitions(TOPIC, 1)
    with pytest.raises(InvalidRequest, match="out of range"):
        check_partitions(TOPIC, PARTITIONS_PER_TOPIC_MAX + 1)


def test_settings_that_can_change_do_and_an_empty_value_is_the_default_again() -> None:
    changed = with_settings(TOPIC, {"batch_bytes_max": "1MiB"})
    assert changed.settings == {"batch_bytes_max": "1MiB"}
    assert with_settings(changed, {"batch_bytes_max": ""}) == TOPIC
    assert with_settings(TOPIC, {"durability": "fsync"}).settings == {"durability": "fsync"}, "it is so already"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"durability": "memory"}, "durability cannot be changed once the topic is made .*batch_bytes_max"),
        ({"dedup_uuids_max": "1000"}, "dedup_uuids_max cannot be changed"),
        ({"dedup_ms": "10m"}, "dedup_ms cannot be changed"),
        ({"durabilty": "os"}, "did you mean 'durability'"),
        ({"durabilty": ""}, "did you mean 'durability'"),
        ({"batch_bytes_max": "1"}, "give 16KiB to 64MiB"),
    ],
)
def test_settings_that_cannot_change_say_so(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        with_settings(TOPIC, given)


def test_added_columns_leave_behind_how_many_each_former_version_had() -> None:
    typed = replace(TOPIC, schema=schema_to_bytes(parse_schema("a long")))
    two, four = parse_schema("a long, b int"), parse_schema("a long, b int, c int, d int")
    once = with_columns(typed, two)
    twice = with_columns(once, four)
    assert (schema_from_bytes(once.schema), once.earlier) == (two, (1,))
    assert (schema_from_bytes(twice.schema), twice.earlier) == (four, (1, 2))
    assert with_columns(twice, four) == twice, "asked again it is the same"


def test_columns_are_only_added_and_only_to_topics_that_have_some() -> None:
    typed = replace(TOPIC, schema=schema_to_bytes(parse_schema("a long, b int")))
    with pytest.raises(InvalidRequest, match="cannot be dropped"):
        with_columns(typed, parse_schema("a long"))
    with pytest.raises(InvalidRequest, match="name"):
        with_columns(typed, pa.schema([*parse_schema("a long, b int"), pa.field("", pa.int64())]))
    with pytest.raises(InvalidRequest, match="holds records"):
        with_columns(TOPIC, parse_schema("a long"))


def test_a_setting_must_suit_the_fewest_replicas_that_a_partition_is_to_have() -> None:
    fewer = TopicSpec("t", "id", ((1, 2, 3), (1, 2, 3)), moving={1: Move((1,), (1, 2, 3))})
    assert with_settings(fewer, {"min_insync_replicas": "1"}).settings == {"min_insync_replicas": "1"}
    with pytest.raises(InvalidSetting, match="min_insync_replicas"):
        with_settings(fewer, {"min_insync_replicas": "2"})


def test_a_setting_of_a_next_release_waits_for_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, "retention": replace(SETTINGS["retention"], level=2)}
    monkeypatch.setattr("mq_broker.broker.administration.topic_changes.SETTINGS", settings)
    with pytest.raises(IncompatibleVersion, match=r"the setting retention needs level 2.*at level 1.*cluster upgrade"):
        check_level(["retention_ms", "retention"], 1)
    check_level(["retention_ms", "retention"], 2)
    check_level(["retention_ms", "min_insync_replicas"], 1)
