"""The tables of README.md, "Rules of queues": each clause has a planted fault, each rule a script or a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.real.planted import FAULTS
from tests.test_scenarios import fault

README = Path(__file__).parent / "README.md"
ROOM = Path(__file__).parents[2] / "src/mq_broker/broker/queues"
TRAPS = 26
RULES = 25


def tables() -> tuple[list[list[str]], list[list[str]]]:
    """The rows of the two tables: of clauses, and of rules."""
    section = README.read_text().split("\n## Rules of queues\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:1] == "|"]
    rows = [row for row in rows if re.match(r"\d|bounds", row[0])]
    first_rule = next(at for at, row in enumerate(rows) if at and row[0] == "1" and rows[at - 1][0] == "bounds")
    return rows[:first_rule], rows[first_rule:]


def test_each_clause_that_must_not_be_left_out_is_left_out_by_a_planted_fault() -> None:
    clauses, _ = tables()
    planted = {each.name for each in FAULTS}
    named = [name for *_, names in clauses for name in names.split("; ")]
    assert len(clauses) >= 22
    assert [name for name in named if name not in planted] == []


def test_each_fault_planted_around_the_core_is_found_by_a_seed_or_by_a_test() -> None:
    text = README.read_text()
    by_seed = dict(re.findall(r"^\| (.+) \| `([\w/]+\.py)` \| \d+ \(\d+ tried\) \|$", text, re.MULTILINE))
    section = text.split("\n## Planted faults that a test finds\n")[1].split("\n## ")[0]
    by_test = dict(re.findall(r"^\| (.+) \| (`tests/.+`) \|$", section, re.MULTILINE))
    assert [each.name for each in FAULTS if each.name not in by_seed | by_test] == []
    assert [each.name for each in FAULTS if by_seed.get(each.name, each.file) != each.file] == []
    assert [name for name in by_test if name in by_seed or name not in {each.name for each in FAULTS}] == []
    assert [(name, why) for name, proof in by_test.items() if (why := fault(proof))] == []


def test_each_rule_has_a_script_or_a_test() -> None:
    _, rules = tables()
    assert [row[0] for row in rules] == [str(number) for number in range(1, RULES + 1)]
    proofs = [proof for *_, proofs in rules for proof in proofs.split(", ")]
    assert [(proof, why) for proof in proofs if (why := fault(proof))] == []


def test_each_rule_of_the_design_is_one_of_the_table() -> None:
    section = (ROOM / "DESIGN.md").read_text().split("\n## Rules\n")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. \*\*", section, re.MULTILINE) == [str(number) for number in range(1, RULES + 1)]


def test_each_trap_has_a_test() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in (ROOM / "TRAPS.md").read_text().splitlines()
        if line[:1] == "|"
    ]
    rows = [row for row in rows if row[0].isdigit()]
    assert [row[0] for row in rows] == [str(number) for number in range(1, TRAPS + 1)]
    assert [(proof, why) for *_, proofs in rows for proof in proofs.split(", ") if (why := fault(proof))] == []
