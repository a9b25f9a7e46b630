"""How `tritonmq cluster status` tells of replicas that are not in sync, and of brokers that are open."""

from __future__ import annotations

import pytest

from mq_cli.managing.cluster import ClusterSummary, absences
from mq_cli.output import duration_text
from mq_client import ClusterDescription, PartitionDescription


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


@pytest.mark.parametrize(
    ("insecure", "floor", "told"),
    [
        ((), (), []),
        ((), ("tls", "authorize"), ["security floor: tls, authorize"]),
        (
            (2,),
            (),
            [
                "INSECURE: other machines reach broker 2 in plain text.",
                "security floor: nothing is demanded of",
            ],
        ),
        (
            (1, 3),
            ("authorize",),
            ["INSECURE: other machines reach brokers [1, 3] in plain text.", "security floor: authorize"],
        ),
    ],
)
def test_brokers_that_other_machines_reach_in_plain_text_are_told_with_what_is_demanded(
    insecure: tuple[int, ...], floor: tuple[str, ...], told: list[str]
) -> None:
    described = ClusterDescription((), "connected", 1, security_floor=floor, insecure_brokers=insecure)
    summary = ClusterSummary(described, [])
    lines = summary.security()
    assert len(lines) == len(told)
    assert all(line.startswith(begin) for line, begin in zip(lines, told, strict=True))
    document = summary.document()
    assert (document["insecure"], document["insecure_brokers"]) == (bool(insecure), list(insecure))
    assert document["security_floor"] == list(floor)
