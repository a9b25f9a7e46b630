"""Records of one priority share batches, which name it."""

from __future__ import annotations

import pytest

from mq_client.errors import InvalidSetting
from mq_client.producing.lanes import USUAL, Attributes, Due
from mq_client.producing.scheduling import attributes_of, checked_priority
from mq_client.producing.targets import OTHERS_MAX
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import PRIORITY_MAX, PRIORITY_USUAL
from tests.mq_client.producing.filling import accumulator, add, take_all, values, view
from tests.mq_client.producing.sender_turns import Turns


def test_records_of_one_priority_share_a_batch_whatever_comes_between() -> None:
    made = accumulator(max_in_flight=10)
    target = made.add_target(view())
    for n, priority in enumerate((9, PRIORITY_USUAL, 9, PRIORITY_USUAL, 0)):
        add(made, made.of(target, Attributes(priority)), b"%d" % n, 0.0)
    made.close_all()
    batches = [(batch.attributes.priority, values(batch)) for batch, _, _ in take_all(made, 0.0)]
    assert batches == [(9, [b"0", b"2"]), (PRIORITY_USUAL, [b"1", b"3"]), (0, [b"4"])]


def test_what_is_open_of_every_priority_is_closed_when_the_topic_changes() -> None:
    made = accumulator(max_in_flight=10)
    target = made.add_target(view())
    other = made.of(target, Attributes(9))
    assert made.of(target, Attributes(9)) is other
    add(made, other, b"1", 0.0)
    made.drop_target(target)
    assert other.dropped
    assert [batch.attributes.priority for batch, _, _ in take_all(made, 0.0)] == [9]


@pytest.mark.parametrize("wrong", [-1, 32, True, 1.0, "5", None])
def test_a_priority_is_a_number_from_0_to_31(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="from 0 to 31"):
        checked_priority(wrong)  # type: ignore[arg-type]


def test_each_batch_says_its_priority_unless_it_is_the_usual_one_and_when_it_is_due() -> None:
    turns = Turns(acks=pb.NONE)
    for priority in (0, PRIORITY_USUAL, PRIORITY_MAX):
        turns.publish(attributes=Attributes(priority))
    turns.publish(due=Due(at_us=77))
    turns.publish(due=Due(delay_ms=5))
    sent, _, _ = turns.turn()
    told = [header.attributes.priority if header.HasField("attributes") else None for header in sent]
    assert told == [0, None, PRIORITY_MAX, None, None]
    assert [(header.due_us, header.delay_ms) for header in sent] == [(0, 0)] * 3 + [(77, 0), (0, 5)]
    assert [header.acks for header in sent] == [pb.NONE] * 3 + [pb.ALL] * 2, "what is scheduled is never lost silently"


@pytest.mark.parametrize("wrong", [0, -1, 0.5, 366 * 86_400_000, float("nan"), "10m", True])
def test_a_ttl_is_a_number_of_milliseconds_up_to_a_year(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="ttl_ms"):
        attributes_of(4, wrong)  # type: ignore[arg-type]


def test_a_ttl_is_said_beside_the_priority() -> None:
    assert [attributes_of(4, None), attributes_of(9, 1.4)] == [USUAL, Attributes(9, 1)]
    turns = Turns()
    for attributes in (USUAL, Attributes(ttl_ms=5), Attributes(9, 6)):
        turns.publish(attributes=attributes)
    sent, _, _ = turns.turn()
    said = [(each.attributes.HasField("priority"), each.attributes.priority, each.attributes.ttl_ms) for each in sent]
    assert said == [(False, 0, 0), (False, 0, 5), (True, 9, 6)]


def test_where_each_record_has_a_ttl_of_its_own_not_all_of_them_are_remembered() -> None:
    made = accumulator(max_in_flight=10)
    target = made.add_target(view())
    for ttl_ms in range(1, 1_000):
        add(made, made.of(target, Attributes(ttl_ms=ttl_ms)), b"1", 0.0)
        if ttl_ms % 50 == 0:
            made.close_all()
        assert len(target.others) <= 50 + 2 * 50 + OTHERS_MAX
    made.close_all()
    assert made.idle is False
