"""The page of `make bench-security` says of each row what was promised, and whether it holds."""

from __future__ import annotations

from benchmarks.security.__main__ import page
from benchmarks.security.ground import Row


def test_what_does_not_hold_is_seen_at_a_glance() -> None:
    rows = [Row("a", "3 µs", "≤ 5 µs", True), Row("b", "9 s", "≤ 2 s", False), Row("c", "1", "", None)]
    made = page(rows, {"cores": "2"}, "python -m benchmarks.security")
    assert "| a | 3 µs | ≤ 5 µs | yes |" in made
    assert "| b | 9 s | ≤ 2 s | **no** |" in made
    assert "| c | 1 |  |  |" in made
    assert "- cores: 2" in made
