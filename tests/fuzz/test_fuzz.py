"""What once broke native code, and some thousands of random inputs more. Each run is a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import TARGETS, run


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_the_corpus_breaks_native_code(target: str, tmp_path: Path) -> None:
    found = run(target, 0, tmp_path, replay=True)
    assert found.failed is None, f"{found.failed!r}: {found.report}"
    assert found.accepted + found.refused > 0


@pytest.mark.parametrize("target", TARGETS)
def test_random_input_is_answered_or_refused_by_our_own_errors(target: str, tmp_path: Path) -> None:
    found = run(target, 1, tmp_path, cases=2_000)
    assert found.failed is None, f"{found.failed!r}: {found.report}"
    assert found.accepted > 100
    assert found.refused > 100
