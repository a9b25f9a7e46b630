"""Which edits are tried."""

from __future__ import annotations

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
