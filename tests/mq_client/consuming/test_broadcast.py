"""What a member of a broadcast group asks for, keeps and counts."""

from __future__ import annotations

import pytest

from mq_client.consuming.record_queue import Skipped
from mq_client.errors import NotLeader, OffsetOutOfRange
from mq_protocol.limits import OFFSETS_OF_A_LIFE
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.consuming.played_subscription import Client


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A member of priority 3, which is pushed partition 0 from offset 10 on."""
    made = Client(monkeypatch, broadcast="news", priority=3)
    made.subscribe("t")
    made.opened(made.stream(1), 0, 10)
    return made


def test_it_names_its_group_and_priority_and_begins_at_the_end(client: Client) -> None:
    [opening] = client.stream(1).take("open")
    assert (opening.group, opening.member_key, opening.broadcast, opening.priority) == ("", b"", "news", 3)
    assert opening.partitions[0].WhichOneof("start") == "latest"


def test_after_a_broken_stream_it_begins_at_the_end_again_and_counts_what_came_meanwhile(client: Client) -> None:
    client.push(client.stream(1), 0, 10, 2)
    client.stream(1).over(None)
    client.look()
    [opening] = client.stream(1).take("open")
    assert opening.partitions[0].WhichOneof("start") == "latest"
    assert client.subscriptions.skipped == Skipped(0, 0)
    client.opened(client.stream(1), 0, 17)
    client.push(client.stream(1), 0, 17, 1)
    assert client.subscriptions.skipped == Skipped(5, 1)
    assert client.taken() == [(0, 10), (0, 11), (0, 17)], "what was here stays"


def test_a_broken_stream_during_which_nothing_came_skips_nothing(client: Client) -> None:
    client.stream(1).over(None)
    client.look()
    client.opened(client.stream(1), 0, 10)
    assert client.subscriptions.skipped == Skipped(0, 0)


def test_another_leader_is_begun_at_its_end_too(client: Client) -> None:
    client.opened(client.stream(1), 0, error=NotLeader("moved", 2, 9), active=False)
    client.say(topic_info(2, 2))
    client.look()
    client.opened(client.stream(2), 0, 13)
    assert client.subscriptions.skipped == Skipped(3, 1)


def test_what_is_gone_before_it_was_pushed_is_counted(client: Client) -> None:
    client.opened(client.stream(1), 0, 30, error=OffsetOutOfRange("dropped", 30))
    assert client.subscriptions.skipped == Skipped(20, 1)


def test_of_a_log_that_was_lost_the_gap_counts_and_no_number_is_made_up(client: Client) -> None:
    client.stream(1).over(None)
    client.look()
    client.opened(client.stream(1), 0, OFFSETS_OF_A_LIFE)
    assert client.subscriptions.skipped == Skipped(0, 1)


def test_while_it_stands_by_nothing_is_skipped_and_what_was_pushed_stays(client: Client) -> None:
    client.push(client.stream(1), 0, 10, 1)
    client.opened(client.stream(1), 0, active=False)
    client.opened(client.stream(1), 0, 50)
    client.push(client.stream(1), 0, 50, 1)
    assert client.taken() == [(0, 10), (0, 50)]
    assert client.subscriptions.skipped == Skipped(0, 0)


def test_no_record_comes_twice(client: Client) -> None:
    client.push(client.stream(1), 0, 10, 4)
    client.stream(1).over(None)
    client.look()
    client.opened(client.stream(1), 0, 12)
    client.push(client.stream(1), 0, 12, 3)
    assert client.taken() == [(0, 10), (0, 11), (0, 12), (0, 13), (0, 14)]


def test_a_partition_that_is_added_is_begun_at_its_first_record_and_later_at_its_end(client: Client) -> None:
    client.say(topic_info(1, 2, 1))
    client.stream(1).take("open")
    client.look()
    [opening] = client.stream(1).take("open")
    assert [(each.partition, each.WhichOneof("start")) for each in opening.partitions] == [(2, "earliest")]
    client.opened(client.stream(1), 2, active=False)
    client.stream(1).over(None)
    client.look()
    [opening] = client.stream(1).take("open")
    assert {each.WhichOneof("start") for each in opening.partitions} == {"latest"}


def test_nothing_is_settled(client: Client) -> None:
    client.push(client.stream(1), 0, 10, 2)
    client.taken()
    client.subscriptions._settle()
    assert client.stream(1).take("settled") == []
