"""How a plan is told."""

from __future__ import annotations

import pytest

from mq_cli.managing.moving import PLAN
from mq_cli.output import show
from mq_client import PartitionMove


def test_a_plan_says_of_each_partition_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    moves = [
        PartitionMove("t", 0, (3, 2, 1), (3, 2, 1), leader=2),
        PartitionMove("t", 1, (1, 2), (4, 2), leader=1),
        PartitionMove("t", 2, (1, 2), (2, 1), leader=2),
        PartitionMove("t", 3, (1,), (1, 2)),
    ]
    show(moves, PLAN, as_json=False)
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert told[1:] == [
        "t 0 3 2 1 2 led by broker 3",
        "t 1 1 2 1 to broker 4, away from broker 1, led by broker 4",
        "t 2 1 2 2 in the order 2 1",
        "t 3 1 none to broker 2, led by broker 1",
    ]
