"""What brokers do again and again is done more often, so that a test sees it soon."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.runtime.periodic import Periodic


def look_every(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """By its name, with `_` for blanks: brokers that start from now on do it so often."""
    begin = Periodic.__init__

    def begin_often(self: Periodic, *how: Any, **named: Any) -> None:
        begin(self, *how, **named)
        self.every_s = seconds.get(self.name.replace(" ", "_"), self.every_s)

    monkeypatch.setattr(Periodic, "__init__", begin_often)
