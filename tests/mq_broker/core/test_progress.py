"""What a leader takes for the present log of a follower, whatever order words of its former ones come in."""

from __future__ import annotations

from mq_broker.core.messages import AppendAck
from mq_broker.core.progress import Progress


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
    assert progress.hears(ack("former", 2), 0)
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
