"""What `tritonmq queue redrive` says in the end, of an administrator that a test plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mq_cli import redrive as command
from mq_client import Redriven


def run(monkeypatch: pytest.MonkeyPatch, found: Redriven, *arguments: str) -> tuple[int, str]:
    def redrive_topic(topic: str, **asked: Any) -> Redriven:
        assert (topic, asked["group"]) == ("t.dead", "redrive")
        return found

    @contextmanager
    def admin(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(redrive_topic=redrive_topic)

    monkeypatch.setattr(command, "open_admin", admin)
    done = CliRunner().invoke(command.redrive, ["t.dead", *arguments])
    return done.exit_code, done.output


def test_letters_that_are_left_are_a_failure_unless_so_many_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Redriven({"t": 1}, {"not sent yet": 2})
    code, text = run(monkeypatch, some)
    assert (code, "2 letters left: not sent yet" in text) == (1, True)
    code, text = run(monkeypatch, some, "-n", "1")
    assert (code, "2 letters left: not sent yet" in text) == (0, True)
    assert run(monkeypatch, Redriven({"t": 1}, {}))[0] == 0
    code, text = run(monkeypatch, Redriven({}, {}))
    assert (code, "no letters to send" in text) == (0, True)
