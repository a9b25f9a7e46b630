"""Where a stream stands: micro-batch 0, replays, AvailableNow, new partitions, and what happens when data is gone."""

from __future__ import annotations

import pytest

from mq_protocol.errors import DataLoss, InvalidSetting
from mq_protocol.limits import OFFSETS_OF_A_LIFE
from mq_spark.planning.offsets import Mark, OffsetRange
from mq_spark.planning.option_values import AtTime
from mq_spark.planning.options import SourceOptions, parse_source
from mq_spark.planning.positions import AllBounds, BeyondTheEnd, Bounds, Positions, resolved, times_wanted


def options(**extra: str) -> SourceOptions:
    return parse_source({"bootstrap.servers": "a:1", "subscribe": "t", **extra}, streaming=True)


def bounds(*each: tuple[int, int]) -> AllBounds:
    return {"t": {partition: Bounds(*bound) for partition, bound in enumerate(each)}}


EXACT = '{"t":{"0":5,"1":0}}'


def test_micro_batch_0_begins_where_it_did_the_first_time_however_often_it_is_planned() -> None:
    stream = Positions(options())
    start = stream.initial(bounds((0, 10), (0, 20)))
    assert start == {"t": {0: 10, 1: 20}}
    later = bounds((0, 15), (0, 20))
    end = Mark(stream.latest(start, later, None), begun=start)
    assert end.offsets == {"t": {0: 15, 1: 20}}
    again = stream.initial(later)  # Spark keeps no answer and asks again before it plans
    assert again == {"t": {0: 15, 1: 20}}
    begin = end.starts(Mark(again, begun=again))
    assert stream.planned(begin, end.offsets, later) == [OffsetRange("t", 0, 10, 15)]


def test_the_next_micro_batch_begins_where_the_first_one_ended() -> None:
    first = Mark({"t": {0: 15}}, begun={"t": {0: 10}})
    assert Mark({"t": {0: 20}}).starts(first) == {"t": {0: 15}}
    assert first.starts(first) == {"t": {0: 15}}  # a micro-batch without rows of ours


def test_offsets_that_were_given_are_read_from_at_once() -> None:
    stream = Positions(options(startingOffsets=EXACT))
    start = stream.initial(bounds((0, 10), (0, 20)))
    assert start == {"t": {0: 5, 1: 0}}
    assert stream.latest(start, bounds((0, 10), (0, 20)), None) == {"t": {0: 10, 1: 20}}


def test_a_micro_batch_waits_for_enough_rows_until_its_time_is_up() -> None:
    stream = Positions(options(minOffsetsPerTrigger="5", maxTriggerDelay="10s"))
    assert stream.latest({"t": {0: 0}}, bounds((0, 2)), None, now_s=100) == {"t": {0: 2}}  # nothing has been given yet
    assert stream.latest({"t": {0: 2}}, bounds((0, 6)), None, now_s=109) == {"t": {0: 2}}
    assert stream.latest({"t": {0: 2}}, bounds((0, 7)), None, now_s=109) == {"t": {0: 7}}
    assert stream.latest({"t": {0: 7}}, bounds((0, 8)), None, now_s=118) == {"t": {0: 7}}
    assert stream.latest({"t": {0: 7}}, bounds((0, 8)), None, now_s=119) == {"t": {0: 8}}


def test_available_now_takes_what_there_is_however_little() -> None:
    stream = Positions(options(minOffsetsPerTrigger="5"))
    stream.fix_end(bounds((0, 4)))
    assert stream.latest({"t": {0: 0}}, bounds((0, 4)), 3, now_s=0) == {"t": {0: 3}}
    assert stream.latest({"t": {0: 3}}, bounds((0, 4)), 3, now_s=1) == {"t": {0: 4}}


def test_available_now_fixes_its_end_once_and_reaches_it() -> None:
    stream = Positions(options())
    stream.fix_end(bounds((0, 10)))
    more = bounds((0, 99), (0, 50))  # rows and a whole partition that came later
    first = stream.latest({"t": {0: 0}}, more, 6)
    assert first == {"t": {0: 6, 1: 0}}
    last = stream.latest(first, more, 6)
    assert last == {"t": {0: 10, 1: 0}}
    assert stream.latest(last, more, 6) == last


def test_available_now_reaches_its_end_even_if_what_the_brokers_have_pushed_is_older() -> None:
    stream = Positions(options())
    stream.fix_end(bounds((0, 10)))
    assert stream.latest({"t": {0: 0}}, bounds((0, 4)), None) == {"t": {0: 10}}


def test_available_now_reads_a_partition_that_came_between_two_runs_even_if_its_end_has_not_been_pushed_yet() -> None:
    stream = Positions(options())
    stream.fix_end(bounds((0, 10), (2, 5)))
    pushed = bounds((0, 10))
    first = stream.latest({"t": {0: 10}}, pushed, None)
    assert first == {"t": {0: 10, 1: 2}}
    assert stream.planned({"t": {0: 10}}, first, pushed) == []
    last = stream.latest(first, pushed, None)
    assert last == {"t": {0: 10, 1: 5}}
    assert stream.planned(first, last, pushed) == [OffsetRange("t", 1, 2, 5)]
    assert stream.latest(last, bounds((0, 99), (0, 99), (0, 99)), None) == {"t": {0: 10, 1: 5, 2: 0}}


def test_a_topic_that_a_pattern_finds_begins_at_its_first_record() -> None:
    stream = Positions(pattern())
    assert stream.initial({}) == {}
    end = stream.latest({}, {"t1": {0: Bounds(3, 9)}}, 4)
    assert end == {"t1": {0: 3}}
    assert stream.latest(end, {"t1": {0: Bounds(3, 9)}}, 4) == {"t1": {0: 7}}


def test_a_topic_that_a_pattern_no_longer_finds_is_a_loss() -> None:
    now = {"t1": {0: Bounds(0, 9)}}
    with pytest.raises(BeyondTheEnd, match="offset 5 of topic t2 partition 0 is wanted and that partition is gone"):
        Positions(pattern()).latest({"t1": {0: 9}, "t2": {0: 5}}, now, None)
    with pytest.raises(DataLoss, match="subscribePattern no longer names that topic"):
        Positions(pattern()).latest({"t1": {0: 9}, "u": {0: 5}}, now, None)
    allowed = Positions(pattern(failOnDataLoss="false"))
    assert allowed.latest({"t1": {0: 9}, "t2": {0: 5}}, now, None) == {"t1": {0: 9}}


def pattern(**extra: str) -> SourceOptions:
    return parse_source({"bootstrap.servers": "a:1", "subscribePattern": "t.*", **extra}, streaming=True)


def test_a_partition_that_is_no_longer_assigned_is_a_loss() -> None:
    given = parse_source({"bootstrap.servers": "a:1", "assign": '{"t":[1]}'}, streaming=True)
    with pytest.raises(DataLoss, match="assign no longer names that partition"):
        Positions(given).latest({"t": {0: 5, 1: 2}}, {"t": {1: Bounds(0, 9)}}, None)


def test_a_time_after_which_there_is_nothing_is_an_error_or_the_end() -> None:
    found = {"t": {0: 4, 1: None}}
    both = bounds((0, 10), (0, 20))
    with pytest.raises(
        InvalidSetting, match="startingTimestamp finds nothing in topic t partition 1, where all is older: give an"
    ):
        resolved("startingOffsets", AtTime("startingTimestamp", 5, otherwise_latest=False), both, found, fail=True)
    at = AtTime("startingTimestamp", 5, otherwise_latest=True)
    assert resolved("startingOffsets", at, both, found, fail=True) == {"t": {0: 4, 1: 20}}


def test_times_must_name_every_partition() -> None:
    both = bounds((0, 10), (0, 20))
    assert times_wanted(AtTime("startingTimestamp", 5, otherwise_latest=True), both) == {"t": {0: 5, 1: 5}}
    each = AtTime("startingOffsetsByTimestamp", {"t": {0: 5}}, otherwise_latest=True)
    with pytest.raises(
        InvalidSetting, match="startingOffsetsByTimestamp names partitions 0 of topic t, which has 0, 1"
    ):
        times_wanted(each, both)
    with pytest.raises(InvalidSetting, match="startingOffsetsByTimestamp names topics t, and there are u"):
        times_wanted(each, {"u": {0: Bounds(0, 1)}})


def test_available_now_never_goes_back_behind_where_it_began() -> None:
    stream = Positions(options())
    stream.fix_end(bounds((0, 10)))
    assert stream.latest({"t": {0: 12}}, bounds((0, 99)), None) == {"t": {0: 12}}


def test_removed_data_is_an_error_that_names_everything() -> None:
    stream = Positions(options())
    with pytest.raises(DataLoss) as caught:
        stream.latest({"t": {0: 3}}, bounds((5, 10)), None)
    assert str(caught.value) == (
        "data was lost: offset 3 of topic t partition 0 is wanted and only 5 to 10 is kept: retention has removed the "
        "rest; to continue without them, set option failOnDataLoss=false, or begin with a new checkpoint"
    )
    with pytest.raises(DataLoss, match="offset 3 of topic t partition 0 is wanted and only 5 to 10 is kept"):
        stream.planned({"t": {0: 3}}, {"t": {0: 9}}, bounds((5, 10)))


def test_a_topic_that_was_made_again_is_an_error() -> None:
    with pytest.raises(BeyondTheEnd, match="deleted and made again"):
        Positions(options()).latest({"t": {0: 50}}, bounds((0, 10)), None)
    allowed = Positions(options(failOnDataLoss="false"))
    assert allowed.latest({"t": {0: 50}}, bounds((0, 10)), None) == {"t": {0: 10}}
    with pytest.raises(BeyondTheEnd):  # who is not sure asks again, or rows would come twice
        allowed.latest({"t": {0: 50}}, bounds((0, 10)), None, sure=False)
    with pytest.raises(BeyondTheEnd, match="offset 50 of topic t partition 0 is wanted and only 0 to 10 is there"):
        Positions(options()).planned({"t": {0: 5}}, {"t": {0: 50}}, bounds((0, 10)))
    with pytest.raises(DataLoss, match="that partition is gone"):
        Positions(options()).latest({"t": {0: 1, 1: 5}}, bounds((0, 10)), None)
    with pytest.raises(DataLoss, match="subscribe no longer names that topic"):
        Positions(options()).latest({"t": {0: 1}, "u": {0: 5}}, bounds((0, 10)), None)


def test_a_topic_that_was_made_again_is_known_by_its_id_however_many_rows_it_has() -> None:
    last, now = Mark({"t": {0: 30}, "u": {0: 4}}, {"t": "old"}), {"t": {0: Bounds(2, 50)}, "u": {0: Bounds(0, 9)}}
    strict, allowed = Positions(options()), Positions(options(failOnDataLoss="false"))
    for stream in (strict, allowed):
        assert stream.goes_on(last, now, {"t": "old", "u": "any"}) == last.offsets
        with pytest.raises(BeyondTheEnd, match="topic t was deleted and made again since it was read; to read the new"):
            stream.goes_on(last, now, {"t": "new", "u": "any"}, sure=False)
    with pytest.raises(DataLoss):
        strict.goes_on(last, now, {"t": "new"})
    assert allowed.goes_on(last, now, {"t": "new", "u": "any"}) == {"t": {0: 2}, "u": {0: 4}}


def test_losses_that_are_allowed_are_passed_over_and_not_counted_as_rows() -> None:
    stream = Positions(options(failOnDataLoss="false"))
    assert stream.latest({"t": {0: 3, 1: 2}, "u": {0: 5}}, bounds((5, 10), (0, 1)), 2) == {"t": {0: 7, 1: 1}}
    assert stream.planned({"t": {0: 3}}, {"t": {0: 7, 1: 9}}, bounds((5, 10), (0, 1))) == [OffsetRange("t", 0, 5, 7)]


def test_given_offsets_must_name_every_partition_and_lie_in_what_is_kept() -> None:
    at = options(startingOffsets=EXACT).starting
    with pytest.raises(
        InvalidSetting, match="startingOffsets names partitions 0, 1 of topic t, which has 0: name every one"
    ):
        resolved("startingOffsets", at, bounds((0, 10)), fail=True)
    with pytest.raises(
        InvalidSetting, match="startingOffsets has offset 5 for topic t partition 0, which keeps 6 to 10"
    ):
        resolved("startingOffsets", at, bounds((6, 10), (0, 1)), fail=True)
    assert resolved("startingOffsets", at, bounds((6, 10), (0, 1)), fail=False) == {"t": {0: 6, 1: 0}}


def test_a_micro_batch_ends_where_offsets_went_on_after_a_loss_which_is_told_first() -> None:
    life, start = OFFSETS_OF_A_LIFE, {"t": {0: 5}}
    for end in (life, life + 9):
        with pytest.raises(DataLoss, match=f"up to offset {life - 1}, was lost in part or whole"):
            Positions(options()).latest(start, bounds((0, end)), None)
    stream = Positions(options(failOnDataLoss="false"))
    seen = bounds((0, life + 9))
    assert stream.latest(start, seen, None) == {"t": {0: life}}
    assert stream.planned(start, {"t": {0: life}}, seen) == [OffsetRange("t", 0, 5, life)]
    assert stream.latest({"t": {0: life}}, seen, None) == {"t": {0: life + 9}}
