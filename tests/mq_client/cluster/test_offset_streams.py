"""What a watch of offsets believes, which streams it opens, what it still waits for. The test is its thread and the
brokers."""

from __future__ import annotations

from typing import ClassVar

import pytest

from mq_client.cluster import offset_watch as offsets_module
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from mq_client.errors import InvalidRequest, NotLeader, OutcomeUnknown, Overloaded, UnknownTopic
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import Scripted, told, topic_info


class Stream:
    """A stream to one broker, as the watch sees it."""

    opened: ClassVar[list[Stream]] = []

    def __init__(self, watch: OffsetWatch, address: str, places: set[tuple[str, int]]) -> None:
        self.address = address
        self.places = places
        self.answered = False
        self.ended = False
        self.closed = False
        self.opened.append(self)

    def close(self) -> None:
        self.closed = True


def opened() -> list[tuple[str, list[tuple[str, int]]]]:
    """The streams opened since this was last called."""
    found = [(stream.address, sorted(stream.places)) for stream in Stream.opened]
    Stream.opened.clear()
    return found


@pytest.fixture
def scripted(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Two topics, led by two brokers. The watch's own thread does nothing: the test looks in its place."""
    monkeypatch.setattr(OffsetWatch, "_run", lambda watch: None)
    monkeypatch.setattr(offsets_module, "_Stream", Stream)
    monkeypatch.setattr(offsets_module, "time", scripted.clock)
    Stream.opened.clear()
    say(scripted, topic_info(1, 2), topic_info(1, name="u"))
    return scripted


def say(scripted: Scripted, *topics: pb.TopicInfo) -> None:
    """All brokers say so from now on."""
    scripted.clock.now += 1
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(*topics))


def word(partition: int, start: int, end: int, *, epoch: int = 1, topic: str = "t") -> pb.WatchedOffsets:
    said = pb.PartitionOffsets(partition=partition, leader_epoch=epoch, log_start_offset=start, log_end_offset=end)
    return pb.WatchedOffsets(topic=topic, offsets=said)


# ---------------------------------------------------------------- what is believed


def test_the_latest_word_counts_unless_it_is_of_an_older_leadership(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t"])
    for told_, believed in (
        (word(0, 0, 5, epoch=2), (0, 5)),
        (word(0, 1, 6, epoch=2), (1, 6)),
        (word(0, 0, 9, epoch=1), (1, 6)),
        (word(0, 0, 4, epoch=3), (0, 4)),
    ):
        assert watch.heard(told_)
        assert watch.latest() == {"t": {0: believed}}


def test_a_broker_that_does_not_lead_is_left_and_the_leader_it_names_believed(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t"])
    watch._watch_leaders()
    error = pb.PartitionOffsets(partition=0, error=to_wire(NotLeader("2 does", 2, 4)))
    assert not watch.heard(pb.WatchedOffsets(topic="t", offsets=error))
    view = scripted.known_topic("t")
    assert view is not None
    assert scripted.leader_address(view, 0) == "b:2"
    other = pb.PartitionOffsets(partition=1, error=to_wire(Overloaded("busy")))
    assert not watch.heard(pb.WatchedOffsets(topic="t", offsets=other))
    assert watch.latest() == {"t": {}}


# ---------------------------------------------------------------- streams


def test_one_stream_to_each_leader_about_all_that_it_leads(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t", "u"])
    assert watch._watch_leaders()
    assert opened() == [("b:1", [("t", 0), ("u", 0)]), ("b:2", [("t", 1)])]
    assert watch._watch_leaders()
    assert opened() == []


def test_streams_follow_the_leaders(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t"])
    watch._watch_leaders()
    first, second = Stream.opened
    opened()
    say(scripted, topic_info(2, 2, epoch=2))
    assert watch._watch_leaders()
    assert opened() == [("b:2", [("t", 0), ("t", 1)])]
    assert (first.closed, second.closed) == (True, True)
    assert list(watch._streams) == ["b:2"]
    say(scripted, topic_info(2, 2, 1, epoch=2))  # a partition was added
    assert watch._watch_leaders()
    assert opened() == [("b:1", [("t", 2)])]


def test_a_topic_that_cannot_be_asked_about_for_now_leaves_the_others_watched(scripted: Scripted) -> None:
    def answer(request: pb.MetadataRequest) -> pb.MetadataResponse | Exception:
        return Overloaded("busy") if "t" in request.topics else told(topic_info(1, name="u"))

    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), answer)
    watch = OffsetWatch(scripted, ["t", "u"])
    assert not watch._watch_leaders()
    assert opened() == [("b:1", [("u", 0)])]
    assert watch.latest() == {"t": {}, "u": {}}


def test_a_topic_that_is_gone_is_told_to_who_asks_until_others_are_watched(scripted: Scripted) -> None:
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(unknown=("t",)))
    watch = OffsetWatch(scripted, ["t"])
    assert not watch._watch_leaders()
    for _ in range(2):
        with pytest.raises(UnknownTopic):
            watch.latest()
    with pytest.raises(UnknownTopic):
        watch.wait_first(Deadline(1_000))
    watch.watch(["u"])
    assert watch.latest() == {"u": {}}


def test_a_topic_made_anew_is_believed_whatever_its_leaders_are_counted_from(scripted: Scripted) -> None:
    say(scripted, topic_info(1, 1, epoch=7))
    watch = OffsetWatch(scripted, ["t"])
    watch._watch_leaders()
    watch.heard(word(0, 3, 90, epoch=7))
    watch.heard(word(1, 3, 91, epoch=7))
    opened()
    say(scripted, topic_info(1, epoch=1, topic_id="anew"))
    watch._watch_leaders()
    assert watch.latest() == {"t": {0: (3, 90)}}  # until something is heard; the partition that is no more is forgotten
    assert opened() == [("b:1", [("t", 0)])]  # a stream of the former topic says nothing of this one
    watch.heard(word(0, 0, 1, epoch=1))
    assert watch.latest() == {"t": {0: (0, 1)}}
    watch._watch_leaders()
    assert opened() == []


# ---------------------------------------------------------------- the first answer


def test_it_waits_for_every_partition_and_names_those_that_are_missing(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t", "u"], {"t": [1]})
    with pytest.raises(OutcomeUnknown, match="offsets of t, u are not known after 0 ms"):
        watch.wait_first(Deadline(0))
    watch._watch_leaders()
    with pytest.raises(OutcomeUnknown, match="offsets of t-1, u-0 are not known after 0 ms"):
        watch.wait_first(Deadline(0))
    watch.heard(word(1, 0, 4))
    watch.heard(word(0, 0, 5, topic="u"))
    assert watch.wait_first(Deadline(0)) == {"t": {1: (0, 4)}, "u": {0: (0, 5)}}


def test_it_asks_when_being_told_takes_long(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = OffsetWatch(scripted, ["t"], {"t": [1]})
    watch._watch_leaders()
    waited: list[float] = []

    def wait(timeout: float) -> None:
        waited.append(timeout)
        scripted.clock.now += timeout

    monkeypatch.setattr(watch._changed, "wait", wait)
    asked: list[pb.ListOffsetsRequest] = []

    def answer(address: str, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        asked.append(request)
        return pb.ListOffsetsResponse(partitions=[word(1, 2, 8).offsets])

    scripted.answers["ListOffsets"] = answer
    assert watch.wait_first(Deadline(60_000)) == {"t": {1: (2, 8)}}
    assert waited == [pytest.approx(offsets_module._ASK_AFTER_S + 0.001)]
    assert [list(request.partitions) for request in asked] == [[1]]


def test_what_asking_raises_ends_the_wait(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = OffsetWatch(scripted, ["t"])
    watch._watch_leaders()
    monkeypatch.setattr(watch._changed, "wait", lambda timeout: scripted.clock.sleep(timeout))
    scripted.answers["ListOffsets"] = lambda address, request: InvalidRequest("no")  # type: ignore[return-value]
    with pytest.raises(InvalidRequest):
        watch.wait_first(Deadline(60_000))
