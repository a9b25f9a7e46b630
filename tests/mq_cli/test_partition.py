"""What `tritonmq partition` says; what it does is shown in tests/cluster/test_elastic.py."""

from __future__ import annotations

import pytest

from mq_cli.managing.partition import what_is_lost
from mq_client import Recovery
from mq_protocol.limits import OFFSETS_OF_A_LIFE


@pytest.mark.parametrize("lives", [1, 2])
def test_a_recovery_into_another_life_of_offsets_counts_no_lost_records(lives: int) -> None:
    floor = lives * OFFSETS_OF_A_LIFE
    unknown, begin = what_is_lost(Recovery(2, 7, floor, (1,)))
    assert "how many is unknown" in unknown
    assert str(floor) in begin


def test_a_recovery_within_a_life_counts_what_is_lost() -> None:
    assert what_is_lost(Recovery(2, 7, 9, (1,))) == ["lost: offsets 7 to 8 (2 records); new ones begin after"]
    assert what_is_lost(Recovery(2, 7, 7, (1,))) == []
