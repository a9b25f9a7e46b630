"""The conversation with brokers, word by word: a stand-in for gRPC's stream lets the test be the broker."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.consuming import session, subscription
from mq_client.consuming.push_streams import Heard, Over
from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.consuming.subscription import Subscriptions
from mq_client.errors import NotLeader, OffsetOutOfRange, UnknownTopic
from mq_client.producing.batches import records_to_batch
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.envelope import Envelope
from mq_protocol.error_messages import to_wire

WAIT_S = 30.0


class Stream:
    """Owns the broker's end of one stream. What the broker says is heard before the call returns."""

    def __init__(self, address: str, heard: Heard, over: Over) -> None:
        self.address = address
        self._heard = heard
        self._over = over
        self._requests: queue.Queue[pb.SubscribeRequest | None] = queue.Queue()
        self._open = True

    # -- as the client's

    def say(self, request: pb.SubscribeRequest) -> None:
        self._requests.put(request)

    def say_last(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        if self._open:
            self._open = False
            self._over(None)

    def wait_over(self, timeout_s: float) -> bool:
        return True

    # -- as the broker

    def hear(self) -> pb.SubscribeRequest:
        """The client's next word."""
        request = self._requests.get(timeout=WAIT_S)
        assert request is not None, "the client has said its last"
        return request

    def rest(self) -> list[pb.SubscribeRequest]:
        """All that the client has said and that was not heard yet."""
        said = []
        while not self._requests.empty():
            request = self._requests.get_nowait()
            if request is not None:
                said.append(request)
        return said

    def hear_open(self) -> list[pb.SubscribePartition]:
        while not (request := self.hear()).HasField("open"):
            pass
        return list(request.open.partitions)

    def _tell(self, message: Envelope[pb.BatchesHeader]) -> None:
        async def heard() -> None:
            await self._heard(message)

        asyncio.run(heard())

    def opened(self, offset: int = 0, *, active: bool | None = None, error: pb.Error | None = None) -> None:
        """An error without being active refuses it; with it, something was lost on the way to `offset`."""
        active = error is None if active is None else active
        told = pb.PartitionOpened(topic="t", partition=0, offset=offset, active=active, error=error)
        self._tell(Envelope(pb.BatchesHeader(opened=[told])))

    def push(self, *numbers: int) -> int:
        """Numbers at the offsets that are equal to them; the payload's bytes."""
        count = len(numbers)
        payload = memoryview(
            encode_batch(records_to_batch([None] * count, [b"%d" % n for n in numbers], [None] * count, [0] * count))
        )
        stored = pb.StoredBatch(
            topic="t", partition=0, base_offset=numbers[0], record_count=count, payload_bytes=len(payload)
        )
        self._tell(Envelope(pb.BatchesHeader(batches=[stored]), (payload,)))
        return len(payload)


class Client:
    """Owns subscriptions to partition 0 of topic `t`, and the streams that they open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
        self._streams: queue.Queue[Stream] = queue.Queue()
        self._opened: list[Stream] = []
        self.connection = Connection("b:1")
        self.lead(1, 1)
        monkeypatch.setattr(session, "PushStream", self._open)
        monkeypatch.setattr(self.connection, "refresh", self._refresh)

        def earliest(request: pb.SubscribePartition) -> None:
            request.earliest = True

        self.subscriptions = Subscriptions(self.connection, group, "me", earliest, 0.01, 1_000)
        self.subscriptions.add(self._refresh("t", Deadline(1)))
        self.queue = self.subscriptions.queues["t"]
        self.subscriptions.begin()

    def lead(self, broker: int, epoch: int, *others: int, topic_id: str = "x") -> None:
        """Who leads partition 0, and those after it."""
        brokers = [pb.BrokerInfo(id=number, address=f"b:{number}") for number in (1, 2)]
        partitions = [
            pb.PartitionInfo(partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2])
            for number, leader in enumerate((broker, *others))
        ]
        self.connection._learn(
            pb.MetadataResponse(
                brokers=brokers, topics=[pb.TopicInfo(name="t", topic_id=topic_id, partitions=partitions)]
            )
        )

    def refreshed(self) -> TopicView:
        return self._refresh("t", Deadline(1))

    def _refresh(self, name: str, deadline: Deadline) -> TopicView:
        view = self.connection.known_topic(name)
        assert view is not None
        return view

    def _open(self, address: str, heard: Heard, over: Over, *_: object) -> Stream:
        stream = Stream(address, heard, over)
        self._streams.put(stream)
        self._opened.append(stream)
        return stream

    def stream(self) -> Stream:
        """The next stream that the client opens."""
        return self._streams.get(timeout=WAIT_S)

    def take(self, count: int) -> list[ConsumerRecord]:
        return [self.queue.get(timeout=WAIT_S) for _ in range(count)]

    def offsets(self, count: int) -> list[int]:
        return [record.offset for record in self.take(count)]

    def stop(self) -> None:
        for stream in self._opened:
            stream.cancel()
        self.subscriptions.stop(Deadline(1), last_is_done=False)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    made = Client(monkeypatch, "")
    yield made
    made.stop()


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    made = Client(monkeypatch, "g")
    yield made
    made.subscriptions.group = ""  # nobody would answer the last word about its place
    made.stop()


def eventually(condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.001)


def test_it_says_where_to_begin_and_how_much_may_come(client: Client) -> None:
    stream = client.stream()
    assert stream.hear().credit.bytes == 1_000
    [wanted] = stream.hear_open()
    assert (wanted.topic, wanted.partition, wanted.earliest) == ("t", 0, True)


def test_a_broken_stream_is_opened_again_where_it_broke_off(client: Client) -> None:
    first = client.stream()
    first.hear_open()
    first.opened(0)
    first.push(0, 1, 2)
    assert client.offsets(1) == [0]
    first.cancel()
    second = client.stream()
    assert second.hear_open()[0].offset == 3
    second.opened(3)
    second.push(3, 4)
    assert client.offsets(4) == [1, 2, 3, 4]


def test_what_comes_again_is_not_taken_twice(member: Client) -> None:
    first = member.stream()
    first.hear_open()
    first.opened(0)
    first.push(0, 1, 2)
    assert member.offsets(2) == [0, 1]
    first.cancel()
    second = member.stream()
    second.hear_open()
    second.opened(0)  # the broker knows of nothing that was settled
    second.push(0, 1)
    second.push(2, 3)
    assert member.offsets(2) == [2, 3]


def test_a_group_s_place_is_told_only_once_the_broker_has_pushed_so_far_again(member: Client) -> None:
    first = member.stream()
    first.hear_open()
    first.opened(0)
    first.push(0, 1, 2)
    member.take(3)
    with pytest.raises(queue.Empty):
        member.queue.get_nowait()
    first.cancel()
    second = member.stream()
    second.hear_open()
    second.opened(0)
    second.push(0, 1)
    while not (heard := second.hear()).settled:
        pass
    assert [place.offset for place in heard.settled] == [2], "a broker does not believe in what it has not pushed"
    second.push(2)
    while not (heard := second.hear()).settled:
        pass
    assert [place.offset for place in heard.settled] == [3]


def test_what_another_member_was_given_meanwhile_is_dropped(member: Client) -> None:
    first = member.stream()
    first.hear_open()
    first.opened(0)
    first.push(0, 1, 2)
    assert member.offsets(1) == [0]
    first.cancel()
    second = member.stream()
    second.hear_open()
    second.opened(2)  # somebody else was done with 1
    eventually(lambda: member.queue.qsize() == 1)
    assert member.offsets(1) == [2]
    second.opened(0, active=False)
    second.push(3)
    second.opened(9)
    second.push(9)
    assert member.offsets(1) == [9]


def test_a_partition_follows_its_leader_and_words_of_the_former_one_do_not_count(client: Client) -> None:
    first = client.stream()
    first.hear_open()
    first.opened(0)
    first.push(0)
    eventually(lambda: client.queue.qsize() == 1)
    first.opened(error=to_wire(NotLeader("2 leads", 2, 5)))
    second = client.stream()
    assert second.address == "b:2"
    assert second.hear_open()[0].offset == 1
    first.push(1)
    second.opened(1)
    second.push(1, 2)
    assert [(r.offset, r.value) for r in client.take(3)] == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_credit_comes_back_for_what_was_taken_and_for_what_is_not_wanted(client: Client) -> None:
    stream = client.stream()
    stream.hear_open()
    stream.opened(0)
    size = stream.push(0) + stream.push(0) + stream.push(1)
    assert client.offsets(2) == [0, 1]
    assert stream.hear().credit.bytes + stream.hear().credit.bytes + stream.hear().credit.bytes == size


def test_an_error_that_asking_again_cannot_mend_ends_the_topic(client: Client) -> None:
    stream = client.stream()
    stream.hear_open()
    stream.opened(0)
    stream.push(0)
    stream.opened(error=to_wire(UnknownTopic("deleted")))
    assert client.offsets(1) == [0]
    with pytest.raises(UnknownTopic):
        client.queue.get(timeout=WAIT_S)


def test_records_that_are_lost_are_told_and_the_topic_goes_on_behind_them(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stream = client.stream()
    stream.hear_open()
    stream.opened(0)
    stream.push(0)
    stream.opened(5, active=True, error=to_wire(OffsetOutOfRange("offsets 1 to 4 were lost: go on at 5", 5)))
    stream.push(5)
    assert client.offsets(2) == [0, 5]
    assert "offsets 1 to 4 were lost" in caplog.text


def test_a_member_still_hands_out_what_it_holds_from_before_a_loss(
    member: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stream = member.stream()
    stream.hear_open()
    stream.opened(0)
    stream.push(0, 1, 2)
    assert member.offsets(1) == [0]
    stream.opened(5, active=True, error=to_wire(OffsetOutOfRange("offsets 3 to 4 were lost: go on at 5", 5)))
    eventually(lambda: "offsets 3 to 4 were lost" in caplog.text)
    stream.push(5)
    assert member.offsets(3) == [1, 2, 5]
    while not (heard := stream.hear()).settled or heard.settled[0].offset < 3:
        assert not heard.settled or heard.settled[0].offset <= 3, (
            "settled is what was handed out, not what was lost behind it"
        )
    assert heard.settled[0].offset == 3


def test_unsubscribing_closes_the_partition_at_its_broker(client: Client) -> None:
    stream = client.stream()
    stream.hear_open()
    stream.opened(0)
    stream.push(0)
    eventually(lambda: client.queue.qsize() == 1)
    client.subscriptions.remove("t")
    while not (heard := stream.hear()).HasField("close"):
        pass
    assert [(place.topic, place.partition) for place in heard.close.partitions] == [("t", 0)]
    assert client.queue.empty()


def test_a_member_asks_for_what_it_is_not_done_with(member: Client) -> None:
    first = member.stream()
    first.hear_open()
    first.opened(0)
    first.push(0, 1, 2)
    assert member.offsets(2) == [0, 1]
    first.cancel()
    second = member.stream()
    assert second.hear_open()[0].offset == 1, (
        "a leader that died before the group had a cursor leaves this to the member"
    )
    second.opened(1)
    second.push(1, 2)
    second.push(3)
    assert member.offsets(2) == [2, 3]


def test_a_place_that_others_have_moved_on_is_not_moved_back_when_a_member_stops(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[object] = []
    monkeypatch.setattr(subscription, "move_cursors", lambda *told, **_: moved.append(told[2]))
    first = member.stream()
    first.hear_open()
    first.opened(0)
    first.push(0, 1, 2)
    assert member.offsets(2) == [0, 1]
    first.cancel()
    second = member.stream()
    second.hear_open()
    second.opened(7)  # another member was done with 6 meanwhile
    eventually(lambda: member.subscriptions.places["t", 0].active)
    second.cancel()
    member.subscriptions.stop(Deadline(1), last_is_done=True)
    assert moved == [{}]


def test_what_is_held_when_a_consumer_stops_is_not_handed_out_any_more(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[object] = []
    monkeypatch.setattr(subscription, "move_cursors", lambda *told, **_: moved.append(told[2]))
    stream = member.stream()
    stream.hear_open()
    stream.opened(0)
    stream.push(0, 1, 2)
    assert member.offsets(1) == [0]
    stream.cancel()
    again = member.stream()
    again.hear_open()  # and is not answered: what is done with is told all the same
    threading.Timer(0.01, again.cancel).start()
    member.subscriptions.stop(Deadline(1), last_is_done=True)
    assert moved == [{"t": {0: 1}}]
    with pytest.raises(queue.Empty):
        member.queue.get_nowait()


def test_a_partition_without_a_leader_while_its_stream_breaks_is_opened_when_it_has_one_again(client: Client) -> None:
    client.lead(1, 2, 1)
    client.subscriptions._learn(client.refreshed())
    first = client.stream()
    opened = {0, 1} - {wanted.partition for wanted in first.hear_open()}
    if opened:
        assert {wanted.partition for wanted in first.hear_open()} == opened
    with client.subscriptions.changed:  # who has to say that the stream has ended waits for this
        client.lead(1, 3, 0)
        threading.Thread(target=first.cancel, daemon=True).start()
        with contextlib.suppress(AssertionError):
            eventually(lambda: client.subscriptions._sessions["b:1"].ended, 0.2)
        client.subscriptions._follow_leaders()
    client.lead(1, 4, 1)
    second = client.stream()
    heard: queue.Queue[int] = queue.Queue()

    def hear() -> None:
        count = 0
        while count < 2:
            for wanted in second.hear_open():
                heard.put(wanted.partition)
                count += 1

    threading.Thread(target=hear, daemon=True).start()
    assert {heard.get(timeout=WAIT_S), heard.get(timeout=WAIT_S)} == {0, 1}


def test_a_topic_that_was_made_again_is_another_one(client: Client) -> None:
    client.lead(1, 2, 1)
    client.subscriptions._learn(client.refreshed())
    stream = client.stream()
    opened = len(stream.hear_open())
    if opened < 2:
        stream.hear_open()
    stream.opened(0)
    stream.push(0, 1)
    client.lead(1, 1, topic_id="y")
    stream.opened(error=to_wire(NotLeader("it is gone: ask again", 0, 2)))
    assert client.offsets(2) == [0, 1]
    with pytest.raises(UnknownTopic, match="subscribe anew"):
        client.queue.get(timeout=WAIT_S)
    client.subscriptions.add(client.refreshed())
    again = client.stream()
    assert [(wanted.partition, wanted.earliest) for wanted in again.hear_open()] == [(0, True)]
    again.opened(0)
    again.push(0)
    assert client.subscriptions.queues["t"].get(timeout=WAIT_S).offset == 0


def test_a_topic_whose_subscription_is_over_is_not_asked_for_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.stream()
    stream.hear_open()
    asked: list[str] = []

    def gone(name: str, deadline: Deadline) -> TopicView:
        asked.append(name)
        raise UnknownTopic("deleted")

    monkeypatch.setattr(client.connection, "refresh", gone)
    with client.subscriptions.changed:
        client.subscriptions._look = True
        client.subscriptions._work.notify()
    with pytest.raises(UnknownTopic):
        client.queue.get(timeout=WAIT_S)
    with client.subscriptions.changed:
        assert asked == ["t"]
        client.subscriptions._follow_leaders()
        assert asked == ["t"]
        assert not client.subscriptions.places
    while not (heard := stream.hear()).HasField("close"):
        pass
    assert heard.close.partitions[0].topic == "t"


def test_what_is_held_from_a_broken_stream_counts_against_the_credit_of_the_next(client: Client) -> None:
    first = client.stream()
    first.hear_open()
    first.opened(0)
    size = first.push(0, 1, 2)
    eventually(lambda: client.queue.qsize() == 3)
    assert size > 250, "enough to be given back at once"
    first.cancel()
    second = client.stream()
    assert second.hear().credit.bytes == 1_000 - size
    assert second.hear_open()[0].offset == 3
    assert client.offsets(3) == [0, 1, 2]
    assert second.hear().credit.bytes == size
    second.cancel()
    assert client.stream().hear().credit.bytes == 1_000


def test_a_broker_that_has_not_heard_of_added_partitions_takes_none_away(client: Client) -> None:
    client.lead(1, 2, 1)
    client.subscriptions._learn(client.refreshed())
    client.connection.forget("t")  # one that has heard of nothing yet was asked before it
    client.lead(1, 2)
    with client.subscriptions.changed:
        client.subscriptions._follow_leaders()
        assert client.subscriptions.views["t"].partitions == 2


def test_the_topic_is_asked_for_by_its_id(client: Client) -> None:
    assert client.stream().hear_open()[0].topic_id == "x"


def test_what_was_lost_behind_everything_that_is_done_with_is_done_with_too(member: Client) -> None:
    stream = member.stream()
    stream.hear_open()
    stream.opened(0)
    stream.push(0, 1)
    assert member.offsets(2) == [0, 1]
    stream.opened(5, active=True, error=to_wire(OffsetOutOfRange("offsets 2 to 4 were lost: go on at 5", 5)))
    place = member.subscriptions.places["t", 0]
    eventually(lambda: place.position == 5)
    with pytest.raises(queue.Empty):
        member.queue.get_nowait()
    eventually(lambda: place.settled == 5)


def test_a_loss_told_to_a_former_subscription_does_not_move_the_present_one(client: Client) -> None:
    stream = client.stream()
    stream.hear_open()
    stream.opened(0)
    eventually(lambda: client.subscriptions.places["t", 0].active)
    client.subscriptions.remove("t")
    client.subscriptions.add(client.refreshed())
    stream.hear_open()
    stream.opened(5, active=True, error=to_wire(OffsetOutOfRange("offsets 0 to 4 were lost: go on at 5", 5)))
    stream.opened(3)
    stream.push(3, 4)
    waiting = client.subscriptions.queues["t"]
    assert [waiting.get(timeout=WAIT_S).offset, waiting.get(timeout=WAIT_S).offset] == [3, 4]


def test_what_is_pushed_while_a_consumer_stops_is_not_handed_out(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = member.stream()
    stream.hear_open()
    stream.opened(0)
    size = stream.push(0, 1, 2)
    assert member.offsets(1) == [0]

    def meanwhile(*_told: object, **_options: object) -> None:
        stream.push(3, 4, 5)
        eventually(lambda: member.subscriptions.places["t", 0].position == 6)
        stream.cancel()

    monkeypatch.setattr(subscription, "move_cursors", meanwhile)
    member.subscriptions.stop(Deadline(1), last_is_done=True)
    assert size > 250, "enough to be given back at once"
    assert member.subscriptions._sessions == {}
    with pytest.raises(queue.Empty):
        member.queue.get_nowait()
    assert not [word for word in stream.rest() if word.credit.bytes], "more would be pushed for nothing"
