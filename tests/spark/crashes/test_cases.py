"""The plan of a run: all that it promises to cover, and the same again from the same seed."""

from __future__ import annotations

import pytest

from tests.spark.crashes.cases import POINTS, UnknownCase, case_named, every_case, plan

PLACES = {(case.mode, case.point, case.victim) for case in every_case()}


def test_two_hundred_crashes_cover_every_point_with_every_victim_in_every_mode() -> None:
    cases = [case for query in plan(200, seed=1) for case in query]
    assert sum(case.is_crash for case in cases) == 200
    assert {(case.mode, case.point, case.victim) for case in cases} == PLACES
    assert {case.point for case in cases} == set(POINTS)


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    assert plan(80, seed=7) == plan(80, seed=7) != plan(80, seed=8)


def test_a_case_is_found_by_its_name() -> None:
    for case in every_case():
        assert case_named(str(case)) == case
    with pytest.raises(UnknownCase, match="local/copy/before_stage/driver"):
        case_named("local/copy/nowhere/driver")
