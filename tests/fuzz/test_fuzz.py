"""What once failed, and random inputs more: of each target some hundreds, in two processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import CORPUS, TARGETS, corpus, run

CASES = 600


def test_no_input_of_the_corpus_breaks_its_target(tmp_path: Path) -> None:
    found = run(TARGETS, 0, tmp_path, replay=True)
    assert found.failed is None, f"{found.target}: {found.failed[:300]!r}: {found.report}"
    assert {target: sum(counts) for target, counts in found.counts.items()} == {
        target: len(corpus(target)) for target in TARGETS
    }


def test_the_corpus_has_inputs_of_known_targets_alone() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


@pytest.mark.parametrize("targets", [TARGETS[::2], TARGETS[1::2]], ids=["even", "odd"])
def test_random_input_is_answered_or_refused_by_our_own_errors(targets: tuple[str, ...], tmp_path: Path) -> None:
    found = run(targets, 1, tmp_path, cases=CASES)
    assert found.failed is None, f"{found.target}: {found.failed[:300]!r}: {found.report}"
    for target, (accepted, refused) in found.counts.items():
        # A conversation with a broker that lies takes a process and many answers: there are fewer of them
        assert accepted > (20 if target == "lying" else 25), target
        assert refused > (25 if target == "lying" else 50), target
