"""A member asks for what matches its filter."""

from __future__ import annotations

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import InvalidSetting
from mq_client.queueing.queue import Queue
from mq_protocol.limits import FILTER_CHARACTERS_MAX
from tests.mq_client.queueing.played_keeper import Played


def test_each_question_names_the_filter_and_who_leaves_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, filter_text="n > 5", priority=3, in_flight_max=4)
    assert played.one("Lease").request.filter == "n > 5"
    played = Played(monkeypatch, filter_text="n > 5", priority=3, in_flight_max=4)
    played.lend(4)
    played.keeper.close_soon(Deadline(5_000))
    assert played.one("Lease").request.filter == ""


@pytest.mark.parametrize("wrong", ["", "  ", 5, b"n > 5", "n = 1 OR " * FILTER_CHARACTERS_MAX])
def test_a_filter_is_a_text_of_some_length(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="filter"):
        Queue("localhost:1", "t", "g", filter=wrong)  # type: ignore[arg-type]
