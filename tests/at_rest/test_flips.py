"""A sample of the flips of `python -m tests.at_rest`; its table is in README.md here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.at_rest import flips
from tests.at_rest.flips import BY_A_DISK, BY_SOMEBODY, run


def test_a_flipped_bit_is_damage_or_altered_and_never_served(tmp_path: Path) -> None:
    counts, wrong = run(tmp_path / "journal", 800, seed=1)
    assert wrong == []
    assert counts[BY_SOMEBODY, "segment", "altered"] > 10
    assert counts[BY_A_DISK, "segment", "damaged"] > 20
    assert counts[BY_SOMEBODY, "snapshot", "altered"] > 1


def test_what_is_served_otherwise_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: a journal that says that it has what it has not."""
    monkeypatch.setattr(flips.Journal, "outcome", lambda _self: "SERVED OTHERWISE")
    with pytest.raises(AssertionError):
        run(tmp_path / "journal", 10)
