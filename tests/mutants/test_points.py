"""Which edits are tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import explanations, put_into
from tests.mutants.points import mutants_of


def edits(text: str) -> list[tuple[str, str]]:
    return [(each.old, each.new) for each in mutants_of("f.py", text)]


def test_operators_numbers_and_conditions_are_changed() -> None:
    assert edits("def f(a, b):\n    return a < b and b == 2\n") == [
        ("<", "<="),
        ("and", "or"),
        ("==", "!="),
        ("2", "3"),
    ]
    assert edits("def f(a):\n    if a:\n        return min(a)\n") == [("a", "(not (a))"), ("min", "max")]


def test_statements_are_left_out() -> None:
    assert edits("def f(a):\n    a.b()\n    a.c = a\n    raise ValueError(a)\n") == [
        ("a.b()", "pass"),
        ("a.c = a", "pass"),
        ("raise ValueError(a)", "pass"),
    ]


def test_log_lines_assertions_and_constants_of_a_module_are_left_alone() -> None:
    assert edits("def f(a):\n    return zip(a, a, strict=True)\n") == []
    assert edits('N = 1\n\n\ndef f(a=1):\n    """f"""\n    assert a > 1\n    log.info("x", a + 1)\n') == []


def test_a_mutant_is_its_text_with_one_edit() -> None:
    text = "def f(ä):\n    return ä >= 1\n"
    assert [each.applied(text) for each in mutants_of("f.py", text)] == [
        "def f(ä):\n    return ä > 1\n",
        "def f(ä):\n    return ä >= 2\n",
    ]


def test_keys_are_told_apart_and_outlive_other_changes_of_the_file() -> None:
    text = "def f(a):\n    return a < 1 and a < 1\n"
    keys = [each.key for each in mutants_of("f.py", text)]
    assert len(set(keys)) == len(keys)
    assert keys == [each.key for each in mutants_of("f.py", "x = 1\n" + text)]


def test_keys_outlive_a_move_of_the_file_and_a_change_of_its_comments() -> None:
    [before] = mutants_of("a/f.py", "def f(a):\n    return a < b  # smaller\n")
    [after] = mutants_of("b/c/g.py", "def f(a):\n    return a < b\n")
    assert before.key == after.key


def test_a_hash_sign_in_a_text_is_no_comment() -> None:
    [mutant] = mutants_of("f.py", 'def f(a):\n    return a == "#"\n')
    assert mutant.code == 'return a == "#"'


def test_an_explanation_that_fits_mutants_of_two_files_is_refused() -> None:
    mutants = [each for file in ("a.py", "b.py") for each in mutants_of(file, "def f(a):\n    return a < b\n")]
    entries = [{"mutant": mutants[0].key}]
    assert explanations(mutants[:1], entries) == {mutants[0].key}
    with pytest.raises(SystemExit, match="another name"):
        explanations(mutants, entries)


def test_a_row_takes_the_place_of_its_samples_former_row_and_keeps_what_a_person_wrote(tmp_path: Path) -> None:
    table = tmp_path / "README.md"
    table.write_text("before\n| `a` | 0 of 4 | 9 | 1 | ours |\n| `ab` | 0 of 4 | 9 | 1 |  |\nafter\n")
    put_into(table, ["| `a` | 1 of 4 | 9 | 3 |  |", "| `a` | 0 of 4 | 9 | 2 |  |"])
    assert table.read_text() == (
        "before\n| `a` | 0 of 4 | 9 | 2 | ours |\n| `a` | 1 of 4 | 9 | 3 |  |\n| `ab` | 0 of 4 | 9 | 1 |  |\nafter\n"
    )
