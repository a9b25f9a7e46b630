"""What is said of a queue before it is worked off, where its leaders do not answer. The rest is in test_queue.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from mq_cli.managing.queue import check_declared, say_what_waits
from mq_client.errors import OutcomeUnknown, UnknownQueue


def admin(error: Exception | None, **counts: int) -> Any:
    """One whose brokers list no queue, and whose leaders say so much of it, or nothing."""

    def describe(_topic: str, _group: str) -> Any:
        if error is not None:
            raise error
        return SimpleNamespace(ready=0, delayed=0, leased=0, settings={}, **counts)

    return SimpleNamespace(list_queues=lambda _: [], describe_queue=describe)


def test_work_begins_without_the_leaders_that_do_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_waits(admin(OutcomeUnknown("t/0")), "t", "g")
    assert capsys.readouterr().err == "working on queue g of topic t; not all of its leaders answer now\n"


def test_a_queue_that_only_its_leaders_know_yet_is_declared() -> None:
    check_declared(admin(None), "t", "g", declare=False)
    with pytest.raises(click.ClickException, match="--declare makes it"):
        check_declared(admin(UnknownQueue("no g")), "t", "g", declare=False)
