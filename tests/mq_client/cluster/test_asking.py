"""Whom the connection asks, for how long, and what it makes of the answers. No network, no real time."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from mq_client.cluster.connection import TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.listening import PATIENT
from mq_client.errors import (
    IncompatibleVersion,
    InvalidRequest,
    NotAuthenticated,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info

GONE = Unreachable("broker at x cannot be reached: gone")


# ---------------------------------------------------------------- brokers in turn


def test_whoever_answered_last_is_asked_first(scripted: Scripted) -> None:
    scripted.brokers_say = {"b:1": told(), "b:2": told(), "b:3": told()}
    scripted.metadata(Deadline(5_000))
    scripted.metadata(Deadline(5_000))
    assert scripted.addresses_asked() == ["b:1", "b:1"]
    scripted.brokers_say["b:1"] = GONE
    scripted.metadata(Deadline(5_000))
    scripted.metadata(Deadline(5_000))
    assert scripted.addresses_asked() == ["b:1", "b:2", "b:2"]


def test_bootstrap_addresses_are_asked_when_the_live_brokers_do_not_answer(clock: Clock) -> None:
    scripted = Scripted(clock, "seed:1")
    scripted.brokers_say = {"seed:1": told(brokers=2), "b:1": GONE, "b:2": GONE}
    scripted.metadata(Deadline(5_000))
    scripted._answered = None
    scripted.asked.clear()
    scripted.metadata(Deadline(5_000))
    assert scripted.addresses_asked() == ["b:1", "b:2", "seed:1"]


def test_a_broker_that_hangs_is_given_half_of_the_time_while_others_are_left(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1), brokers=2)
    scripted._answered = "b:1"
    scripted.takes_s = {"b:1": 100.0}
    scripted.brokers_say = {"b:2": told(brokers=2)}
    began = clock.now
    scripted.metadata(Deadline(4_000))
    assert scripted.allowed_s == [2.0, 2.0]
    assert clock.now - began == 2.0


def test_a_cluster_that_has_never_answered_is_given_up_soon(scripted: Scripted, clock: Clock) -> None:
    scripted.brokers_say = {"b:1": GONE}
    began = clock.now
    with pytest.raises(Unreachable, match=r"no broker answered within .* ms at b:1 \(b:1: gone\): start one"):
        scripted.metadata(Deadline(1e6))
    assert clock.now - began == pytest.approx(limits.CONNECT_TIMEOUT_MS / 1000)


def test_a_cluster_of_which_all_addresses_refuse_is_given_up_after_two_seconds(clock: Clock) -> None:
    scripted = Scripted(clock, "b:1,b:2", refused_s=2.0)
    scripted.brokers_say = {"b:1": GONE, "b:2": GONE}
    scripted.refusing = {"b:1", "b:2"}
    began = clock.now
    with pytest.raises(Unreachable, match=r"no broker listens at b:[12]: connection refused; b:[12]: .*: start one"):
        scripted.metadata(Deadline(1e6))
    assert 2.0 <= clock.now - began < 3.0


def test_a_broker_that_speaks_no_common_protocol_is_named_with_what_to_upgrade(scripted: Scripted) -> None:
    newer = told()
    newer.protocol, newer.protocol_oldest, newer.release = PROTOCOL + 2, PROTOCOL + 1, "9.0.0"
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), newer)
    with pytest.raises(
        IncompatibleVersion, match=r"the broker at b:1 \(release 9\.0\.0, .* in common: upgrade this client"
    ):
        scripted.metadata(Deadline(5_000))
    asked = scripted.asked[0][2]
    assert (asked.protocol, asked.protocol_oldest) == (PROTOCOL, PROTOCOL_OLDEST)


def test_certificates_that_fail_everywhere_are_told_soon_where_nobody_has_ever_answered(clock: Clock) -> None:
    for refused_s in (2.0, PATIENT):
        scripted = Scripted(clock, "b:1,b:2", refused_s=refused_s)
        scripted.brokers_say = {"b:1": GONE, "b:2": GONE}
        scripted.faulty = {"b:1": "expired", "b:2": "expired"}
        began = clock.now
        with pytest.raises(NotAuthenticated, match="b:1: expired"):
            scripted.metadata(Deadline(1e6))
        assert clock.now - began < 3.0


def test_an_address_that_is_silent_is_waited_for_while_another_refuses(clock: Clock) -> None:
    scripted = Scripted(clock, "b:1,b:2", refused_s=2.0)
    scripted.brokers_say = {"b:1": GONE, "b:2": GONE}
    scripted.refusing = {"b:1"}
    began = clock.now
    with pytest.raises(Unreachable, match="no broker answered within"):
        scripted.metadata(Deadline(1e6))
    assert clock.now - began == pytest.approx(limits.CONNECT_TIMEOUT_MS / 1000)


def test_one_broker_that_may_be_back_soon_is_waited_for_whatever_is_wrong_at_another(clock: Clock) -> None:
    scripted = Scripted(clock, "b:1,b:2", refused_s=PATIENT)
    scripted.brokers_say = {"b:1": GONE, "b:2": GONE}
    scripted.faulty = {"b:1": "expired"}
    with pytest.raises(Unreachable, match="no broker answered within"):
        scripted.metadata(Deadline(20_000))


def test_a_cluster_that_has_answered_before_is_asked_until_the_deadline(scripted: Scripted, clock: Clock) -> None:
    scripted.brokers_say = {"b:1": told(brokers=1)}
    scripted.metadata(Deadline(1_000))
    scripted.brokers_say = {"b:1": GONE}
    began = clock.now
    with pytest.raises(Unreachable, match=r"within 60000 ms at b:1 \(b:1: gone\)$"):
        scripted.metadata(Deadline(60_000))
    assert clock.now - began == pytest.approx(60.0)


def test_a_refusal_is_not_asked_of_another(scripted: Scripted) -> None:
    scripted.learn(topic_info(1))
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        scripted.metadata(Deadline(5_000))
    assert scripted.addresses_asked() == ["b:1"]


def test_what_may_have_been_done_somewhere_is_noted(scripted: Scripted) -> None:
    scripted.learn(topic_info(1))
    replies = {"b:1": Overloaded("later"), "b:2": OutcomeUnknown("who knows"), "b:3": pb.CreateTopicResponse()}
    scripted.answers["CreateTopic"] = lambda address, request: replies[address]  # type: ignore[return-value]
    unclear: list[str] = []
    scripted.ask_any("CreateTopic", pb.CreateTopicRequest(), pb.CreateTopicResponse, Deadline(5_000), unclear)
    assert unclear == ["b:2"]


def test_all_are_asked_again_after_a_pause_until_one_answers(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1), brokers=2)
    answers = iter([GONE, GONE, told(brokers=2)])
    scripted.brokers_say = {"b:1": lambda request: next(answers), "b:2": GONE}
    scripted._answered = "b:1"
    scripted.metadata(Deadline(5_000))
    assert scripted.addresses_asked() == ["b:1", "b:2", "b:1", "b:2", "b:1"]
    assert len(clock.slept) == 2


# ---------------------------------------------------------------- a topic


def test_a_known_topic_is_not_asked_for_unless_it_was_heard_of_too_long_ago(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1))
    scripted.brokers_say = {"b:1": told(topic_info(2, epoch=2))}
    clock.now += 100
    assert scripted.topic("t", Deadline(5_000)).leaders == (1,)
    assert scripted.topic("t", Deadline(5_000), 100.0).leaders == (1,)
    assert scripted.asked == []
    assert scripted.topic("t", Deadline(5_000), 99.9).leaders == (2,)
    assert scripted.topic_age_s("t") == 0
    assert scripted.topic_age_s("unknown") == math.inf


def test_an_old_view_serves_while_nobody_answers_and_not_once_the_topic_is_gone(
    scripted: Scripted, clock: Clock
) -> None:
    scripted.learn(topic_info(1), brokers=1)
    scripted._answered = "b:1"
    scripted.brokers_say = {"b:1": GONE}
    clock.now += 100
    began = clock.now
    assert scripted.topic("t", Deadline(60_000), 1.0).leaders == (1,)
    assert clock.now - began == pytest.approx(5.0)
    scripted.brokers_say = {"b:1": told(unknown=("t",), brokers=1)}
    with pytest.raises(UnknownTopic):
        scripted.topic("t", Deadline(60_000), 1.0)
    assert scripted.known_topic("t") is None


def test_many_who_ask_at_once_ask_once(scripted: Scripted, clock: Clock) -> None:
    scripted.brokers_say = {"b:1": told(topic_info(1))}
    scripted.refresh("t", Deadline(5_000))
    clock.now += 0.04
    scripted.refresh("t", Deadline(5_000))
    assert len(scripted.asked) == 1
    scripted.refresh("t", Deadline(5_000), age_ms_max=0)
    assert len(scripted.asked) == 2
    scripted.refresh("t", Deadline(5_000), age_ms_max=0)  # not even what was told at this very moment will do
    assert len(scripted.asked) == 3
    clock.now += 0.06
    scripted.refresh("t", Deadline(5_000))
    assert len(scripted.asked) == 4


def test_an_answer_is_as_old_as_its_question(scripted: Scripted, clock: Clock) -> None:
    """What changed while it was on its way is not in it."""
    scripted.brokers_say = {"b:1": told(topic_info(1))}
    scripted.takes_s = {"b:1": 1.0}
    began = clock.now
    scripted.refresh("t", Deadline(5_000))
    assert scripted.topic_age_s("t") == clock.now - began == 1.0
    scripted.refresh("t", Deadline(5_000))
    assert len(scripted.asked) == 2


def test_a_topic_that_one_broker_does_not_know_is_asked_of_the_others(scripted: Scripted) -> None:
    strange = told(unknown=("t",))
    scripted.brokers_say = {"b:1": strange, "b:2": strange, "b:3": told(topic_info(1))}
    assert scripted.refresh("t", Deadline(5_000)).leaders == (1,)
    assert scripted.addresses_asked() == ["b:1", "b:2", "b:3"]


def test_a_topic_that_nobody_knows_is_told_with_the_nearest_name(scripted: Scripted) -> None:
    def answer(request: pb.MetadataRequest) -> pb.MetadataResponse:
        near, internal = topic_info(1, name="table"), topic_info(1, name="__tabl")
        return told(near, internal) if request.all_topics else told(unknown=("tabl",))

    scripted.brokers_say = {"b:1": answer, "b:2": answer, "b:3": answer}
    with pytest.raises(UnknownTopic, match=r"unknown topic 'tabl'.*did you mean 'table'"):
        scripted.refresh("tabl", Deadline(5_000))
    with pytest.raises(UnknownTopic, match=r"unknown topic 'tabl'"):
        scripted.topic("tabl", Deadline(5_000))


def test_an_internal_topic_is_waited_for_as_brokers_are_making_it(scripted: Scripted, clock: Clock) -> None:
    made = told(topic_info(1, name="__transactions"), brokers=1)
    ready_at = clock.now + 2
    scripted.brokers_say = {
        "b:1": lambda request: made if clock.now > ready_at else told(unknown=("__transactions",), brokers=1)
    }
    assert scripted.refresh("__transactions", Deadline(5_000)).partitions == 1
    assert clock.now > ready_at
    scripted.forget("__transactions")
    ready_at = math.inf
    began = clock.now
    with pytest.raises(UnknownTopic):
        scripted.refresh("__transactions", Deadline(3_000))
    assert clock.now - began >= 3


def test_a_doubted_broker_is_asked_last(scripted: Scripted) -> None:
    scripted.learn(topic_info(1))
    scripted._answered = "b:1"
    scripted.brokers_say = {"b:1": told(topic_info(1)), "b:2": GONE, "b:3": GONE}
    scripted.refresh("t", Deadline(5_000), ("b:1",), age_ms_max=0)
    assert scripted.addresses_asked() == ["b:2", "b:3", "b:1"]


# ---------------------------------------------------------------- many topics


def test_all_topics_are_told_in_several_answers(scripted: Scripted) -> None:
    def answer(request: pb.MetadataRequest) -> pb.MetadataResponse:
        names = [name for name in ("a", "b", "c", "d", "e") if name > request.after][:2]
        return told(*[topic_info(1, name=name) for name in reversed(names)], more=names[-1] < "e")

    scripted.brokers_say = {"b:1": answer}
    whole = scripted.metadata(Deadline(5_000), all_topics=True)
    assert sorted(topic.name for topic in whole.topics) == ["a", "b", "c", "d", "e"]
    assert [broker.id for broker in whole.brokers] == [1, 2, 3]
    assert not whole.more
    assert [request.after for _, _, request in scripted.asked] == ["", "b", "d"]


def test_named_topics_are_asked_for_until_each_is_told_or_unknown(
    scripted: Scripted,
) -> None:
    sizes: list[int] = []

    def answer(request: pb.MetadataRequest) -> pb.MetadataResponse:
        names = list(request.topics)
        sizes.append(len(names))
        unknown = tuple(name for name in names[:900] if name == "no")
        known = [topic_info(1, name=name) for name in names[:900] if name != "no"]
        return told(*known, unknown=unknown, more=len(names) > 900)

    scripted.brokers_say = {"b:1": answer}
    names = [f"t{number:04}" for number in range(2 * limits.REQUEST_TOPICS_MAX)]
    whole = scripted.metadata(Deadline(5_000), topics=["a", "no", *names, "a"])
    assert [topic.name for topic in whole.topics] == ["a", *names]
    assert list(whole.unknown_topics) == ["no"]
    assert scripted.known_topic(names[-1]) is not None
    assert max(sizes) == limits.REQUEST_TOPICS_MAX


# ---------------------------------------------------------------- what is believed


def test_brokers_are_those_last_heard_of_and_an_empty_list_is_no_news(scripted: Scripted) -> None:
    assert scripted.addresses() == ["b:1"]
    scripted.learn(topic_info(1), brokers=2)
    assert scripted.brokers() == {1: "b:1", 2: "b:2"}
    assert scripted.racks() == {1: "r1", 2: "r2"}
    scripted.learn(topic_info(1), brokers=0)
    assert scripted.addresses() == ["b:1", "b:2"]
    assert (scripted.broker_address(2), scripted.broker_address(3)) == ("b:2", None)


def leaders(view: TopicView | None) -> list[tuple[int, int]]:
    assert view is not None
    return list(zip(view.leaders, view.epochs, strict=True))


def test_a_broker_that_is_behind_takes_nothing_away_but_its_newer_leaders_count(scripted: Scripted) -> None:
    wide = topic_info(1, 1, 1, epoch=5)
    scripted.learn(wide)
    narrow = topic_info(2, 3)
    narrow.partitions[0].leader_epoch = 6
    narrow.partitions[1].leader_epoch = 4
    assert leaders(scripted.learn(narrow)) == [(2, 6), (1, 5), (1, 5)]


def test_a_broker_that_is_behind_tells_of_a_leader_that_is_gone_in_the_same_epoch(scripted: Scripted) -> None:
    scripted.learn(topic_info(1, 1, epoch=5))
    assert leaders(scripted.learn(topic_info(0, epoch=5))) == [(0, 5), (1, 5)]
    assert leaders(scripted.learn(topic_info(2, 0, epoch=5))) == [(2, 5), (0, 5)]


def test_a_topic_with_fewer_columns_than_known_is_an_older_description(scripted: Scripted) -> None:
    one, two = pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.int64())])
    scripted.learn(topic_info(1, schema=two))
    assert scripted.learn(topic_info(2, epoch=2, schema=one)).schema == two
    assert leaders(scripted.known_topic("t")) == [(2, 2)]
    assert scripted.learn(topic_info(2, epoch=2, schema=one, topic_id="another")).schema == one


def test_a_topic_is_made_alike_whoever_leads(scripted: Scripted) -> None:
    before = scripted.learn(topic_info(1, 1))
    assert before.is_made_as(scripted.learn(topic_info(2, 3, epoch=2)))
    assert not before.is_made_as(scripted.learn(topic_info(1, 1, 1)))
    changed = topic_info(1, 1, topic_id="y")
    other = scripted.learn(changed)
    changed.settings["retention_ms"] = "5000"
    assert not other.is_made_as(scripted.learn(changed))
    assert not before.is_made_as(other)


def test_columns_from_the_first_version_on_were_added(scripted: Scripted) -> None:
    info = topic_info(1, schema=pa.schema([(name, pa.int64()) for name in "abcd"]))
    assert scripted.learn(info).first_columns == 4
    info.earlier_columns.extend([2, 3])
    assert scripted.learn(info).first_columns == 2


def test_a_topic_that_a_broker_says_is_unknown_is_known_no_more(scripted: Scripted) -> None:
    scripted.learn(topic_info(1), topic_info(1, name="u"))
    scripted.brokers_say = {"b:1": told(topic_info(1, name="u"), unknown=("t",))}
    scripted.metadata(Deadline(1_000), topics=["t", "u"])
    assert scripted.known_topic("t") is None
    assert scripted.known_topic("u") is not None


# ---------------------------------------------------------------- the leader


def lead(scripted: Scripted, *answers: object) -> None:
    """The leader's answers, one after the other."""
    left = list(answers)
    scripted.clock.now += 1  # what is known was heard a while ago
    scripted.answers["Decide"] = lambda address, request: left.pop(0)  # type: ignore[return-value]


def decide(scripted: Scripted, deadline: Deadline, partition: int = 0) -> pb.DecideResponse:
    return scripted.ask_leader("t", partition, "Decide", pb.DecideRequest(), pb.DecideResponse, deadline, 2_000)


DONE = pb.DecideResponse(published=True)


def deciders(scripted: Scripted) -> list[str]:
    return [address for address, method, _ in scripted.asked if method == "Decide"]


def test_the_leader_is_followed_where_it_goes(scripted: Scripted) -> None:
    scripted.learn(topic_info(1))
    scripted.brokers_say = {"b:2": told(topic_info(3, epoch=3))}
    lead(scripted, Unreachable("gone"), Unreachable("gone"), DONE)
    assert decide(scripted, Deadline(60_000)).published
    assert deciders(scripted) == ["b:1", "b:3", "b:3"]


def test_a_broker_that_names_the_leader_is_believed_while_nobody_else_tells(scripted: Scripted) -> None:
    scripted.learn(topic_info(1))
    scripted._answered = "b:1"
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), OutcomeUnknown("late"))
    lead(scripted, NotLeader("2 does", 2, 2), DONE)
    assert decide(scripted, Deadline(1_000)).published
    assert deciders(scripted) == ["b:1", "b:2"]


def test_one_attempt_is_bounded_and_the_broker_that_was_asked_is_doubted(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1))
    clock.now += 1
    scripted.brokers_say = {"b:1": GONE, "b:2": told(topic_info(2, epoch=2)), "b:3": GONE}
    lead(scripted, OutcomeUnknown("late"), DONE)
    decide(scripted, Deadline(60_000))
    assert scripted.allowed_s[0] == 2.0
    assert scripted.addresses_asked() == ["b:1", "b:2", "b:2"]


def test_at_the_deadline_the_error_says_whether_it_may_have_happened(scripted: Scripted, clock: Clock) -> None:
    scripted.learn(topic_info(1))
    scripted._answered = "b:1"
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(topic_info(1)))
    for answer, raised in ((OutcomeUnknown("late"), OutcomeUnknown), (NotEnoughReplicas("few"), NotEnoughReplicas)):
        scripted.answers["Decide"] = lambda address, request, answer=answer: answer  # type: ignore[misc]
        began = clock.now
        with pytest.raises(raised):
            decide(scripted, Deadline(10_000))
        assert clock.now - began == pytest.approx(10.0)


def test_a_refusal_of_the_leader_is_raised_at_once(scripted: Scripted) -> None:
    scripted.learn(topic_info(1))
    lead(scripted, InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        decide(scripted, Deadline(60_000))


def test_a_partition_that_is_not_there_is_told(scripted: Scripted) -> None:
    scripted.learn(topic_info(1, 1))
    with pytest.raises(UnknownPartition, match="no partition 2: it has 0 to 1"):
        decide(scripted, Deadline(1_000), 2)


def test_while_nobody_tells_who_leads_the_leader_known_is_asked_again(scripted: Scripted) -> None:
    scripted.learn(topic_info(1), brokers=1)
    scripted._answered = "b:1"
    busy = iter([Overloaded("busy")])
    scripted.brokers_say = {"b:1": lambda request: next(busy, InvalidRequest("no"))}
    lead(scripted, OutcomeUnknown("late"), OutcomeUnknown("late"))
    with pytest.raises(InvalidRequest):  # by asking for metadata a second time: the first time was no reason to end
        decide(scripted, Deadline(1_000))


def test_a_partition_that_nobody_leads_is_told_at_the_deadline(scripted: Scripted) -> None:
    scripted.learn(topic_info(0))
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(topic_info(0)))
    with pytest.raises(Unreachable, match="Decide of 't' partition 0: no leader was known within 3000 ms"):
        decide(scripted, Deadline(3_000))
