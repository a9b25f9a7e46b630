"""Outcomes that wait for their leader: what one request says, and who is told of the answer."""

from __future__ import annotations

import numpy as np
import pytest

from mq_client.errors import LeaseLost, NotLeader
from mq_client.queueing import settling
from mq_client.queueing.leases import HeldLease, LeaseId
from mq_client.queueing.settling import ACK, RANGES_MAX, Outbox, StagedOutputs, Tally, Word, failed, to_wire
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart


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


def test_outcomes_of_different_leases_and_words_are_lines_of_their_own() -> None:
    box, one, two = Outbox(), lease(4), lease(4, number=2)
    later = Word(pb.OUTCOME_RELEASE, "", 250)
    for held, index, word in ((one, 0, ACK), (two, 0, ACK), (one, 1, ACK), (one, 2, later)):
        box.add_one(held, index, word, Tally(("t", 0), 1), 0.0)
    wire = to_wire(box.take_lines())
    assert [(one.lease.entry, list(one.ranges)) for one in wire] == [(0, [100, 2]), (2, [100, 1]), (0, [102, 1])]
    assert [one.HasField("delay_ms") for one in wire] == [False, False, True]
    assert wire[2].delay_ms == 250


def test_what_is_too_much_for_one_request_goes_in_several_and_is_answered_once() -> None:
    box, held = Outbox(), lease(4 * RANGES_MAX)
    every_other = np.arange(0, 4 * RANGES_MAX, 2)
    tally = Tally(("t", 0), len(every_other))
    box.add(held, every_other, ACK, tally, 0.0)
    said, requests = 0, 0
    while box:
        lines = box.take_lines()
        requests += 1
        ranges = sum(len(one.ranges) // 2 for one in to_wire(lines))
        assert 0 < ranges <= RANGES_MAX
        said += ranges
        finished = [t for line in lines for piece in line.pieces for t in piece.answered(set())]
        assert bool(finished) == (said == len(every_other))
    assert (said, requests) == (len(every_other), 2)


def test_one_request_has_one_ack_with_outputs() -> None:
    """A leader takes numbers in order: the first one, asked again behind the second, would be taken for done."""
    part = StagedPart("out", 2, (b"u" * 16,), 3, "id")
    box, held = Outbox(), lease(RANGES_MAX * 2)
    box.add_one(held, 0, ACK, Tally(("t", 0), 1), 0.0)
    for number, index in ((7, 1), (8, 2)):
        word = Word(pb.OUTCOME_ACK, outputs=StagedOutputs((part,), number))
        box.add(held, np.array([index]), word, Tally(("t", 0), 1), 0.0)
    box.add_one(held, 3, ACK, Tally(("t", 0), 1), 0.0)
    requests = [to_wire(lines) for lines in iter(box.take_lines, [])]
    assert [[(one.number, list(one.ranges)) for one in request] for request in requests] == [
        [(0, [100, 1]), (7, [101, 1])],
        [(8, [102, 1]), (0, [103, 1])],
    ]
    assert box.records == 0
    [line] = requests[0][1].outputs
    assert (line.topic, line.partition, line.topic_id, line.row_count) == ("out", 2, "id", 3)
    assert list(line.uuids) == [b"u" * 16]


def test_what_had_no_answer_is_said_again_before_all_else() -> None:
    box, held = Outbox(), lease(10)
    box.add_one(held, 0, ACK, Tally(("t", 0), 1), 0.0)
    lines = box.take_lines()
    box.add_one(held, 1, ACK, Tally(("t", 0), 1), 0.0)
    box.put_back(lines, again=True)
    again = box.take_lines()
    assert [(line.again, line.indexes.tolist()) for line in again] == [(True, [0]), (False, [1])]


def test_a_call_that_was_refused_tells_why() -> None:
    tally = Tally(("t", 0), 2)
    assert not tally.answered(1)
    assert tally.answered(1, error=NotLeader("no"))
    tally.tell()
    with pytest.raises(NotLeader):
        tally.future.result()


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


def test_an_ack_with_outputs_that_has_no_room_is_in_the_next_request_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    word = Word(pb.OUTCOME_ACK, outputs=StagedOutputs((StagedPart("out", 2, (b"u" * 16,), 3, "id"),), 7))
    for bound in ("RECORDS_MAX", "RANGES_MAX"):
        monkeypatch.setattr(settling, bound, 4)
        for before, expected in ((2, [[0, 1], [10, 12, 14]]), (1, [[0], [10, 12, 14]])):
            box, held = Outbox(), lease(40)
            for index in range(before):
                box.add_one(held, index, ACK, Tally(("t", 0), 1), 0.0)
            box.add(held, np.array([10, 12, 14]), word, Tally(("t", 0), 3), 0.0)
            requests = [[line.indexes.tolist() for line in lines] for lines in iter(box.take_lines, [])]
            assert [indexes for lines in requests for indexes in lines] == expected
            assert len(requests) == before
        monkeypatch.undo()


def test_what_is_drained_is_said_no_more() -> None:
    box, held = Outbox(), lease(4)
    box.add_one(held, 0, ACK, Tally(("t", 0), 1), 0.0)
    [piece] = box.drain()
    assert (piece.indexes, box.records, bool(box), box.take_lines()) == ([0], 0, False, [])
