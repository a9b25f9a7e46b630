"""When something is to be published, and what became of it, without a broker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mq_client.errors import InvalidRequest, InvalidSetting
from mq_client.producing.lanes import NOT_SCHEDULED, Due
from mq_client.producing.scheduling import due_of
from mq_protocol.limits import DELAY_MS_MAX


def test_the_shortest_delay_is_a_millisecond_and_none_is_at_once() -> None:
    assert due_of(None, 0.2) == due_of(None, 1) == Due(delay_ms=1)
    assert due_of(None, 0) == due_of(None, None) == NOT_SCHEDULED
    assert due_of(None, DELAY_MS_MAX) == Due(delay_ms=DELAY_MS_MAX)
    with pytest.raises(InvalidSetting, match="a year"):
        due_of(None, DELAY_MS_MAX + 1)
    with pytest.raises(InvalidSetting, match="both"):
        due_of(1, 0)


@pytest.mark.parametrize(
    ("time", "why"),
    [
        (datetime(2030, 1, 1), "deliver_at has no zone"),
        ("2030-01-01", "deliver_at is str"),
        (1 << 63, "deliver_at=.* is out of range"),
        (1_795_508_877, "looks like seconds, and would be published at once"),
        (1_795_508_877_000, "looks like milliseconds"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused_by_its_name(time: Any, why: str) -> None:
    with pytest.raises((InvalidSetting, InvalidRequest), match=why):
        due_of(time, None)


def test_a_time_that_is_past_is_at_once() -> None:
    assert due_of(1, None) == Due(at_us=1)
    assert due_of(1_795_508_877_000_000, None) == Due(at_us=1_795_508_877_000_000)
