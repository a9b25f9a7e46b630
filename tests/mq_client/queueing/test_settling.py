"""Outcomes that wait for their leader: what one request says, and who is told of the answer."""

from __future__ import annotations

import numpy as np
import pytest

from mq_client.errors import LeaseLost
from mq_client.queueing import settling
from mq_client.queueing.leases import HeldLease, LeaseId
from mq_client.queueing.settling import ACK, Outbox, Tally, failed, to_wire
from mq_protocol import mq_pb2 as pb


def lease(records: int, number: int = 0) -> HeldLease:
    return HeldLease(0, LeaseId(1, number, 0), [(100, 100 + records)], [1], [0], 30.0, 0.0)


def test_single_outcomes_become_one_line_and_each_has_its_own_answer() -> None:
    box, held, tallies = Outbox(), lease(10), [Tally(("t", 0), 1) for _ in range(4)]
    for index, tally in zip((3, 1, 2, 7), tallies, strict=True):
        box.add_one(held, index, ACK, tally, 5.0)
    box.add_one(held, 5, failed("boom"), Tally(("t", 0), 1), 6.0)
    assert (box.since, box.records) == (5.0, 5)
    lines = box.take_lines()
    assert not box
    assert box.records == 0
    assert [(list(one.ranges), one.outcome, one.error) for one in to_wire(lines)] == [
        ([101, 3, 3, 1], pb.OUTCOME_ACK, ""),
        ([105, 1], pb.OUTCOME_FAIL, "boom"),
    ]
    for tally in lines[0].pieces[0].answered({2}):
        tally.tell()
    assert [tally.future.done() for tally in tallies] == [True] * 4
    with pytest.raises(LeaseLost, match="offset 102"):
        tallies[2].future.result()
    assert tallies[0].future.result() is None


def test_an_error_text_is_cut_on_a_character() -> None:
    word = failed("ü" * 1_000)
    assert len(word.error.encode()) <= 256
    assert word.error.endswith("...")


def test_one_request_says_no_more_than_it_may_and_nothing_is_said_of_no_records() -> None:
    for most, apart in ((settling.RECORDS_MAX, 1), (settling.RANGES_MAX, 2)):
        box, held = Outbox(), lease(3 * apart * most)
        indexes = np.arange(0, len(held.offsets), apart)
        first, second, rest, last = np.split(indexes[: 2 * most + 1], (most, most + 2, 2 * most))
        box.add(held, first, ACK, Tally(("t", 0), most), 0.0)
        box.add(held, second, failed("boom"), Tally(("t", 0), 2), 0.0)
        if apart == 1:
            box.add(held, np.concatenate((rest, last)), ACK, Tally(("t", 0), most - 1), 0.0)
        else:
            for index in (*rest, *last):
                box.add_one(held, int(index), ACK, Tally(("t", 0), 1), 0.0)
        assert box.records == 2 * most + 1
        requests = list(iter(box.take_lines, []))
        told = [[line.indexes.tolist() for line in lines] for lines in requests]
        assert told == [[first.tolist()], [second.tolist(), rest.tolist()], [last.tolist()]]
        assert (box.records, bool(box)) == (0, False)


def test_what_is_drained_is_said_no_more() -> None:
    box, held = Outbox(), lease(4)
    box.add_one(held, 0, ACK, Tally(("t", 0), 1), 0.0)
    [piece] = box.drain()
    assert (piece.indexes, box.records, bool(box), box.take_lines()) == ([0], 0, False, [])
