"""The ledger of lines: what is acknowledged, and the first line that is not."""

from __future__ import annotations

import pytest

from mq_cli.records.produce import Ledger
from mq_client.errors import OutcomeUnknown, UnknownTopic
from mq_client.producing.futures import BatchOutcome, BatchPlace, RecordFuture, TableOutcome


def sent(ledger: Ledger, outcome: BatchOutcome, lines: list[int]) -> None:
    for index, line in enumerate(lines):
        ledger.line = line
        ledger.add(RecordFuture(outcome, index))


def test_messages_of_batches_are_counted_when_their_batch_is_answered() -> None:
    ledger, first, second = Ledger(), BatchOutcome("t"), BatchOutcome("t")
    sent(ledger, first, [1, 2])
    sent(ledger, second, [3])
    ledger.look()
    assert (ledger.sent, ledger.acknowledged) == (3, 0)
    first.settle(BatchPlace(0, 0, 2, 0, False), None)
    ledger.look()
    assert ledger.acknowledged == 2
    second.settle(BatchPlace(0, 2, 1, 0, False), None)
    ledger.settle(0)
    assert (ledger.acknowledged, ledger.failure) == (3, None)


def test_the_first_line_that_did_not_arrive_is_known_whatever_came_after_it() -> None:
    ledger, lost, kept, table = Ledger(), BatchOutcome("t"), BatchOutcome("t"), TableOutcome("t", 5)
    sent(ledger, kept, [1, 3])
    sent(ledger, lost, [2, 4])
    ledger.add_table(table.future, 5, 5)
    table.piece().settle(BatchPlace(0, 2, 5, 0, False), None)
    table.complete()
    error = UnknownTopic("gone")
    lost.settle(None, error)
    kept.settle(BatchPlace(0, 0, 2, 0, False), None)
    with pytest.raises(UnknownTopic):
        ledger.look()
    ledger.settle(0)
    assert (ledger.acknowledged, ledger.failure) == (7, (2, error))


def test_an_answer_that_does_not_come_is_no_acknowledgement() -> None:
    ledger = Ledger()
    sent(ledger, BatchOutcome("t"), [1])
    ledger.settle(0.01)
    assert ledger.acknowledged == 0
    assert ledger.failure is not None
    assert isinstance(ledger.failure[1], OutcomeUnknown)
