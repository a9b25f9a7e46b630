"""Questions to ZooKeeper that would follow one another closely are asked together."""

from __future__ import annotations

from mq_broker.coordination.gathering import Pace


def test_a_few_questions_go_at_once_and_then_one_in_each_period() -> None:
    pace = Pace(period_s=1.0, at_once=3)
    assert [pace.delay_s(10.0) for _ in range(5)] == [0, 0, 0, 1.0, 1.0]
    assert [pace.delay_s(11.0), pace.delay_s(11.25)] == [0, 0.75]
    assert [pace.delay_s(12.0), pace.delay_s(12.0)] == [0, 1.0]
    assert [pace.delay_s(99.0) for _ in range(4)] == [0, 0, 0, 1.0], "rest is saved up to that many, not more"
