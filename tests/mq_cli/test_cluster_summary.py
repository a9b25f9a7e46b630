"""How `tritonmq cluster status` tells of replicas that are not in sync."""

from __future__ import annotations

import pytest

from mq_cli.cluster_summary import absences
from mq_cli.output import duration_text
from mq_client import PartitionDescription


def test_a_replica_is_lost_since_its_leader_last_heard_of_it_or_is_catching_up() -> None:
    partition = PartitionDescription(0, 1, 1, (1, 2, 3, 4), (1,), unheard_ms={2: 14 * 60_000, 3: 100})
    assert absences(partition, [2, 3, 4]) == "2 (not heard of for 14m), 3 (catching up), 4"
    assert absences(partition, [2, 3], absent=[2, 3]) == "2 (not heard of for 14m), 3 (absent)"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (59_999, "59s"), (60_000, "1m"), (3_599_999, "59m"), (7_200_000, "2h"), (172_800_000, "2d")],
)
def test_durations_are_told_in_the_unit_that_fits(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text
