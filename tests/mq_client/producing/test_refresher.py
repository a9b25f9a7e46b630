"""The thread that asks for topics again, one after the other."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import (
    NotLeader,
    TritonMQError,
    UnknownTopic,
    Unreachable,
)
from mq_client.producing import refresher as refresher_module
from mq_client.producing.refresher import Refresher


class Metadata:
    """In the connection's place: what was refreshed, and an event for each time that it is done. `now`: the time."""

    now = 100.0

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[str, set[str]]] = queue.Queue()
        self.answers: queue.Queue[TritonMQError | None] = queue.Queue()
        self.told: queue.Queue[None] = queue.Queue()

    def refresh(self, topic: str, deadline: Deadline, doubted: frozenset[str]) -> None:
        self.calls.put((topic, set(doubted)))
        answer = self.answers.get(timeout=30)
        if answer is not None:
            raise answer


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


@pytest.fixture
def refresher(metadata: Metadata) -> Iterator[Refresher]:
    asked: Any = metadata
    made = Refresher(asked, lambda: metadata.told.put(None), lambda: metadata.now)
    yield made
    made.stop()
    if made._thread is not None:
        made._thread.join(30)
        assert not made._thread.is_alive()


def test_topics_are_refreshed_one_after_the_other_and_each_end_is_told(
    refresher: Refresher, metadata: Metadata
) -> None:
    refresher.ask("a", "b:1")
    assert metadata.calls.get(timeout=30) == ("a", {"b:1"})
    refresher.ask("b", "b:1")
    refresher.ask("b", "b:2")  # asked for already: one more broker is doubted
    metadata.answers.put(None)
    metadata.told.get(timeout=30)
    assert metadata.calls.get(timeout=30) == ("b", {"b:1", "b:2"})
    metadata.answers.put(Unreachable("nobody"))  # is no refusal
    metadata.told.get(timeout=30)
    assert refresher.refusal("a") is None
    assert refresher.refusal("b") is None
    assert metadata.calls.empty()


def test_a_refusal_is_told_once(refresher: Refresher, metadata: Metadata) -> None:
    refresher.ask("a")
    metadata.answers.put(UnknownTopic("gone"))
    metadata.told.get(timeout=30)
    assert isinstance(refresher.refusal("a"), UnknownTopic)
    assert refresher.refusal("a") is None


def test_it_is_logged_once_that_no_broker_answers_and_once_that_one_does_again(
    refresher: Refresher, metadata: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    nobody = Unreachable("no broker answered at 127.0.0.1:9")

    def asked(answer: TritonMQError | None) -> list[tuple[str, str]]:
        caplog.clear()
        refresher.ask("a")
        metadata.answers.put(answer)
        metadata.told.get(timeout=30)
        metadata.now += 3.0
        mine = [record for record in caplog.records if record.name == refresher_module.__name__]
        return [(record.levelname, record.getMessage()) for record in mine]

    assert [asked(nobody), asked(nobody)] == [[], []], "three seconds may pass when a leader dies"
    [(level, text)] = asked(nobody)
    assert level == "WARNING"
    assert "topic 'a': no broker has answered for 6 s" in text
    assert "no broker answered at 127.0.0.1:9" in text
    assert asked(nobody) == []
    assert asked(NotLeader("it is another")) == [("INFO", "topic 'a': a broker answers again")]
    assert [asked(None), asked(nobody), asked(UnknownTopic("gone")), asked(nobody), asked(nobody)] == [[]] * 5
