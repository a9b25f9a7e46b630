"""What tests of queue groups see of the brokers that they start."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker import server
from mq_broker.broker.host.shell import Shell


@pytest.fixture
def shells(monkeypatch: pytest.MonkeyPatch) -> list[Shell]:
    """Those of the brokers that the test starts."""
    made: list[Shell] = []

    class Noted(Shell):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            made.append(self)

    monkeypatch.setattr(server, "Shell", Noted)
    return made
