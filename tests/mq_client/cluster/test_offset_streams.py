"""What a watch of offsets believes, which streams it opens, what it still waits for. The test is its thread and the
brokers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import grpc
import pytest

from mq_client.cluster import deadline as deadline_module
from mq_client.cluster import offset_watch as offsets_module
from mq_client.cluster.channels import NOBODY
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch, _Stream
from mq_client.errors import InvalidRequest, NotLeader, OutcomeUnknown, Overloaded, UnknownTopic
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import to_wire
from tests.mq_client.cluster.scripted import Scripted, told, topic_info
from tests.mq_client.wakes import Wakes

WAIT_S = 30.0


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


def test_words_about_other_topics_are_not_kept(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t"])
    watch.heard(word(0, 0, 5, topic="u"))
    assert watch.latest() == {"t": {}}
    watch.watch(["u"])
    assert watch.latest() == {"u": {}}


def test_what_is_known_of_a_topic_stays_while_others_come_and_go(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t", "t"])
    watch.heard(word(0, 0, 5))
    watch.watch(["t", "u"])
    assert watch.latest() == {"t": {0: (0, 5)}, "u": {}}
    watch.watch(["u"])
    watch.watch(["t"])
    assert watch.latest() == {"t": {}}


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


def test_a_stream_that_ended_is_opened_again_and_the_others_stay(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t", "u"])
    watch._watch_leaders()
    first, second = Stream.opened
    opened()
    second.ended = True
    watch._watch_leaders()
    assert opened() == [("b:2", [("t", 1)])]
    assert (first.closed, second.closed) == (False, True)


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


def test_a_partition_without_a_leader_leaves_the_look_incomplete(scripted: Scripted) -> None:
    say(scripted, topic_info(1, 0))
    watch = OffsetWatch(scripted, ["t"])
    assert not watch._watch_leaders()
    assert opened() == [("b:1", [("t", 0)])]


def test_of_a_topic_only_the_partitions_named_are_watched(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t", "u"], {"t": [1]})
    assert watch._watch_leaders()
    assert opened() == [("b:2", [("t", 1)]), ("b:1", [("u", 0)])]


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


def test_a_topic_made_anew_with_as_many_partitions_is_watched_on_a_new_stream(scripted: Scripted) -> None:
    watch = OffsetWatch(scripted, ["t", "u"])
    watch._watch_leaders()
    watch.heard(word(0, 0, 3, topic="u"))
    opened()
    say(scripted, topic_info(1, 2, topic_id="anew"), topic_info(1, name="u"))
    watch._watch_leaders()
    assert opened() == [("b:1", [("t", 0), ("u", 0)]), ("b:2", [("t", 1)])]
    assert watch.latest()["u"] == {0: (0, 3)}


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


# ---------------------------------------------------------------- one stream


class Call:
    """A WatchOffsets stream, as gRPC gives it."""

    def __init__(self) -> None:
        self.says: queue.Queue[Any] = queue.Queue()
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        while True:
            said = self.says.get(timeout=WAIT_S)
            if said is None:
                return
            if isinstance(said, Exception):
                raise said
            yield said

    def cancel(self) -> None:
        self.cancelled.set()
        self.says.put(None)


class Watch:
    """In the watch's place: what a stream told it."""

    def __init__(self) -> None:
        self.client = NOBODY
        self.told: list[pb.WatchedOffsets] = []
        self.looks = 0
        self.leads = True

    def stream_address(self, address: str) -> str:
        return ""

    def heard(self, watched: pb.WatchedOffsets) -> bool:
        self.told.append(watched)
        return self.leads

    def look_again(self) -> None:
        self.looks += 1


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    made = Call()
    requests: list[pb.WatchOffsetsRequest] = []

    def open_watch_offsets(address: str, request: pb.WatchOffsetsRequest, *_: object) -> Call:
        requests.append(request)
        return made

    monkeypatch.setattr(offsets_module, "open_watch_offsets", open_watch_offsets)
    made.requests = requests  # type: ignore[attr-defined]
    return made


def started(watch: Any) -> _Stream:
    return _Stream(watch, "b:1", {("t", 1), ("t", 0)})


def test_a_stream_asks_about_its_places_and_passes_on_what_it_hears(call: Any) -> None:
    watch = Watch()
    stream = started(watch)
    assert (stream.answered, stream.ended) == (False, False)
    call.says.put(pb.WatchOffsetsResponse(offsets=[word(0, 0, 1), word(1, 0, 2)]))
    call.says.put(pb.WatchOffsetsResponse(offsets=[word(1, 0, 3)]))
    call.says.put(grpc.RpcError())
    stream._thread.join(WAIT_S)
    assert [(place.topic, place.partition) for place in call.requests[0].partitions] == [("t", 0), ("t", 1)]
    assert [each.offsets.log_end_offset for each in watch.told] == [1, 2, 3]
    assert (stream.answered, stream.ended, watch.looks) == (True, True, 1)


def test_a_stream_ends_when_its_broker_does_not_lead_any_more(call: Any) -> None:
    watch = Watch()
    watch.leads = False
    stream = started(watch)
    call.says.put(pb.WatchOffsetsResponse(offsets=[word(0, 0, 1), word(1, 0, 2)]))
    stream._thread.join(WAIT_S)
    assert len(watch.told) == 2
    assert stream.ended
    assert call.cancelled.is_set()
    assert watch.looks == 1


def test_a_stream_that_is_closed_asks_for_no_new_look(call: Any) -> None:
    watch = Watch()
    stream = started(watch)
    stream.close()
    stream._thread.join(WAIT_S)
    assert (stream.ended, watch.looks) == (True, 0)
    assert call.cancelled.is_set()


# ---------------------------------------------------------------- the thread


RUN = OffsetWatch._run


class Looks:
    """Owns what each look at the leaders finds, and what happens while the thread waits. Ends it after the last."""

    def __init__(self, watch: OffsetWatch, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        self.watch = watch
        self.found: list[bool] = []
        self.meanwhile: list[Callable[[], object]] = []
        self.at: list[float] = []
        self._clock = scripted.clock
        self._began = scripted.clock.now
        monkeypatch.setattr(
            deadline_module, "random", SimpleNamespace(Random=lambda: SimpleNamespace(random=lambda: 1.0))
        )
        monkeypatch.setattr(watch, "_watch_leaders", self._look)
        monkeypatch.setattr(watch._changed, "wait", self._wait)

    def _look(self) -> bool:
        self.at.append(round(self._clock.now - self._began, 6))
        found = self.found.pop(0)
        if not self.found:
            self.watch._stopping = True
        return found

    def _wait(self, timeout: float) -> None:
        if self.meanwhile:
            self._clock.now += 0.001
            self.meanwhile.pop(0)()
        else:
            self._clock.now += timeout

    def run(self, *found: bool) -> list[float]:
        """When it looked at the leaders, in seconds from its begin."""
        self.found = [*found, True]
        RUN(self.watch)
        return self.at


@pytest.fixture
def looks(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(OffsetWatch(scripted, ["t"]), scripted, monkeypatch)


def test_it_looks_at_the_leaders_again_soon_while_something_is_missing_and_else_every_five_seconds(
    looks: Looks,
) -> None:
    # Waits double from 20 ms on, and begin anew once all is well.
    assert looks.run(False, False, True, True, False) == [0.0, 0.02, 0.06, 5.06, 10.06, 10.08]


def test_streams_that_have_not_answered_yet_are_looked_at_soon(looks: Looks) -> None:
    stream = Stream(looks.watch, "b:1", set())
    looks.watch._streams = {"b:1": stream}  # type: ignore[dict-item]
    assert looks.run(True, True) == [0.0, 0.02, 0.06]
    stream.answered = stream.ended = True
    looks.at.clear()
    looks.watch._stopping = False
    looks._began = looks._clock.now
    assert looks.run(True, True) == [0.0, 0.02, 0.06]


def test_other_topics_are_looked_at_at_once_and_a_failure_only_where_all_was_well(looks: Looks) -> None:
    looks.meanwhile = [lambda: looks.watch.watch(["u"])]
    assert looks.run(True) == [0.0, 0.001]
    looks.at.clear()
    looks.watch._stopping = False
    looks._began = looks._clock.now
    looks.meanwhile = [looks.watch.look_again]
    assert looks.run(True, False, True) == [0.0, 0.001, 0.021, 5.021]


def test_a_failure_while_something_is_missing_is_no_reason_to_hurry(looks: Looks) -> None:
    looks.meanwhile = [looks.watch.look_again]
    assert looks.run(False) == [0.0, 0.02]


def test_the_end_closes_all_streams(looks: Looks) -> None:
    stream = Stream(looks.watch, "b:1", set())
    looks.watch._streams = {"b:1": stream}  # type: ignore[dict-item]
    looks.run()
    assert stream.closed


def test_closing_waits_for_the_thread(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = OffsetWatch(scripted, ["t"])
    ended = threading.Event()
    watch._thread = threading.Thread(target=lambda: ended.wait(0.02) or ended.set())
    watch._thread.start()
    watch.close()
    assert ended.is_set()
    assert watch._stopping


def test_no_thread_of_a_watch_keeps_the_process(scripted: Scripted, call: Any) -> None:
    assert OffsetWatch(scripted, ["t"])._thread.daemon
    stream = started(Watch())
    assert stream._thread.daemon
    stream.close()
    stream._thread.join(WAIT_S)


def test_all_that_is_news_wakes_the_thread_and_who_waits_for_offsets(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = OffsetWatch(scripted, ["t"])
    wakes = Wakes(watch._changed, monkeypatch)
    assert wakes.by(lambda: watch.heard(word(0, 3, 9)))
    assert not wakes.by(lambda: watch.heard(word(0, 3, 9, epoch=0)))  # of a former leadership
    assert wakes.by(watch.look_again)
    assert wakes.by(lambda: watch.watch(["t", "gone"]))
    scripted.clock.now += 1
    gone = UnknownTopic("unknown topic 'gone'")
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), gone)
    assert wakes.by(watch._watch_leaders)
    assert wakes.by(watch.close)
