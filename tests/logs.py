"""What a test has logged itself."""

from __future__ import annotations

import threading

import pytest


def said_here(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the test's own thread: clients and brokers that other tests have left behind log what they like meanwhile."""
    return [record.getMessage() for record in caplog.records if record.thread == threading.get_ident()]
