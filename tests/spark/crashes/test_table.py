"""The table counts what was done and hides nothing that went wrong."""

from __future__ import annotations

from tests.spark.crashes.cases import case_named
from tests.spark.crashes.ground import Result
from tests.spark.crashes.judging import Verdict
from tests.spark.crashes.table import table

ASKED = 2
KILLED = case_named("local/copy/after_decide/driver")
ELSEWHERE = case_named("local-cluster/route/after_decide/driver")
SLOW = case_named("standalone/copy/during_stage/slow-task")


def test_crashes_are_counted_by_point_victim_and_mode() -> None:
    text = table(
        [Result(case, 1.0, Verdict(0, 0)) for case in (KILLED, KILLED, ELSEWHERE)],
        90.0,
        4,
        asked=ASKED,
        seed=1,
        cores=2,
    )
    assert "\n    make crashes CRASHES=2 SEED=1\n" in text
    assert "| answered, before Spark knows | driver | 2 | 1 |  | 0 | 0 |" in text
    assert "3 injected crashes, 0 duplicates, 0 losses, no other failure" in text


def test_a_task_that_hangs_is_no_crash() -> None:
    text = table([Result(case, 1.0, Verdict(0, 0)) for case in (KILLED, SLOW)], 90.0, 4, asked=ASKED, seed=1, cores=2)
    assert "1 injected crashes of 2 (the run was ended early), 0 duplicates" in text
    assert "nobody: the task hangs" in text


def test_what_went_wrong_is_said() -> None:
    results = [Result(KILLED, 1.0, Verdict(3, 0)), Result(ELSEWHERE, 1.0, Verdict(0, 2), "AssertionError: not in time")]
    text = table(results, 90.0, 4, asked=ASKED, seed=1, cores=2)
    assert "2 injected crashes, 3 duplicates, 2 losses, **1 other failures**" in text
    assert "| answered, before Spark knows | driver | 1 | 1 |  | 3 | 2 |" in text
