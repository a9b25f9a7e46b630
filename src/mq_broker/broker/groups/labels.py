"""What people call groups: a Spark query's group is named by the query's id, which tells nobody anything.

A label is for people. It is not in the journal: this broker forgets it when it ends, and is told it again with the
query's next micro-batch.
"""

from __future__ import annotations

from typing import Final

LABELS_MAX: Final = 10_000
"""So many are remembered; what was told the longest time ago is forgotten first."""


class Labels:
    """Owns the label of each group that this broker was told of."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}  # what was told last is at the end

    def tell(self, group: str, label: str) -> None:
        self._labels.pop(group, None)
        self._labels[group] = label
        if len(self._labels) > LABELS_MAX:
            del self._labels[next(iter(self._labels))]

    def of(self, group: str) -> str:
        """Empty if it has none here."""
        return self._labels.get(group, "")

    def forget(self, group: str) -> None:
        """It is deleted."""
        self._labels.pop(group, None)
