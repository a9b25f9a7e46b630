"""Leaderships go back to first replicas by themselves: when, how many at a time, and to whom no more."""

from __future__ import annotations

from pathlib import Path

from mq_broker.broker.administration.preferred import AT_ONCE, FORGOTTEN_MS, PAUSE_MS_MAX, GivingBack, Led
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import three

AFTER_MS = 60_000
LOOK_MS = 2_000


def part(number: int = 0, *, first: int = 1, well: bool = True) -> Led:
    return Led(("topic", number), first, well)


class Leader:
    """Looks every two seconds, as a broker does, at what it leads in the stead of others."""

    def __init__(self, *led: Led) -> None:
        self.giving = GivingBack(AFTER_MS)
        self.led = list(led)
        self.now_ms = 1_000

    def until_given(self, most_ms: int) -> int | None:
        """How long it took until something was given back; None: longer than that."""
        for waited_ms in range(0, most_ms, LOOK_MS):
            self.now_ms += LOOK_MS
            if self.giving.due(self.now_ms, self.led):
                return waited_ms
        return None


def test_a_partition_goes_back_once_all_have_been_in_sync_for_a_minute_without_a_break() -> None:
    leader = Leader(part())
    assert leader.until_given(AFTER_MS) is None
    leader.led = [part(well=False)]
    assert leader.until_given(10 * AFTER_MS) is None
    leader.led = [part()]
    assert leader.until_given(2 * AFTER_MS) == AFTER_MS


def test_a_few_go_back_at_a_time_and_the_next_ones_when_these_have_gone() -> None:
    leader = Leader(*(part(number) for number in range(3 * AT_ONCE)))
    assert leader.until_given(2 * AFTER_MS) == AFTER_MS
    assert leader.giving.due(leader.now_ms, leader.led) == [], "as many are on their way"
    del leader.led[:AT_ONCE]
    assert leader.giving.due(leader.now_ms, leader.led) == leader.led[:AT_ONCE]


def test_a_broker_that_does_not_keep_what_it_gets_is_given_less_and_less_often() -> None:
    """As where its disk is full: it stands back, and this leader has the partitions again."""
    leader = Leader(*(part(number) for number in range(5)), part(7, first=2))
    pauses = [leader.until_given(FORGOTTEN_MS)]
    leader.led.pop()  # broker 2 keeps what was its
    pauses += [leader.until_given(FORGOTTEN_MS) for _ in range(9)]
    waited = [pause // AFTER_MS for pause in pauses if pause is not None]
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert PAUSE_MS_MAX == 60 * AFTER_MS
    leader.led = [part(9, first=2)]
    assert leader.until_given(FORGOTTEN_MS) == AFTER_MS, "another one is not made to wait for it"
    leader.led = []
    assert leader.until_given(FORGOTTEN_MS + LOOK_MS) is None
    leader.led = [part()]
    assert leader.until_given(FORGOTTEN_MS) == AFTER_MS, "it has kept all for long: forgotten"


@virtual_time
async def test_a_broker_that_was_away_leads_what_it_led_by_itself(tmp_path: Path) -> None:
    async with three(tmp_path, balance_leaders_ms=500) as cluster:
        await cluster[1].create_topic("t", 6, 3)
        members = [list(p.replicas) for p in (await cluster[1].metadata("t")).topics[0].partitions]
        mine = next(number for number, replicas in enumerate(members) if replicas[0] == 1)
        await cluster.leader("t", mine, at=2)
        await cluster[1].stop()
        assert await cluster.leader("t", mine, at=2, not_=1) in (2, 3)
        await cluster[1].start()
        firsts = [replicas[0] for replicas in members]

        async def as_made() -> bool:
            return [p.leader for p in (await cluster[2].metadata("t")).topics[0].partitions] == firsts

        await until(as_made, 120)
