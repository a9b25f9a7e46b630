"""Where partitions end, pushed by the brokers into a cache that is read without asking anybody.

For Spark's source, which wants to know every few milliseconds. One stream to each broker that leads one of the
partitions; when a leader changes, its partitions are watched at the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Backoff, Deadline
from mq_client.cluster.duplex import Duplex
from mq_client.cluster.lines import heard
from mq_client.cluster.requests import ask_offsets
from mq_client.errors import NotLeader, OutcomeUnknown, TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import from_wire

Place = tuple[str, int]

_REFRESH_S: Final = 5.0
"""Who leads is looked up anew this often even if nothing seems wrong: a stopped process keeps its streams open."""

_REFRESH_MS: Final = 5_000.0
_ASK_AFTER_S: Final = 1.0
_JOIN_S: Final = 1.0


class OffsetWatch:
    """Owns the cache, one watching thread and one for each broker watched. Starts at once; `close` ends it.

    `partitions[topic]`: of that topic only these.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Connection,
        topics: Iterable[str],
        partitions: Mapping[str, Iterable[int]] | None = None,
    ) -> None:
        self._connection = bootstrap if isinstance(bootstrap, Connection) else Connection(bootstrap)
        self.client = self._connection.client
        self._changed = threading.Condition()
        self._topics = tuple(sorted(set(topics)))
        self._only = {topic: frozenset(numbers) for topic, numbers in (partitions or {}).items()}
        self._partitions: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._known: dict[Place, tuple[int, int, int]] = {}  # leader_epoch, log_start_offset, log_end_offset
        self._streams: dict[str, _Stream] = {}
        self._refused: TritonMQError | None = None
        self._stopping = False
        self._look = False  # other topics are to be watched
        self._failed = False  # a stream has ended, or a partition has left its leader
        self._thread = threading.Thread(target=self._run, name="tritonmq-offsets", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ reading

    def latest(self) -> dict[str, dict[int, tuple[int, int]]]:
        """`{topic: {partition: (log_start_offset, log_end_offset)}}` of what has been heard. Asks nobody. Raises what a
        topic was refused with (`UnknownTopic`).
        """
        with self._changed:
            if self._refused is not None:
                raise self._refused
            found: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in self._topics}
            for (topic, partition), (_, start, end) in sorted(self._known.items()):
                if topic in found:
                    found[topic][partition] = (start, end)
            return found

    def wait_first(self, deadline: Deadline) -> dict[str, dict[int, tuple[int, int]]]:
        """`latest` once every partition has been heard of. Asks, when being told takes long. Raises `OutcomeUnknown`
        naming what is missing, and what asking raised (`UnknownTopic`, `Unreachable`).
        """
        ask_at = time.monotonic() + _ASK_AFTER_S
        while True:
            with self._changed:
                if self._refused is not None:
                    raise self._refused
                missing = self._missing()
                if not missing:
                    break
                if deadline.expired:
                    raise OutcomeUnknown(
                        f"offsets of {', '.join(missing[:10])} are not known after {deadline.timeout_ms:.0f} ms"
                    )
                self._changed.wait(min(deadline.remaining_s, max(0.0, ask_at - time.monotonic()) + 0.001))
            if time.monotonic() >= ask_at:
                self.ask(deadline)
        return self.latest()

    def ask(self, deadline: Deadline) -> dict[str, dict[int, tuple[int, int]]]:
        """`latest`, asked of the leaders now instead of waited for."""
        for topic in self._topics:
            for offsets in ask_offsets(self._connection, topic, deadline, partitions=self._only.get(topic)).values():
                self._learn(topic, offsets)
        return self.latest()

    def watch(self, topics: Iterable[str]) -> None:
        """Watch these topics from now on, and no others."""
        with self._changed:
            self._topics = tuple(sorted(set(topics)))
            self._refused = None
            self._known = {place: known for place, known in self._known.items() if place[0] in self._topics}
            self._look = True
            self._changed.notify_all()

    def _missing(self) -> list[str]:
        missing = [topic for topic in self._topics if topic not in self._partitions]
        for topic in self._topics:
            for partition in self._wanted(topic, self._partitions.get(topic, 0)):
                if (topic, partition) not in self._known:
                    missing.append(f"{topic}-{partition}")  # noqa: PERF401
        return missing

    def _wanted(self, topic: str, partitions: int) -> list[int]:
        only = self._only.get(topic)
        return [number for number in range(partitions) if only is None or number in only]

    def _learn(self, topic: str, offsets: pb.PartitionOffsets) -> None:
        """A word of an older leadership than one heard is no news (rule 3 of the replication's)."""
        place = (topic, offsets.partition)
        with self._changed:
            known = self._known.get(place)
            if topic in self._topics and (known is None or offsets.leader_epoch >= known[0]):
                self._known[place] = (offsets.leader_epoch, offsets.log_start_offset, offsets.log_end_offset)
                self._changed.notify_all()

    # ------------------------------------------------------------------ watching

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            led = self._watch_leaders()
            with self._changed:
                # Streams just opened answer within a moment: only then is there nothing to do.
                settled = led and all(stream.answered and not stream.ended for stream in self._streams.values())
                if settled:
                    backoff.reset()
                deadline = Deadline(_REFRESH_S * 1000 if settled else backoff.next_ms())
                while not (self._stopping or self._look or deadline.expired or (self._failed and settled)):
                    self._changed.wait(deadline.remaining_s)
                self._look = self._failed = False
                if self._stopping:
                    break
        for stream in list(self._streams.values()):
            stream.close()

    def _watch_leaders(self) -> bool:
        """One stream for each leader, about exactly the partitions it leads. False if some partition has none for
        now."""
        by_address: dict[str, set[Place]] = {}
        complete = True
        anew: set[str] = set()
        for topic in self._topics:
            try:
                view = self._connection.refresh(topic, Deadline(_REFRESH_MS))
            except TritonMQError as error:
                if not error.retriable:
                    with self._changed:
                        self._refused = error
                        self._changed.notify_all()
                complete = False
                continue
            with self._changed:
                self._partitions[topic] = view.partitions
                if self._topic_ids.setdefault(topic, view.topic_id) != view.topic_id:
                    self._topic_ids[topic] = view.topic_id
                    self._doubt(topic, view.partitions)
                    anew.add(topic)
            for partition in self._wanted(topic, view.partitions):
                address = self._connection.leader_address(view, partition)
                if address is None:
                    complete = False
                else:
                    by_address.setdefault(address, set()).add((topic, partition))
        for address in [known for known in self._streams if known not in by_address]:
            self._streams.pop(address).close()
        for address, places in by_address.items():
            stream = self._streams.get(address)
            if stream is None or stream.ended or stream.places != places or any(topic in anew for topic, _ in places):
                if stream is not None:
                    stream.close()
                self._streams[address] = _Stream(self, address, places)
        return complete

    def _doubt(self, topic: str, partitions: int) -> None:
        """It was deleted and made again, and its leaders are counted anew: any word is news."""
        for place, (_, start, end) in list(self._known.items()):
            if place[0] == topic:
                del self._known[place]
                if place[1] < partitions:
                    self._known[place] = (-1, start, end)

    def heard(self, watched: pb.WatchedOffsets) -> bool:
        """What a stream was told. False if that broker does not lead the partition."""
        if watched.offsets.HasField("error"):
            error = from_wire(watched.offsets.error)
            if isinstance(error, NotLeader):
                self._connection.note_leader(watched.topic, watched.offsets.partition, error)
            return False
        self._learn(watched.topic, watched.offsets)
        return True

    def look_again(self) -> None:
        """A stream has ended, or a partition has left its leader."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End all threads and streams. A second call does nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def __enter__(self) -> OffsetWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stream:
    """Owns one broker's stream and the thread that listens to it."""

    def __init__(self, watch: OffsetWatch, address: str, places: set[Place]) -> None:
        self.places = places
        self.answered = False
        self.ended = False
        self._watch = watch
        self._address = address
        self._duplex: Duplex | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"tritonmq-offsets-{address}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        if self._duplex is not None:
            self._duplex.close()

    def _run(self) -> None:
        try:
            self._watch_places()
        except TritonMQError:
            pass  # whoever leads by now is looked up and watched
        finally:
            self.ended = True
            if self._duplex is not None:
                self._duplex.release()
            if not self._closed:
                self._watch.look_again()

    def _watch_places(self) -> None:
        """Until the broker ends it, or leads one of the partitions no more."""
        client = self._watch.client
        request = pb.WatchOffsetsRequest(
            partitions=[pb.TopicPartition(topic=t, partition=p) for t, p in sorted(self.places)]
        )
        duplex = self._duplex = Duplex(self._address, "WatchOffsets", client)
        duplex.send(request.SerializeToString())
        duplex.end()
        while not self._closed and (message := duplex.receive()) is not None:
            self.answered = True
            told = heard(message, pb.WatchOffsetsResponse, self._address, client).offsets
            left = [watched for watched in told if not self._watch.heard(watched)]
            if left:
                return
