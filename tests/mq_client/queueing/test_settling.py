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


def test_one_request_says_no_more_than_it_may_and_nothing_is_said_of_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for bound in ("RECORDS_MAX", "RANGES_MAX"):
        monkeypatch.setattr(settling, bound, 4)
        box, held = Outbox(), lease(40)
        every_other = np.arange(0, 12, 2)
        box.add(held, every_other[:4], ACK, Tally(("t", 0), 4), 0.0)
        box.add(held, np.array([20, 22]), failed("boom"), Tally(("t", 0), 2), 0.0)
        for index in (30, 32, 34):
            box.add_one(held, index, ACK, Tally(("t", 0), 1), 0.0)
        assert box.records == 9
        requests = list(iter(box.take_lines, []))
        assert [[line.indexes.tolist() for line in lines] for lines in requests] == [
            [[0, 2, 4, 6]],
            [[20, 22], [30, 32]],
            [[34]],
        ]
        assert (box.records, bool(box)) == (0, False)
        monkeypatch.undo()


def test_what_is_drained_is_said_no_more() -> None:
    box, held = Outbox(), lease(4)
    box.add_one(held, 0, ACK, Tally(("t", 0), 1), 0.0)
    [piece] = box.drain()
    assert (piece.indexes, box.records, bool(box), box.take_lines()) == ([0], 0, False, [])
