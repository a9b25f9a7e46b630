"""Futures that are made real on first use behave as concurrent.futures promises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from typing import Any

import pytest

from mq_client.errors import InvalidRequest, OutcomeUnknown
from mq_client.producing.futures import (
    BatchOutcome,
    BatchPlace,
    RecordFuture,
    RecordMetadata,
    RecordPlace,
    TableOutcome,
)

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
    assert set(as_completed(futures, timeout=30)) == set(futures)


def test_result_waits_for_another_thread() -> None:
    outcome = BatchOutcome("t")
    future = RecordFuture(outcome, 0)
    threading.Timer(0.05, outcome.settle, (PLACE, None)).start()
    assert future.result(30).offset == 100
    with pytest.raises(TimeoutError):
        RecordFuture(BatchOutcome("t"), 0).result(0.01)


def test_many_threads_may_look_first() -> None:
    for _ in range(50):
        outcome = BatchOutcome("t")
        future = RecordFuture(outcome, 1)
        with ThreadPoolExecutor(5) as threads:
            looking = [threads.submit(future.result, 5) for _ in range(4)]
            threads.submit(outcome.settle, PLACE, None)
            assert [look.result(30).offset for look in looking] == [101] * 4


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


def test_an_empty_table_is_done_at_once() -> None:
    assert TableOutcome("t", 0).complete().result(0).places == ()


# ---------------------------------------------------------------- records that were there before


def places(outcome: BatchOutcome, count: int) -> list[tuple[int, int, int, bool]]:
    found = [RecordFuture(outcome, index).result(0) for index in range(count)]
    return [(each.partition, each.offset, each.timestamp, each.duplicate) for each in found]


def test_records_that_were_there_have_their_places_and_the_others_follow_each_other() -> None:
    outcome = BatchOutcome("t")
    outcome.were_there(3, {1: RecordPlace(70, 7)})
    outcome.were_there(3, {4: RecordPlace(71, 8), 0: RecordPlace(69, 6)})
    outcome.settle(BatchPlace(3, 100, 2, 9, False), None)
    assert places(outcome, 6) == [
        (3, 69, 6, True),
        (3, 70, 7, True),
        (3, 100, 9, False),
        (3, 101, 9, False),
        (3, 71, 8, True),
        (3, 102, 9, False),
    ]


def test_records_that_were_there_are_there_even_if_the_rest_failed() -> None:
    outcome = BatchOutcome("t")
    outcome.were_there(3, {1: RecordPlace(70, 7)})
    outcome.settle(None, InvalidRequest("no"))
    assert isinstance(RecordFuture(outcome, 0).exception(0), InvalidRequest)
    assert RecordFuture(outcome, 1).result(0) == ("t", 3, 70, 7, True)


# ---------------------------------------------------------------- who has looked at an error


LOOKS: list[Callable[[Any], object]] = [
    lambda future: future.result(0),
    lambda future: future.exception(0),
    lambda future: future.add_done_callback(lambda done: None),
]


@pytest.mark.parametrize("look", LOOKS)
def test_an_error_is_seen_by_whoever_asks_for_it(look: Callable[[Any], object]) -> None:
    outcome = BatchOutcome("t")
    future = RecordFuture(outcome, 0)
    outcome.settle(BatchPlace(0, 0, 1, 0, False), None)
    assert future.done()
    assert not outcome.observed
    look(future)
    assert outcome.observed
    table = TableOutcome("t", 1)
    piece = table.piece()
    piece.settle(BatchPlace(0, 0, 1, 0, False), None)
    whole = table.complete()
    assert not piece.observed
    look(whole)
    assert piece.observed


# ---------------------------------------------------------------- tables


def test_a_table_has_the_places_of_its_pieces_in_their_order_whichever_comes_first() -> None:
    table = TableOutcome("t", 9)
    pieces = [table.piece() for _ in range(3)]
    pieces[2].settle(BatchPlace(2, 30, 3, 0, False), None)
    pieces[0].settle(BatchPlace(0, 10, 3, 0, False), None)
    future = table.complete()
    assert not future.done()
    pieces[1].settle(BatchPlace(1, 20, 3, 0, False), None)
    found = future.result(0)
    assert (found.topic, found.record_count, [place.partition for place in found.places]) == ("t", 9, [0, 1, 2])
    assert (found.partition, found.base_offset) == (0, 10)


def test_a_table_that_failed_has_its_first_error_and_says_what_is_there_all_the_same() -> None:
    table = TableOutcome("t", 9)
    pieces = [table.piece() for _ in range(3)]
    future = table.complete()
    pieces[1].settle(None, InvalidRequest("first"))
    pieces[0].settle(BatchPlace(0, 10, 3, 0, False), None)
    assert not future.done()
    pieces[2].settle(None, InvalidRequest("second"))
    error = future.exception(0)
    assert str(error) == "first"
    [note] = error.__notes__  # type: ignore[union-attr]
    assert note.startswith("1 of the table's 3 batches are in the log: (BatchPlace(partition=0, base_offset=10")
