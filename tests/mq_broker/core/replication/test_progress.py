"""What a leader takes for the present log of a follower, whatever order words of its former ones come in."""

from __future__ import annotations

from mq_broker.core.messages import AppendAck
from mq_broker.core.replication.progress import Progress


def ack(log_id: str, sequence: int) -> AppendAck:
    return AppendAck(2, 1, log_id, 1, 0, 0, sequence)


def test_a_former_log_that_is_heard_of_late_does_not_shut_out_the_one_that_followed_it() -> None:
    progress = Progress(2, 1, 0)
    assert progress.hears(ack("first", 0), 0)
    for sequence in (1, 2, 3):
        progress.sent_message(sequence, 0, 0, 0)
    assert progress.hears(ack("third", 3), 0)
    assert not progress.hears(ack("second", 2), 0)
    assert not progress.hears(ack("first", 1), 0)
    assert progress.hears(ack("third", 3), 0)
    progress.sent_message(4, 0, 0, 0)
    assert progress.hears(ack("fourth", 4), 0)
    assert progress.log_id == "fourth"


def test_a_log_that_has_just_begun_is_asked_at_once_though_it_cannot_be_told_from_a_former_one() -> None:
    progress = Progress(2, 1, 0)
    assert progress.hears(ack("present", 0), 0)
    progress.lacks_base = True
    progress.sent_message(1, 0, 0, 0)
    assert not progress.hears(ack("begun anew", 0), 0)
    assert not progress.sent, "nothing is waited for, so the next message goes at once"
    assert not progress.lacks_base


def test_of_two_logs_of_which_either_may_be_the_newer_none_joins_until_a_later_message_is_answered() -> None:
    progress = Progress(2, 1, 0)
    for sequence in (1, 2, 3):
        progress.sent_message(sequence, 0, 0, 0)
    assert progress.hears(ack("former", 1), 0)
    assert not progress.hears(ack("present", 3), 0)
    assert disputed(progress)
    for sequence in (2, 3):
        assert progress.hears(ack("former", sequence), 0)
        assert disputed(progress), "it was said before, or it is said late: nobody knows"
    progress.sent_message(4, 0, 0, 0)
    assert progress.hears(ack("present", 4), 0)
    assert not disputed(progress)
    assert not progress.hears(ack("former", 3), 0)
    progress.sent_message(5, 0, 0, 0)
    assert progress.hears(ack("present", 5), 0)
    assert not disputed(progress)


def disputed(progress: Progress) -> bool:
    return progress.disputed


def sent(progress: Progress, sequence: int, last_index: int, now_ms: int) -> None:
    progress.sent_message(sequence, last_index, now_ms, 0)


def test_lag_counts_from_what_was_sent_until_it_is_acknowledged() -> None:
    progress = Progress(2, 1, 0)
    assert progress.behind_ms(1_000) == 0
    sent(progress, 1, 0, 1_000)
    assert progress.behind_ms(2_000) == 0, "a heartbeat is no entry"
    sent(progress, 2, 5, 2_000)
    sent(progress, 3, 7, 2_500)
    assert progress.behind_ms(3_000) == 1_000
    progress.caught_up_to(4, 7, 3_000)
    assert progress.behind_ms(3_000) == 1_000, "what was sent first has not arrived whole"
    progress.caught_up_to(5, 7, 3_000)
    assert progress.behind_ms(3_100) == 100, "it has, and the rest is waited for anew"
    progress.caught_up_to(6, 7, 3_200)
    assert progress.behind_ms(3_300) == 300
    progress.caught_up_to(7, 7, 3_400)
    assert progress.behind_ms(9_000) == 0
    progress.caught_up_to(6, 9, 3_500)
    assert (progress.acknowledged, progress.behind_ms(9_000)) == (7, 0), "an older answer takes nothing back"


def test_what_cannot_be_sent_is_lag_too_and_what_is_not_there_is_none() -> None:
    progress = Progress(2, 4, 0)
    progress.caught_up_to(3, 3, 0)
    progress.unreachable(3, 1_000)
    assert progress.behind_ms(2_000) == 0
    progress.unreachable(4, 2_000)
    progress.unreachable(6, 2_500)
    assert progress.behind_ms(3_000) == 1_000
    progress.caught_up_to(4, 6, 3_000)
    assert progress.behind_ms(3_000) == 0, "what was waited for first has arrived"


def test_answers_come_in_order_and_each_answers_all_before_it() -> None:
    progress = Progress(2, 1, 0)
    for sequence in (1, 2, 3):
        sent(progress, sequence, sequence, 0)
    progress.answered(2)
    assert list(progress.sent) == [3]
    progress.answered(2)
    assert list(progress.sent) == [3]
    progress.answered(3)
    assert not progress.sent


def test_a_former_life_is_not_heard_and_a_new_one_begins_with_nothing_acknowledged() -> None:
    progress = Progress(2, 1, 0)
    assert progress.hears(ack("log", 1), 10)
    progress.matched, progress.acknowledged, progress.lacks_base, progress.behind_since_ms = 5, 4, True, 0
    newer = AppendAck(2, 2, "log", 1, 0, 0, 2)
    assert progress.hears(newer, 20), "the same log, in another life of its broker"
    assert (progress.matched, progress.acknowledged, progress.lacks_base) == (0, 0, False)
    assert progress.behind_ms(99) == 0
    assert not progress.hears(ack("log", 3), 30)
    assert (progress.incarnation, progress.last_heard_ms) == (2, 20)


def test_what_was_in_flight_is_sent_again_behind_what_matches_or_where_that_was_sought() -> None:
    progress = Progress(2, 8, 0)
    progress.step_back(4)
    sent(progress, 1, 9, 0)
    progress.rewind()
    assert (progress.next_index, progress.probing, list(progress.sent)) == (4, True, [])
    progress.matched = 6
    sent(progress, 2, 9, 0)
    progress.rewind()
    assert progress.next_index == 7


def test_who_was_sent_nothing_of_what_the_disk_refused_need_not_be_asked_where_its_log_matches() -> None:
    progress = Progress(2, 1, 0)
    sent(progress, 1, 5, 0)
    progress.probing = False
    progress.log_was_cut(5)
    assert (progress.probing, list(progress.sent)) == (False, [1]), "its answer is waited for still"
    progress.log_was_cut(4)
    assert (progress.probing, progress.next_index, list(progress.sent)) == (True, 5, [])
