"""Futures that are made real on first use behave as concurrent.futures promises."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait

import pytest

from mq_client.errors import OutcomeUnknown
from mq_client.producing.futures import BatchOutcome, BatchPlace, RecordFuture, RecordMetadata, TableOutcome

PLACE = BatchPlace(2, 100, 3, 55, False)


def test_each_record_has_its_own_offset() -> None:
    outcome = BatchOutcome("t")
    futures = [RecordFuture(outcome, index) for index in range(3)]
    assert not futures[0].done()
    outcome.settle(PLACE, None)
    assert [future.result(0) for future in futures] == [RecordMetadata("t", 2, 100 + i, 55, False) for i in range(3)]


def test_a_future_that_nobody_looks_at_is_never_made() -> None:
    future = RecordFuture(BatchOutcome("t"), 0)
    future.outcome.settle(PLACE, None)
    assert "_condition" not in vars(future)
    assert not future.outcome.observed
    assert future.done()
    assert not future.outcome.observed, "an error that it had would not be seen"
    assert future.exception(0) is None
    assert future.outcome.observed


def test_an_error_reaches_every_record() -> None:
    outcome = BatchOutcome("t")
    before, after = RecordFuture(outcome, 0), RecordFuture(outcome, 1)
    called: list[Future[RecordMetadata]] = []
    before.add_done_callback(called.append)
    outcome.settle(None, OutcomeUnknown("?"))
    assert called == [before]
    for future in (before, after):
        with pytest.raises(OutcomeUnknown):
            future.result(0)


def test_wait_and_as_completed_work() -> None:
    outcomes = [BatchOutcome("t"), BatchOutcome("t")]
    futures = [RecordFuture(outcome, 0) for outcome in outcomes]
    assert wait(futures, timeout=0).done == set()
    outcomes[0].settle(PLACE, None)
    assert wait(futures, timeout=5, return_when=FIRST_COMPLETED).done == {futures[0]}
    outcomes[1].settle(PLACE, None)
    assert set(as_completed(futures, timeout=5)) == set(futures)


def test_result_waits_for_another_thread() -> None:
    outcome = BatchOutcome("t")
    future = RecordFuture(outcome, 0)
    threading.Timer(0.05, outcome.settle, (PLACE, None)).start()
    assert future.result(5).offset == 100
    with pytest.raises(TimeoutError):
        RecordFuture(BatchOutcome("t"), 0).result(0.01)


def test_many_threads_may_look_first() -> None:
    for _ in range(50):
        outcome = BatchOutcome("t")
        future = RecordFuture(outcome, 1)
        with ThreadPoolExecutor(5) as threads:
            looking = [threads.submit(future.result, 5) for _ in range(4)]
            threads.submit(outcome.settle, PLACE, None)
            assert [look.result(5).offset for look in looking] == [101] * 4


def test_a_record_on_its_way_cannot_be_cancelled() -> None:
    outcome = BatchOutcome("t")
    future = RecordFuture(outcome, 0)
    assert not future.cancel()
    outcome.settle(PLACE, None)
    assert future.result(0).partition == 2


def test_without_acknowledgement_the_offset_is_unknown() -> None:
    outcome = BatchOutcome("t")
    outcome.settle(BatchPlace(0, -1, 5, 0, False), None)
    assert RecordFuture(outcome, 3).result(0).offset == -1


def test_a_table_is_done_when_all_its_pieces_are() -> None:
    outcome = TableOutcome("t", 5)
    pieces = [outcome.piece(), outcome.piece()]
    pieces[1].settle(BatchPlace(1, 7, 2, 0, False), None)
    future = outcome.complete()
    assert not future.done()
    pieces[0].settle(BatchPlace(0, 0, 3, 0, False), None)
    assert [place.base_offset for place in future.result(0).places] == [0, 7]
    assert (future.result(0).partition, future.result(0).base_offset) == (0, 0)


def test_a_table_of_which_a_piece_failed_says_what_is_in_the_log() -> None:
    outcome = TableOutcome("t", 5)
    first, second = outcome.piece(), outcome.piece()
    first.settle(PLACE, None)
    future = outcome.complete()
    second.settle(None, OutcomeUnknown("lost"))
    error = future.exception(0)
    assert isinstance(error, OutcomeUnknown)
    assert "1 of the table's 2 batches are in the log" in error.__notes__[0]


def test_an_empty_table_is_done_at_once() -> None:
    assert TableOutcome("t", 0).complete().result(0).places == ()
