"""What an administrator's questions become, and what is made of several brokers' answers. The test is the brokers and
the clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mq_client.administration.admin import Admin
from mq_client.errors import (
    GroupInUse,
    InvalidRequest,
    InvalidTopicName,
    NotLeader,
    OutcomeUnknown,
    PartitionUnavailable,
    TopicExists,
    TopicNotEmpty,
    UnknownTopic,
    Unreachable,
)
from mq_client.shown.descriptions import described_group, freshness
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.administrating import GONE, answers, offsets, say
from tests.mq_client.cluster.scripted import Scripted, told, topic_info


@pytest.fixture
def admin(scripted: Scripted) -> Admin:
    """Of three brokers; all of them know topic `t` of one partition, led by 1."""
    made = Admin("b:1", timeout_ms=20_000)
    made._connection = scripted
    say(scripted, topic_info(1))
    scripted.learn(topic_info(1))
    scripted.clock.now += 1
    return made


# ---------------------------------------------------------------- topics


def created(scripted: Scripted, *given: Any) -> list[Any]:
    """The topic is there as soon as a broker has been asked to make it."""
    left, requests = list(given), []
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(unknown=("new",)))

    def create(address: str, request: pb.CreateTopicRequest) -> Any:
        requests.append(request)
        say(scripted, topic_info(1, 2, name="new"))
        return left.pop(0)

    scripted.answers["CreateTopic"] = create
    return requests


def test_a_topic_made_by_an_attempt_whose_answer_was_lost_is_made(admin: Admin, scripted: Scripted) -> None:
    requests = created(scripted, OutcomeUnknown("late"), TopicExists("there"))
    assert len(admin.create_topic("new", partitions=2).partitions) == 2
    assert len(requests) == 2


def test_a_topic_that_somebody_else_has_made_is_an_error(admin: Admin, scripted: Scripted) -> None:
    created(scripted, TopicExists("there"))
    with pytest.raises(TopicExists):
        admin.create_topic("new", partitions=2)
    created(scripted, OutcomeUnknown("late"), TopicExists("there"))
    with pytest.raises(TopicExists):  # with other partitions than were asked for
        admin.create_topic("new", partitions=3)
    created(scripted, OutcomeUnknown("late"), TopicExists("there"))
    with pytest.raises(TopicExists):
        admin.create_topic("new", partitions=2, durability="os")


def test_a_new_topic_is_known_to_every_broker_that_answers_when_it_is_made(admin: Admin, scripted: Scripted) -> None:
    created(scripted, pb.CreateTopicResponse())
    known_at = scripted.clock.now + 2

    def slow(request: pb.MetadataRequest) -> pb.MetadataResponse:
        return told(topic_info(1, 2, name="new")) if scripted.clock.now >= known_at else told(unknown=("new",))

    def create(address: str, request: Any) -> Any:
        scripted.brokers_say = {"b:1": told(topic_info(1, 2, name="new")), "b:2": GONE, "b:3": slow}
        return pb.CreateTopicResponse()

    scripted.answers["CreateTopic"] = create
    admin.create_topic("new", partitions=2)
    assert scripted.clock.now == pytest.approx(known_at, abs=0.1)


def test_a_topic_is_described_by_the_leaders_of_its_partitions(admin: Admin, scripted: Scripted) -> None:
    def known_to(broker: int, isr: list[int], epoch: int = 2) -> pb.MetadataResponse:
        info = topic_info(1, 2, 3, epoch=2)
        for partition in info.partitions:
            del partition.isr[:]
            partition.isr.extend(isr)
            partition.leader_epoch = epoch
        answer = told(info)
        answer.answered_by = broker
        return answer

    scripted.brokers_say = {"b:1": known_to(1, [1]), "b:2": known_to(2, [2, 1]), "b:3": GONE}
    scripted._answered = "b:1"
    assert [partition.isr for partition in admin.describe_topic("t").partitions] == [(1,), (2, 1), (1,)]
    scripted.clock.now += 1
    scripted.brokers_say["b:2"] = known_to(2, [2, 1], epoch=1)  # it led, and has not heard that it does no more
    assert [partition.isr for partition in admin.describe_topic("t").partitions] == [(1,), (1,), (1,)]


def test_an_altered_topic_is_asked_for_anew_and_waited_for_if_it_is_larger(admin: Admin, scripted: Scripted) -> None:
    requests = answers(scripted, "AlterTopic", pb.AlterTopicResponse(topic=topic_info(1, 1)))
    began = scripted.clock.now
    scripted.brokers_say["b:3"] = lambda request: told(
        topic_info(1, 1) if scripted.clock.now > began + 1 else topic_info(1)
    )
    say_two = told(topic_info(1, 1))
    scripted.brokers_say |= {"b:1": lambda request: say_two if requests else told(topic_info(1)), "b:2": say_two}
    assert len(admin.alter_topic("t", partitions=2).partitions) == 2
    assert (requests[0].partitions, requests[0].replicas) == (2, 0)
    assert 1.0 < scripted.clock.now - began < 1.5
    assert scripted.known_topic("t") is None
    began = scripted.clock.now
    admin.alter_topic("t", replicas=2, retention_ms=None, durability="os")
    assert (requests[1].partitions, requests[1].replicas, dict(requests[1].settings)) == (
        0,
        2,
        {"retention_ms": "", "durability": "os"},
    )
    assert scripted.clock.now == began


def test_a_topic_deleted_by_an_attempt_whose_answer_was_lost_is_deleted(admin: Admin, scripted: Scripted) -> None:
    answers(scripted, "DeleteTopic", OutcomeUnknown("late"), UnknownTopic("gone"))
    admin.delete_topic("t")
    assert scripted.known_topic("t") is None
    answers(scripted, "DeleteTopic", UnknownTopic("gone"))
    with pytest.raises(UnknownTopic):
        admin.delete_topic("t")


def test_a_topic_is_deleted_if_empty_only_without_a_record(admin: Admin, scripted: Scripted) -> None:
    requests = answers(scripted, "DeleteTopic", pb.DeleteTopicResponse())
    answers(scripted, "Transactions", pb.TransactionsResponse())
    offsets(scripted, (3, 5, 0))
    with pytest.raises(TopicNotEmpty, match="'t' holds 2 records"):
        admin.delete_topic("t", if_empty=True)
    assert requests == []
    offsets(scripted, (5, 5, 0))
    admin.delete_topic("t", if_empty=True)
    assert len(requests) == 1


def test_a_topic_for_which_a_query_has_staged_rows_is_not_empty(admin: Admin, scripted: Scripted) -> None:
    requests = answers(scripted, "DeleteTopic", pb.DeleteTopicResponse())
    offsets(scripted, (0, 0, 0))
    staged = [pb.StagedSum(query="q1", sink="t", topic=topic, batches=1, rows=7) for topic in ("t", "other")]
    answers(scripted, "Transactions", pb.TransactionsResponse(staged=staged))
    with pytest.raises(TopicNotEmpty, match=r"query q1 has staged .* rows for topic 't'.*transaction abort q1:t"):
        admin.delete_topic("t", if_empty=True)
    assert requests == []


def test_a_topic_is_not_taken_for_empty_because_a_replica_knows_of_no_record(admin: Admin, scripted: Scripted) -> None:
    requests = answers(scripted, "DeleteTopic", pb.DeleteTopicResponse())
    answers(scripted, "Transactions", pb.TransactionsResponse())
    say(scripted, topic_info(0))
    scripted.learn(topic_info(0, epoch=2))
    offsets(scripted, (0, 0, 0))
    with pytest.raises(PartitionUnavailable):
        admin.delete_topic("t", if_empty=True)
    assert requests == []


@pytest.mark.parametrize(
    ("before", "upto"), [(None, [5, 9]), (2, [2, 2]), (0, [0, 0]), (datetime(2020, 1, 1, tzinfo=UTC), [4, 7])]
)
def test_a_purge_drops_what_is_before_an_offset_a_time_or_all(
    admin: Admin, scripted: Scripted, before: Any, upto: list[int]
) -> None:
    scripted.learn(topic_info(1, 1))
    offsets(scripted, (3, 5, 4), (0, 9, 7))
    done = [pb.PartitionOffsets(partition=number, log_start_offset=number) for number in (0, 1)]
    requests = answers(scripted, "Purge", pb.PurgeResponse(partitions=done))
    assert admin.purge("t", before=before) == {0: 0, 1: 1}
    assert [position.offset for position in requests[0].positions] == upto
    admin.purge("t", 1, before)
    assert [(position.partition, position.offset) for position in requests[1].positions] == [(1, upto[1])]


# ---------------------------------------------------------------- where replicas are


def test_a_leadership_that_was_handed_over_is_asked_for_anew(admin: Admin, scripted: Scripted) -> None:
    requests = answers(scripted, "Lead", NotLeader("2 does", 2, 2), pb.LeadResponse())
    admin.transfer_leadership("t", 0, 2)
    assert [request.broker for request in requests] == [2, 2]
    assert scripted.known_topic("t") is None


def test_a_recovery_says_what_it_kept(admin: Admin, scripted: Scripted) -> None:
    kept = pb.RecoverResponse(offset_floor=9, given_up=[3])
    kept.kept.broker, kept.kept.next_offset = 2, 7
    requests = answers(scripted, "Recover", kept)
    found = admin.recover_partition("t", 0, from_broker=2, force=True)
    assert (found.broker, found.next_offset, found.offset_floor, found.given_up) == (2, 7, 9, (3,))
    admin.recover_partition("t", 0)
    assert [(request.from_broker, request.force) for request in requests] == [(2, True), (0, False)]


def test_a_recovery_that_is_refused_after_a_lost_answer_may_have_been_done(admin: Admin, scripted: Scripted) -> None:
    answers(scripted, "Recover", InvalidRequest("in sync"))
    with pytest.raises(InvalidRequest):
        admin.recover_partition("t", 0)
    answers(scripted, "Recover", OutcomeUnknown("late"), InvalidRequest("in sync"))
    with pytest.raises(OutcomeUnknown, match="an answer was lost, and then: in sync"):
        admin.recover_partition("t", 0)


# ---------------------------------------------------------------- groups


def cursor(group: str = "g", topic: str = "t", partition: int = 0, offset: int = 0, **more: Any) -> pb.GroupCursor:
    return pb.GroupCursor(group=group, topic=topic, partition=partition, offset=offset, **more)


def groups(scripted: Scripted, known: dict[str, Any]) -> None:
    """What each broker knows of groups; the others nothing."""

    def answer(address: str, request: pb.GroupsRequest) -> Any:
        found = known.get(address, [])
        if isinstance(found, Exception):
            return found
        wanted = [each for each in found if request.group in ("", each.group)]
        return pb.GroupsResponse(cursors=wanted)

    scripted.answers["Groups"] = answer


def test_of_several_words_about_a_cursor_the_leaders_holds_else_the_newest(admin: Admin, scripted: Scripted) -> None:
    groups(
        scripted,
        {
            "b:1": [cursor(offset=5, moved_us=9), cursor(partition=1, offset=1, leads=True)],
            "b:2": [cursor(offset=6, moved_us=10), cursor(partition=1, offset=2, moved_us=99)],
            "b:3": [cursor(offset=4, moved_us=8), cursor(topic="a", offset=3)],
        },
    )
    found = admin.describe_group("g")
    assert [(each.topic, each.partition, each.offset) for each in found.cursors] == [
        ("a", 0, 3),
        ("t", 0, 6),
        ("t", 1, 1),
    ]
    assert found.silent == ()


def test_brokers_that_do_not_answer_are_named_and_if_none_answers_that_is_the_error(
    admin: Admin, scripted: Scripted
) -> None:
    groups(scripted, {"b:1": GONE, "b:2": [cursor("h"), cursor("g")], "b:3": GONE})
    assert admin.describe_group("g").silent == ("b:1", "b:3")
    assert [each.name for each in admin.describe_groups()] == ["g", "h"]
    assert admin.list_groups() == ["g", "h"]
    groups(scripted, {"b:1": GONE, "b:2": GONE, "b:3": GONE})
    with pytest.raises(Unreachable):
        admin.list_groups()
    groups(scripted, {"b:1": [cursor()], "b:2": InvalidRequest("no")})
    with pytest.raises(InvalidRequest):
        admin.list_groups()


def test_one_broker_of_several_has_a_second_to_tell_of_groups_and_one_alone_all_the_time(
    admin: Admin, scripted: Scripted
) -> None:
    groups(scripted, {})
    scripted.allowed_s.clear()
    admin.list_groups()
    assert scripted.allowed_s[-3:] == [1.0, 1.0, 1.0]
    scripted.learn(topic_info(1), brokers=1)
    scripted.brokers_say = {"b:1": told(topic_info(1), brokers=1)}
    admin.list_groups()
    assert scripted.allowed_s[-1] == pytest.approx(20.0)


def test_a_broker_is_asked_for_cursors_until_it_has_no_more(admin: Admin, scripted: Scripted) -> None:
    scripted.brokers_say = {"b:1": told(topic_info(1), brokers=1)}
    scripted.learn(topic_info(1), brokers=1)
    first = pb.GroupsResponse(cursors=[cursor("a"), cursor("b", "u", 3)], more=True)
    requests = answers(scripted, "Groups", first, pb.GroupsResponse(cursors=[cursor("c")]))
    assert admin.list_groups() == ["a", "b", "c"]
    assert (requests[1].after_group, requests[1].after.topic, requests[1].after.partition) == ("b", "u", 3)


def test_a_group_with_members_is_deleted_by_force_only(admin: Admin, scripted: Scripted) -> None:
    known = {"b:1": [cursor(members=["m2", "m1"]), cursor(topic="u", members=["m2"])]}
    groups(scripted, known)
    say(scripted, topic_info(1), topic_info(2, name="u"))
    done = pb.DeleteGroupResponse(partitions=[pb.PartitionOffsets(partition=0)])
    deleted: list[tuple[str, str, bool]] = []

    def delete(address: str, request: pb.DeleteGroupRequest) -> Any:
        deleted.append((address, request.partitions[0].topic, request.force))
        if len(deleted) == 2:
            known.clear()
        return done

    scripted.answers["DeleteGroup"] = delete
    with pytest.raises(GroupInUse, match=r"members \(m1, m2\)"):
        admin.delete_group("g")
    assert deleted == []
    admin.delete_group("g", force=True)
    assert deleted == [("b:1", "t", True), ("b:2", "u", True)]


def test_a_deleted_group_is_gone_everywhere_or_it_has_been_waited_for(admin: Admin, scripted: Scripted) -> None:
    began = scripted.clock.now
    for lasts_s, waited_s in ((1.0, 1.0), (1_000.0, 5.0)):
        began = scripted.clock.now

        def answer(address: str, request: Any, until: float = began + lasts_s) -> Any:
            return pb.GroupsResponse(cursors=[cursor()] if address == "b:3" and scripted.clock.now < until else [])

        scripted.answers["Groups"] = answer
        done = pb.DeleteGroupResponse(partitions=[pb.PartitionOffsets(partition=0)])
        answers(scripted, "DeleteGroup", done)
        admin.delete_group("g")
        assert scripted.clock.now - began == pytest.approx(waited_s, abs=0.1)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["a/b", "__transactions"])
def test_a_topic_that_cannot_be_the_users_is_refused_before_anything_is_asked(
    admin: Admin, scripted: Scripted, name: str
) -> None:
    scripted.learn(topic_info(1, name="__transactions"))
    for use in (
        lambda: admin.create_topic(name),
        lambda: admin.alter_topic(name, partitions=2),
        lambda: admin.delete_topic(name),
        lambda: admin.purge(name),
        lambda: admin.peek(name, "g"),
        lambda: admin.reset_group("g", name),
    ):
        refused: Callable[[], object] = use
        with pytest.raises(InvalidTopicName):
            refused()
    assert scripted.asked == []


def test_a_group_that_cannot_be_is_refused_before_anything_is_asked(admin: Admin, scripted: Scripted) -> None:
    for use in (
        lambda: admin.describe_group("a/b"),
        lambda: admin.delete_group("a/b"),
        lambda: admin.peek("t", "a/b"),
        lambda: admin.reset_group("a/b", "t"),
        lambda: admin.move_group("a/b", {}),
    ):
        refused: Callable[[], object] = use
        with pytest.raises(InvalidRequest):
            refused()
    assert scripted.asked == []


# ---------------------------------------------------------------- what a group's description says


def test_a_group_is_behind_by_all_its_partitions_together_and_as_old_as_the_oldest() -> None:
    told_ = [
        cursor(partition=0, offset=5, log_end_offset=9, lag_bytes=40, lag_us=7),
        cursor(partition=1, offset=9, log_end_offset=3, lag_bytes=2, lag_us=9),
    ]
    found = described_group("g", told_, ["b:3"])
    assert [each.lag for each in found.cursors] == [4, 0]
    assert (found.lag, found.lag_bytes, found.lag_us, found.silent) == (4, 42, 9, ("b:3",))
    assert described_group("g", [], []).lag_us == 0
    assert [each.member for each in found.cursors] == ["", ""]
    assert described_group("g", [cursor(members=["only"])], []).cursors[0].member == "only"


def test_a_group_is_called_as_the_leader_was_told_whose_cursor_moved_last() -> None:
    former, newer = cursor(label="former", moved_us=1), cursor(partition=1, label="newer", moved_us=2)
    unnamed = cursor(partition=2, moved_us=3)
    assert described_group("g", [former, newer, unnamed], []).label == "newer"
    assert described_group("g", [newer, former], []).label == "newer"
    assert described_group("g", [unnamed], []).label == ""


def test_of_two_words_the_leaders_holds_then_the_newer_leadership_then_the_later_move() -> None:
    newest = [
        cursor(offset=1, leads=True),
        cursor(offset=2, leader_epoch=9),
        cursor(offset=3, leader_epoch=8, moved_us=7),
        cursor(offset=4, leader_epoch=8, moved_us=6, log_end_offset=5),
        cursor(offset=5, leader_epoch=8, moved_us=6, log_end_offset=4),
    ]
    for newer, older in itertools.pairwise(newest):
        assert freshness(newer) > freshness(older)


def test_offsets_and_bytes_are_those_of_replicas_where_nobody_leads_and_times_are_not(
    admin: Admin, scripted: Scripted
) -> None:
    say(scripted, topic_info(0))
    scripted.learn(topic_info(0, epoch=2))
    offsets(scripted, (3, 5, 4))
    assert admin.offsets("t") == {0: (3, 5)}
    assert admin.stored_bytes("t") == {0: 100}
    with pytest.raises(PartitionUnavailable):
        admin.offsets_at("t", 1)
