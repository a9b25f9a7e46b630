"""Publishes records and tables: what applications meet. How it is done is in accumulator, lanes and sender."""

from __future__ import annotations

import atexit
import functools
import time
import uuid as uuids
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mq_client.awaiting import AsyncBlock
from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline, a_number, positive_ms
from mq_client.cluster.listening import REFUSED_S
from mq_client.cluster.requests import topic_with
from mq_client.errors import BatchTooLarge, InvalidRequest, InvalidSetting, SchemaMismatch, TritonMQError
from mq_client.interceptors import Outgoing, ProducerInterceptor
from mq_client.producing.accumulator import AccumulatorSettings
from mq_client.producing.batches import (
    RECORD_OVERHEAD_BYTES,
    Headers,
    record_size,
    record_time_us,
    to_bytes,
    to_header_pairs,
)
from mq_client.producing.futures import BatchOutcome, Outcome, RecordFuture, TableFuture, TableOutcome
from mq_client.producing.lanes import NOT_SCHEDULED, USUAL
from mq_client.producing.partitioners import Partitioner, choice_of
from mq_client.producing.rows import binaries, listed, rows_table
from mq_client.producing.scheduling import Cancellation, attributes_of, batch_of_one, cancel, due_of
from mq_client.producing.sender import Sender
from mq_client.producing.splitting import Shipment, partition_of_uuid, piece_uuid, pieces_of_ways, uuid_bytes, ways_of
from mq_client.producing.targets import Target
from mq_client.security import Security
from mq_client.serializers import Serializer, serializer_of
from mq_client.tracing import sending
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import check_topic_name, did_you_mean
from mq_protocol.partitioner import partition_for_key

BATCH_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 64 << 20
RETRIES: Final = 2**31 - 1

ACKS: Final = {"all": pb.ALL, "leader": pb.LEADER, "none": pb.NONE}
COMPRESSIONS: Final = {"none": None, "lz4": "lz4", "zstd": "zstd", "gzip": "zstd", "zlib": "zstd", "snappy": "lz4"}
"""Arrow's buffers know lz4 and zstd alone, and every reader of Arrow knows those. The other names stand for the nearest
of the two: zstd makes 1 MB of JSON smaller than gzip in a quarter of the time, lz4 as small as snappy in a sixth."""

_METADATA_AGE_MS: Final = 30_000.0
_USUAL_WAY: Final = Shipment(USUAL, NOT_SCHEDULED)

# Keys repeat; the hash in Python costs ten times the look-up.
_partition_of_key = functools.lru_cache(maxsize=1 << 16)(partition_for_key)


class Given(NamedTuple):
    """A record as it was given, and how it is to be sent."""

    value: Any
    key: Any
    headers: Headers | None
    partition: int | None
    timestamp: int | datetime | None
    uuid: uuids.UUID | bytes | str | None
    way: Shipment


def _check_names(acks: str, compression: str | None) -> None:
    """Raises `InvalidSetting` with the nearest right name, as the other checks raise it with the bounds."""
    _check_known("acks", acks, ACKS)
    if compression is not None:
        _check_known("compression", compression, COMPRESSIONS)


def _check_room(batch_bytes_max: int, buffer_bytes_max: int) -> None:
    if not 1 <= batch_bytes_max <= limits.BATCH_BYTES_CEILING:
        raise InvalidSetting(
            f"batch_bytes_max={batch_bytes_max} is out of range: give 1 to {limits.BATCH_BYTES_CEILING}"
        )
    if buffer_bytes_max < batch_bytes_max:
        raise InvalidSetting(
            f"buffer_bytes_max={buffer_bytes_max} is below batch_bytes_max={batch_bytes_max}: raise it"
        )


def _check_known(setting: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        hint = did_you_mean(str(given), known)
        raise InvalidSetting(f"{setting}={given!r} is not known{hint} (it is one of {', '.join(known)})")


def _check_sending(retries: int, max_in_flight: int, linger_ms: float) -> None:
    if retries < 0:
        raise InvalidSetting(f"retries={retries} is negative: 0 means to try once")
    if max_in_flight < 1:
        raise InvalidSetting(f"max_in_flight={max_in_flight} must be at least 1")
    if a_number("linger_ms", linger_ms) < 0:
        raise InvalidSetting(f"linger_ms={linger_ms} is negative: 0 means to send at once")


class Producer(AsyncBlock):
    """Publishes records and tables to topics. Thread-safe: one producer for a process is enough.

    Order is kept within a partition, also over retries and changes of leader. An acknowledged record is in the log
    once.

    - `acks`: when a record counts as sent. "all": every in-sync replica has it, as durably as the topic says.
      "leader": the leader has it. "none": no answer is waited for.
    - `timeout_ms`: how long a batch is tried, from its first record on. It includes the wait behind other batches,
      and retries.
    - `publish_ms_max`: how long `publish` waits for room in the buffer before it raises `Overloaded`. Default: half
      of `timeout_ms`.
    - `retries`: attempts after the first one, within `timeout_ms`. `max_in_flight`: unanswered batches of one
      partition.
    - `linger_ms`: how long a batch waits for more records. `batch_bytes_max`: the size at which it is sent at once.
    - `compression`: None or "none", "lz4", "zstd". "gzip" and "zlib" stand for zstd, "snappy" for lz4, because Arrow
      has no others.
    - `buffer_bytes_max`: unacknowledged bytes of all partitions together.
    - `partitioner`: chooses the partition of a record that names none: "key", "sticky", "round_robin", "random", a
      callable, or a name of the entry point group `tritonmq.partitioners`. partitioners.py describes each.
    - `key_serializer`, `value_serializer`: turn keys and values into bytes (for a typed topic only keys): "json",
      "string", "bytes", a callable, or a name of the entry point group `tritonmq.serializers`. serializers.py
      describes each.
    - `interceptors`: functions that each record of `publish` goes through. interceptors.py describes them.
    - `metadata_age_ms_max`: the time after which added partitions and columns are known. One that is named is looked
      up at once.

    Raises `InvalidSetting` for a value that is not allowed. No connection is made before the first use.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        acks: str = "all",
        timeout_ms: float = limits.REQUEST_TIMEOUT_MS,
        retries: int = RETRIES,
        max_in_flight: int = 5,
        linger_ms: float = 2,
        batch_bytes_max: int = BATCH_BYTES,
        *,
        compression: str | None = None,
        buffer_bytes_max: int = BUFFER_BYTES,
        metadata_age_ms_max: float = _METADATA_AGE_MS,
        publish_ms_max: float | None = None,
        partitioner: str | Partitioner = "key",
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        interceptors: Sequence[str | ProducerInterceptor] = (),
        security: Security | None = None,
        forward: bool | None = None,
    ) -> None:
        _check_names(acks, compression)
        _check_sending(retries, max_in_flight, linger_ms)
        _check_room(batch_bytes_max, buffer_bytes_max)
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._publish_ms_max = (
            self._timeout_ms / 2 if publish_ms_max is None else positive_ms("publish_ms_max", publish_ms_max)
        )
        self._buffer_bytes_max = buffer_bytes_max
        self._metadata_age_s_max = positive_ms("metadata_age_ms_max", metadata_age_ms_max) / 1000
        self._connection = Connection(bootstrap, refused_s=REFUSED_S, security=security, forward=forward)
        self._choice = choice_of(partitioner)
        self._key_serializer = serializer_of("key_serializer", key_serializer)
        self._value_serializer = serializer_of("value_serializer", value_serializer)
        settings = AccumulatorSettings(
            batch_bytes_max,
            linger_ms / 1000,
            timeout_ms / 1000,
            retries,
            max_in_flight,
            COMPRESSIONS[compression or "none"],
            takes_turns=not self._choice.sticks,
        )
        self._sender = Sender(self._connection, settings, ACKS[acks], self._forget, self._metadata_age_s_max)
        self._accumulator = self._sender.accumulator
        self._lock = self._sender.lock
        self._targets: dict[str, Target] = {}
        # Those for which `publish` may choose the partition itself, as it does for most.
        self._outgoing = Outgoing(interceptors)
        as_given = self._key_serializer is None and self._value_serializer is None and not self._outgoing
        self._tracing = sending()
        if self._tracing is not None:
            self._accumulator.traceparent = self._tracing.traceparent
        plain = self._choice == (None, True, False) and as_given and self._tracing is None
        self._quick: dict[str, Target] = self._targets if plain else {}
        self._closed = False
        atexit.register(_close_at_exit, weakref.ref(self))

    # ------------------------------------------------------------------ records

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        uuid: uuids.UUID | bytes | str | None = None,
        deliver_at: int | datetime | None = None,
        delay_ms: float | None = None,
        priority: int = limits.PRIORITY_USUAL,
        ttl_ms: float | None = None,
    ) -> RecordFuture:
        """Send one record; its future tells where it is, or why it is not there.

        `value`: bytes or text for a topic of records (what `value_serializer` takes, if there is one); for a topic with
        its own schema a dict of columns, or an object of a dataclass, a NamedTuple or a pydantic model. `key` decides
        the partition (as Kafka's default partitioner does) unless `partition` is given; without either, records go to
        the partitions in turn, some dozens at a time.
        Another `partitioner` may choose otherwise. `timestamp`: microseconds since 1970 or a datetime with a zone; the
        clock's time if not given. `uuid`: the record's own. Sent again, by anyone and among whatever others, it is
        answered with the first one's place, as long as the partition remembers it (`dedup_uuids_max`). Without key or
        partition it also decides the partition.

        `deliver_at` (microseconds since 1970 or a datetime with a zone) or `delay_ms`: the record is published then,
        and gets its offset then, so the future tells offset -1 once the brokers keep it. It is a batch of its own.
        `priority`, 0 to 31: work queues lend higher ones first. `ttl_ms`, up to a year: for so long after it was
        published work queues lend the record. Records are in order only with those of the same priority and `ttl_ms`.

        Raises at once what can be known at once: `UnknownTopic`, `UnknownPartition`, `BatchTooLarge`, `SchemaMismatch`,
        `InvalidRequest`, `InvalidSetting`; `Overloaded` if no room was made within `publish_ms_max`; `Unreachable`.
        """
        target = self._quick.get(topic)
        if (
            target is not None
            and type(value) is bytes
            and (key is None or type(key) is bytes)
            and (partition is None or 0 <= partition < len(target.open))
            and headers is None
            and timestamp is None
            and uuid is None
            and deliver_at is None
            and delay_ms is None
            and priority == limits.PRIORITY_USUAL
            and ttl_ms is None
        ):
            size, chosen = len(value) + RECORD_OVERHEAD_BYTES, partition
            if key is not None:
                size += len(key)
                if partition is None:
                    chosen = _partition_of_key(key, len(target.open))
            clock_ns = time.time_ns()
            with self._lock:
                future = self._accumulator.add_plain(target, chosen, key, value, size, clock_ns, self._buffer_bytes_max)
            if future is not None:
                return future
        way = _way(priority, ttl_ms, deliver_at, delay_ms)
        return self._publish_so(topic, Given(value, key, headers, partition, timestamp, uuid, way))

    def _publish_so(self, topic: str, given: Given, *, traced: bool = False) -> RecordFuture:
        if self._outgoing and not traced:
            _, value, key, headers = self._outgoing.record(topic, given.value, given.key, given.headers)
            given = given._replace(value=value, key=key, headers=headers)
        if self._tracing is not None and not traced:
            typed = (self._targets.get(topic) or self._target(topic)).view.typed

            def publish(headers: Headers | None) -> RecordFuture:
                return self._publish_so(topic, given._replace(headers=headers), traced=True)

            return self._tracing.record(topic, given.headers, typed, publish)
        if given.key is not None and self._key_serializer is not None:
            given = given._replace(key=self._key_serializer(given.key))
        if given.way.due != NOT_SCHEDULED:
            return self._schedule(topic, given)
        return self._publish(topic, given, self._value_serializer)

    def _schedule(self, topic: str, given: Given) -> RecordFuture:
        """One record as a batch of its own, so that it has a due time and a UUID of its own."""
        target = self._targets.get(topic) or self._target(topic)
        partition = given.partition
        if partition is None and given.key is not None:
            target, partition = self._choose(target, to_bytes(given.key, "key"), None)
        batch = batch_of_one(target, given.key, given.value, given.headers, given.timestamp, self._value_serializer)
        outcome = BatchOutcome(topic)
        self._send_table(topic, lambda: outcome, [(given.way, batch)], partition, None, given.uuid)
        return RecordFuture(outcome, 0)

    def _publish(self, topic: str, given: Given, serialize: Serializer | None = None) -> RecordFuture:
        target = self._targets.get(topic) or self._target(topic)
        if target.view.typed:
            return self._publish_row(target, given)
        if serialize is not None and given.value is not None:
            given = given._replace(value=serialize(given.value))
        return self._publish_record(target, given)

    def _publish_record(self, target: Target, given: Given) -> RecordFuture:
        value, key, headers, partition, timestamp, uuid, way = given
        name = target.view.name
        if value is not None and type(value) is not bytes:
            value = to_bytes(value, "value")
        if key is not None and type(key) is not bytes:
            key = to_bytes(key, "key")
        pairs = None if headers is None else to_header_pairs(headers)
        size = record_size(key, value, pairs)
        if size > target.record_bytes_max + RECORD_OVERHEAD_BYTES:
            raise BatchTooLarge(
                f"record of {size - RECORD_OVERHEAD_BYTES} bytes is above {name!r}'s "
                f"record_bytes_max={target.record_bytes_max}: send less in a record or raise the setting"
            )
        given_us = None if timestamp is None else record_time_us(timestamp)
        clock_ns = time.time_ns()
        own = None if uuid is None else uuid_bytes(uuid)
        target, chosen = self._choose(target, key, partition, own)
        with self._lock:
            self._make_room(size)
            if not target.dropped and not target.view.typed:
                target = self._accumulator.of(target, way.attributes)
                future, news = self._accumulator.add(
                    target, chosen, key, value, pairs, given_us, size, clock_ns, time.monotonic(), own
                )
                if news:
                    self._sender.work.notify()
                return future
        # The topic has just changed.
        return self._publish(name, Given(value, key, pairs, partition, given_us, own, way))

    def _publish_row(self, target: Target, given: Given) -> RecordFuture:
        row, key, headers, partition, timestamp, uuid, way = given
        name = target.view.name
        if headers is not None or timestamp is not None:
            raise InvalidRequest(
                f"topic {name!r} has its own schema: it has no place for headers or timestamp; make them columns"
            )
        assert target.rows is not None
        row = row if type(row) is dict else target.rows.columns_of(row)
        try:
            values, size = target.rows.fit(row)
        except SchemaMismatch:
            if target.rows.knows(row):
                raise
            target = self._target_with(name, columns=row)
            if target.rows is None:
                return self._publish(name, given._replace(value=row))  # it has no schema now
            values, size = target.rows.fit(row)
        if size > target.record_bytes_max:
            raise BatchTooLarge(
                f"row of {size} bytes is above {name!r}'s record_bytes_max={target.record_bytes_max}: raise it"
            )
        key = None if key is None else to_bytes(key, "key")
        own = None if uuid is None else uuid_bytes(uuid)
        fitted = target
        target, chosen = self._choose(target, key, partition, own)
        with self._lock:
            self._make_room(size)
            if target is fitted and not target.dropped:
                target = self._accumulator.of(target, way.attributes)
                future, news = self._accumulator.add_row(target, chosen, values, size, time.monotonic(), own)
                if news:
                    self._sender.work.notify()
                return future
        return self._publish(name, Given(row, key, None, partition, None, own, way))

    def _choose(
        self, target: Target, key: bytes | None, partition: int | None, uuid: bytes | None = None
    ) -> tuple[Target, int | None]:
        """The partition, None if it may be any, and the target that has it. Without anything else the UUID decides:
        sent again by anyone, the record must meet its first copy."""
        if partition is None:
            count, choice = len(target.open), self._choice
            if uuid is not None and (key is None or not choice.by_key):
                return target, partition_of_uuid(uuid, count)
            if choice.pick is not None:
                return target, choice.pick(target.view.name, key, count)
            return target, None if key is None or not choice.by_key else _partition_of_key(key, count)
        if not 0 <= partition < len(target.open):
            target = self._target_with(target.view.name, partition)
        return target, partition

    # ------------------------------------------------------------------ many at once

    def publish_many(
        self, topic: str, values: Iterable[Any], keys: Iterable[Any] | None = None, *, partition: int | None = None
    ) -> TableFuture:
        """Send many records in one call; one future tells where they are, once all of them are there.

        `values`, `keys`: as `publish` takes each of them; as many keys as values, None where one has none. A key
        decides the partition; values without one go to the partitions in turn, a batch at a time, and all of them to
        `partition` if that is given. Those of one partition are in order, behind what was published to it before. It
        costs a fraction of `publish` a record (benchmarks/NOTES.md), and nothing waits to be joined by later records.

        A value that cannot be sent refuses all: raises at once what `publish` raises, naming the value. `Overloaded`
        comes as from `publish_batch`.
        """
        self._outgoing.refuse("publish_many")
        given = listed("values", values)
        target = self._targets.get(topic) or self._target(topic)
        names = None if keys is None else binaries("key", listed("keys", keys), self._key_serializer)
        if names is not None and len(names) != len(given):
            raise InvalidRequest(f"there are {len(given)} values and {len(names)} keys: give one for each, or None")
        if target.rows is None:
            columns = {} if names is None else {"key": names}
            table = pa.table({**columns, "value": binaries("value", given, self._value_serializer)})
        else:
            table = rows_table(target.rows, given, lambda columns: self._target_with(topic, columns=columns).rows)
        ways = [(_USUAL_WAY, table)]
        return self._publish_table(
            topic, table.num_rows, ways, partition, None, None, None if target.rows is None else names
        )

    # ------------------------------------------------------------------ tables

    def publish_batch(
        self,
        topic: str,
        batch: pa.RecordBatch | pa.Table,
        *,
        partition: int | None = None,
        key_column: str | None = None,
        uuid: uuids.UUID | bytes | str | None = None,
        deliver_at: int | datetime | None = None,
        delay_ms: float | None = None,
        priority: int = limits.PRIORITY_USUAL,
        ttl_ms: float | None = None,
        priority_column: str | None = None,
        deliver_at_column: str | None = None,
    ) -> TableFuture:
        """Send a table; its future tells where its rows are, once all of them are there.

        Columns are matched by name and must have the topic's types; a topic of records needs `value` and may have
        `key`, `headers`, `timestamp`. Rows go to `partition`; or to the partition of their `key_column`'s value (for a
        topic of records: of their key, if they have any); or to the partitions in turn. The table is split into batches
        of at most `batch_bytes_max`; it is atomic only if it fits one. With `uuid`, sending the same table again, split
        alike, makes no second copy. `deliver_at`, `delay_ms`, `priority`, `ttl_ms`: as for `publish`. What is scheduled
        has the offset -1.

        `priority_column`, `deliver_at_column`: columns of `batch` with the priority of each row, a whole number, and
        the time at which it is published: a timestamp with a zone, or microseconds since 1970. Where one is null, what
        is given for all rows holds. Rows that are alike in both go together: at most 1,000 different pairs. A column
        of these that the topic does not have is not sent.

        Raises at once `SchemaMismatch` naming the column, `BatchTooLarge`, `UnknownTopic`, `UnknownPartition`;
        `Overloaded` when no room was made within `publish_ms_max` (then batches before may be on their way).
        """
        self._outgoing.refuse("publish_batch")
        usual = _way(priority, ttl_ms, deliver_at, delay_ms)
        ways = [(usual, batch)]
        if priority_column is not None or deliver_at_column is not None:
            target = self._targets.get(topic) or self._target(topic)
            columns = [each for each in (priority_column, deliver_at_column) if each is not None]
            if target.view.typed and not set(target.view.schema.names).issuperset(columns):
                target = self._target_with(topic, columns=columns)
            ways = ways_of(batch, usual, priority_column, deliver_at_column, target.view.schema.names)
        return self._publish_table(topic, batch.num_rows, ways, partition, key_column, uuid)

    def _publish_table(self, topic: str, count: int, *rows: Any) -> TableFuture:
        def send() -> TableFuture:
            outcome = TableOutcome(topic, count)
            try:
                self._send_table(topic, outcome.piece, *rows)
            finally:
                outcome.complete()
            return outcome.future

        return send() if self._tracing is None else self._tracing.send(topic, count, send)

    def _send_table(
        self,
        topic: str,
        outcome_of_piece: Callable[[], Outcome],
        ways: Sequence[tuple[Shipment, pa.RecordBatch | pa.Table]],
        partition: int | None,
        key_column: str | None,
        uuid: uuids.UUID | bytes | str | None,
        keys: pa.Array | None = None,
    ) -> None:
        """Rows, by how they are to be sent. `keys`: of rows that have no column for them."""
        own = None if uuid is None else uuid_bytes(uuid)
        target = self._targets.get(topic) or self._target(topic)
        names = ways[0][1].schema.names
        if target.view.typed and not set(target.view.schema.names).issuperset(names):
            target = self._target_with(topic, columns=names)
        if partition is not None:
            target, _ = self._choose(target, None, partition)
        pieces = pieces_of_ways(target, ways, self._choice, self._turn, partition, key_column, own, keys)
        for at, (shipment, chosen, piece) in enumerate(pieces):
            its = None if own is None else piece_uuid(own, at, len(pieces), piece.num_rows)
            with self._lock:
                self._make_room(piece.nbytes)
                outcome, now = outcome_of_piece(), time.monotonic()
                self._accumulator.add_closed(
                    target.view,
                    chosen,
                    piece,
                    outcome,
                    now,
                    uuid=its,
                    due=shipment.due,
                    attributes=shipment.attributes,
                )
                self._sender.work.notify()

    def cancel(
        self, topic: str, partition: int, uuid: uuids.UUID | bytes | str, timeout_ms: float | None = None
    ) -> Cancellation:
        """Take back what was scheduled in that partition under this UUID (the `uuid` given to `publish`, or to
        `publish_batch` for a table that is one batch).

        What is published already stays, and the answer tells its offset. A UUID that was cancelled is not published any
        more, also if it is sent again. Raises `UnknownTopic`, `UnknownPartition`, `PartitionUnavailable`.
        """
        deadline = Deadline(self._timeout_ms if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))
        check_topic_name(topic)
        return cancel(self._connection, topic, partition, uuid_bytes(uuid), deadline)

    # ------------------------------------------------------------------ the end

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until everything published so far has its answer.

        Raises the first error of a record or table whose future nobody has looked at, so that no loss goes unseen;
        `OutcomeUnknown` if answers are still missing after `timeout_ms` (default: as long as they can take).
        """
        self._sender.flush(
            Deadline(self._timeout_ms + 1_000 if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))
        )
        self._sender.raise_failures()

    def close(self, timeout_ms: float | None = None) -> None:
        """Flush, then end threads and streams. Raises as `flush` does, once all is closed. A second call does
        nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = Deadline(self._timeout_ms + 1_000 if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))
        try:
            self._sender.flush(deadline)
        finally:
            self._sender.stop(deadline)
        self._sender.raise_failures()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TritonMQError:
            if error is None:  # else the block's own error is the one to see
                raise

    # ------------------------------------------------------------------ private

    def _target(self, topic: str) -> Target:
        """The topic, asked for when it is first written to."""
        check_topic_name(topic)
        view = self._connection.topic(topic, Deadline(self._timeout_ms), self._metadata_age_s_max, auto_create=True)
        return self._target_of(view)

    def _target_with(self, topic: str, partition: int = 0, columns: Collection[str] = ()) -> Target:
        """The topic with a partition and columns that it has not had so far as is known here: asked for before that is
        an error."""
        view = topic_with(self._connection, topic, [partition], Deadline(self._timeout_ms), columns=columns)
        return self._target_of(view)

    def _target_of(self, view: TopicView) -> Target:
        """The target that is made as the view is, or as what was heard of later."""
        with self._lock:
            view = self._connection.known_topic(view.name) or view
            found = self._targets.get(view.name)
            if found is not None and found.view is not view and not found.view.is_made_as(view):
                self._forget(view.name)
                found = None
            if found is None:
                found = self._targets[view.name] = self._accumulator.add_target(view)
            return found

    def _forget(self, topic: str) -> None:
        """Under the sender's lock: the topic is not what it was (made anew, perhaps): the next record asks for it
        again."""
        target = self._targets.pop(topic, None)
        if target is not None:
            self._accumulator.drop_target(target)

    def _turn(self, target: Target) -> int:
        with self._lock:
            return self._accumulator.turn(target)

    def _make_room(self, size: int) -> None:
        """Under the sender's lock: wait until `size` more bytes fit. Raises `Overloaded` after `publish_ms_max`."""
        if self._closed:
            raise InvalidRequest("producer is closed: make a new one")
        self._sender.ensure_started()
        if self._accumulator.pending_bytes + size > self._buffer_bytes_max:
            self._sender.wait_for_room(size, self._buffer_bytes_max, Deadline(self._publish_ms_max))
            self._make_room(0)  # closed meanwhile, or the thread failed: nobody would send what is added now


def _way(priority: int, ttl_ms: float | None, deliver_at: int | datetime | None, delay_ms: float | None) -> Shipment:
    """Raises `InvalidSetting`. What is usual is made once, as records are published by the million."""
    if type(priority) is int and priority == limits.PRIORITY_USUAL and ttl_ms is deliver_at is delay_ms is None:
        return _USUAL_WAY
    return Shipment(attributes_of(priority, ttl_ms), due_of(deliver_at, delay_ms))


def _close_at_exit(reference: weakref.ref[Producer]) -> None:
    producer = reference()
    if producer is not None:
        producer.close()
