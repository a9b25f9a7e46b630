"""The judge: sees what is there twice, what is missing, and what stands in the wrong order."""

from __future__ import annotations

from collections import Counter

from tests.spark.crashes.judging import Verdict, compare, disorder, micro_batches_of, places_of_files

GOES_IN = Counter({("a", "1"): 1, ("a", "2"): 2})


def test_equal_multisets_are_exact() -> None:
    assert compare(GOES_IN, Counter(GOES_IN)).exact


def test_rows_that_are_there_too_often_are_duplicates_and_missing_ones_losses() -> None:
    assert compare(GOES_IN, Counter({("a", "1"): 3, ("a", "2"): 2})) == Verdict(duplicates=2, losses=0)
    assert compare(GOES_IN, Counter({("a", "1"): 1, ("a", "2"): 1})) == Verdict(duplicates=0, losses=1)


def test_one_too_many_does_not_make_up_for_one_too_few() -> None:
    assert compare(GOES_IN, Counter({("a", "1"): 2, ("a", "2"): 1})) == Verdict(duplicates=1, losses=1)


def test_a_micro_batch_behind_a_later_one_is_disorder() -> None:
    of = {"1": 0, "2": 1, "3": 2}
    assert disorder({"t-0": ["1", "1", "2"], "t-1": ["1", "3"]}, of) == ()
    (wrong,) = disorder({"t-0": ["1", "3", "2"], "t-1": ["1"]}, of)
    assert wrong == "t-0: 2 of micro-batch 1 stands behind micro-batch 2"
    assert not Verdict(0, 0, (wrong,)).exact


def test_a_value_belongs_to_the_first_micro_batch_whose_end_is_beyond_it() -> None:
    ends = {0: {0: 0}, 1: {0: 2, 1: 1}, 2: {0: 2, 1: 3}}
    places = [("a", 0, 0), ("b", 0, 1), ("c", 1, 0), ("d", 1, 2), ("not read", 1, 3)]
    assert micro_batches_of(places, ends) == {"a": 1, "b": 1, "c": 1, "d": 2}


def test_files_that_one_micro_batch_took_together_are_of_one_micro_batch() -> None:
    log = [
        "v1",
        '{"path":"file:///in/0000.txt","timestamp":1,"batchId":0}',
        '{"path":"file:///in/0001.txt","timestamp":2,"batchId":1}',
        '{"path":"file:///in/0002.txt","timestamp":3,"batchId":2}',
    ]
    files = {"a": "0000.txt", "b": "0001.txt", "c": "0002.txt", "not listed": "0003.txt"}
    assert micro_batches_of(places_of_files(files, log), {0: {0: 1}, 1: {0: 3}}) == {"a": 0, "b": 1, "c": 1}
