"""The tables of tests/SCENARIOS.md and tests/SECURITY.md: each case has a proof that exists, or says to which later
work it belongs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {"tests/SCENARIOS.md": ("[A-P]", 178), "tests/SECURITY.md": ("[FGK]", 50)}
"""The letters of each page's cases, and how many there are."""

LATER = {"work queues", "security", "operations", "loosely ordered topics", "benchmarks"}


def rows(page: str) -> list[tuple[str, list[str]]]:
    """Each case with its proofs, as the page's tables have them."""
    letters, _ = PAGES[page]
    found = []
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(rf"{letters}[0-9]+", cells[0]):
            found.append((cells[0], [proof.strip() for proof in re.split(r", (?=`|planned|measured)", cells[2])]))
    return found


def fault(proof: str) -> str | None:
    """Why that is no proof; None if it is one."""
    if proof.startswith("planned: "):
        return None if proof.removeprefix("planned: ") in LATER else "names no later work"
    if proof.startswith("measured: "):
        return None if (ROOT / proof.removeprefix("measured: ")).exists() else "names no page"
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[(\w+)\])?`", proof)
    if named is None:
        return "is no test"
    path, test, case = ROOT / named[1], named[2], named[3]
    if not path.exists() or f"def {test}(" not in path.read_text():
        return "names a test that is not there"
    if case and not (path.parent / "scripts" / f"{case}.txt").exists():
        return "names a script that is not there"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_case_is_told_once_in_order(page: str) -> None:
    cases = [case for case, _ in rows(page)]
    assert len(cases) == PAGES[page][1]
    assert cases == sorted(set(cases), key=lambda case: (case[0], int(case[1:])))


@pytest.mark.parametrize("page", PAGES)
def test_every_case_has_a_proof_that_exists_or_says_to_which_later_work_it_belongs(page: str) -> None:
    faults = {case: (proof, why) for case, proofs in rows(page) for proof in proofs if (why := fault(proof))}
    assert faults == {}


@pytest.mark.parametrize(
    ("proof", "why"),
    [
        ("planned: some day", "names no later work"),
        ("measured: benchmarks/NOWHERE.md", "names no page"),
        ("by looking at it", "is no test"),
        ("`tests/test_scenarios.py::test_that_is_not_there`", "names a test that is not there"),
        ("`tests/mq_broker/core/test_scripts.py::test_script[not_there]`", "names a script that is not there"),
    ],
)
def test_what_is_no_proof_is_found(proof: str, why: str) -> None:
    assert fault(proof) == why
