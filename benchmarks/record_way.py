"""Where a record's time goes on its way from `publish` to a consumer: each hop's milliseconds.

    python -m benchmarks.record_way [--rate 1000] [--seconds 5] [--linger 0] [--durability os] [--brokers 3] [--tls]

A producer and a consumer in processes of their own, records of 100 bytes in 6 partitions, a replica at each broker.
Every process notes when it came to a step, by the monotonic clock, which all processes of a machine share; a note costs
about a microsecond. Medians over all records; of the two followers the one counts that acknowledged last. A loop's
`woke` is when its `select` returned, so what comes before that is the kernel's and the interpreter lock's, and what
comes after it is work. Processor time and wake-ups are those of all threads while records came.
"""

# ruff: noqa: SLF001 - it looks inside, and nothing else does

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import selectors
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from benchmarks.bench.measure import Schedule, paced, percentile
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import PARTITIONS

DIRECTORY: Final = "TRITONMQ_RECORD_WAY"
"""Names the directory into which each process writes what it noted."""

RECORD_BYTES: Final = 100
NUMBER_BYTES: Final = 8
WARMING: Final = 600
LEAD_S: Final = 0.05
HEAR_S: Final = 120.0

# ---------------------------------------------------------------------- notes, in each process

_rows: list[tuple[str, str, int | str, int, int]] = []
_uuids: list[tuple[str, int, str]] = []
_offsets: list[tuple[str, int, int, int]] = []
_woke: dict[int, int] = {}  # by thread: when its loop's select returned last
_clock = time.monotonic_ns


def note(step: str, place: str, number: int | str, woke: int | None = None) -> None:
    _rows.append((step, place, number, _clock(), _woke.get(threading.get_ident(), 0) if woke is None else woke))


def noted_in(role: str) -> None:
    """Write the notes when this process ends, if there is somebody who reads them."""
    directory = os.environ[DIRECTORY]

    def write() -> None:
        found = {"rows": _rows, "uuids": _uuids, "offsets": _offsets}
        (Path(directory) / f"{role}.json").write_text(json.dumps(found))

    atexit.register(write)
    select = selectors.EpollSelector.select

    def noting(self: selectors.EpollSelector, timeout: float | None = None) -> Any:
        events = select(self, timeout)
        _woke[threading.get_ident()] = _clock()
        return events

    selectors.EpollSelector.select = noting  # type: ignore[method-assign]


def around(
    owner: type,
    name: str,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Have `before` called with what the method is called with, and `after` with its result before that."""
    method = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        if before is not None:
            before(*given)
        result = method(*given, **named)
        if after is not None:
            after(result, *given)
        return result

    setattr(owner, name, called)


def after_sending(owner: type, name: str, note_sent: Callable[[Any], None]) -> None:
    """Of a method that is given `send`: have `note_sent` called with each message once it is sent."""
    method = getattr(owner, name)

    async def called(self: Any, requests: Any, send: Callable[[Any], Any]) -> None:
        async def sending(message: Any) -> None:
            await send(message)
            note_sent(message)

        await method(self, requests, sending)

    setattr(owner, name, called)


# ---------------------------------------------------------------------- what is noted in a broker


def note_clients() -> None:
    """What a broker hears of clients, and says to them."""
    from mq_broker.broker.data import produce
    from mq_broker.broker.groups.subscriptions import Delivery
    from mq_broker.broker.host.partition import Partition
    from mq_broker.core.messages import Published
    from mq_broker.rpc.wire.streams import StreamWire

    heard = 0

    def begins(wire: Any, method: Any) -> None:
        wire.is_produce = method.name == "Produce"

    def updated(wire: Any, _nbytes: int) -> None:
        nonlocal heard
        if getattr(wire, "is_produce", False):
            heard = _woke.get(threading.get_ident(), 0)

    def committed(_result: None, partition: Any, effect: Any) -> None:
        if isinstance(effect, Published):
            place = f"{partition._place.topic_id}/{partition.number}"
            note("committed", place, effect.index)
            _offsets.append((place, effect.index, effect.base_offset, effect.record_count))

    around(StreamWire, "begin", before=begins)
    around(StreamWire, "buffer_updated", before=updated)
    around(produce._Stream, "_take", before=lambda _, request: note("read", "", request.header.uuid.hex(), heard))
    around(produce._Stream, "_propose", before=lambda _, batch: note("proposed", "", batch.header.uuid.hex()))
    around(Partition, "_index", after=committed)
    after_sending(
        produce.Producing,
        "produce",
        lambda message: [note("answered", "", str(result.correlation)) for result in message.results],  # type: ignore[arg-type, return-value]
    )
    after_sending(
        Delivery,
        "subscribe",
        lambda message: [note("pushed", str(each.partition), each.base_offset) for each in message.header.batches],  # type: ignore[arg-type, return-value]
    )


def note_replication() -> None:
    """What goes to a journal's file, and to other brokers."""
    from mq_broker.broker.host.peer_messages import PeerMessages
    from mq_broker.rpc.wire.framed import FramedWire
    from mq_broker.rpc.wire.links import Links
    from mq_broker.storage.journal.journal import DiskJournal
    from mq_broker.storage.journal.segments import Append, LogFiles

    to = 0

    def place_of(message: Any) -> str:
        return f"{message.topic_id}/{message.partition}"

    def appended(journal: Any, frames: Iterable[Any]) -> None:
        place = f"{journal._place.topic_id}/{journal._place.partition}"
        for frame in frames:
            note("appended", place, frame.entry.index)
            _uuids.append((place, frame.entry.index, frame.entry.uuid.hex()))

    def at_disk(step: str, log: Any, orders: Iterable[Any]) -> None:
        place = f"{log._place.topic_id}/{log._place.partition}"
        for order in orders:
            if isinstance(order, Append):
                note(step, place, order.frames[-1].entry.index)

    def settled(journal: Any, outcome: Any) -> None:
        note("told", f"{journal._place.topic_id}/{journal._place.partition}", outcome.flushed)

    def goes_to(_links: Any, peer: Any) -> None:
        nonlocal to
        to = peer.broker

    def written(_result: None, _wire: Any, message: Any) -> None:
        for append in message.header.append:
            note(f"to {to}", place_of(append), append.prev_index + len(append.frame_bytes))
        for ack in message.header.ack:
            note("acknowledged", place_of(ack), ack.acknowledged_index)

    def hear_entries(_peers: Any, message: Any, views: list[Any]) -> None:
        note("heard", place_of(message), message.prev_index + len(views))

    def hear_ack(_peers: Any, message: Any) -> None:
        note(f"of {message.follower}", place_of(message), message.acknowledged_index)

    around(DiskJournal, "append", before=appended)
    around(LogFiles, "carry_out", before=lambda log, orders: at_disk("disk begins", log, orders))
    around(LogFiles, "carry_out", after=lambda _, log, orders: at_disk("disk ends", log, orders))
    around(DiskJournal, "settle", before=settled)
    around(Links, "_next_message", before=goes_to)
    around(FramedWire, "write", after=written)
    around(PeerMessages, "hear_entries", before=hear_entries)
    around(PeerMessages, "hear_ack", before=hear_ack)


def run_broker(arguments: list[str]) -> None:
    noted_in(f"broker-{arguments[arguments.index('--id') + 1]}")
    note_clients()
    note_replication()
    from mq_cli.main import main

    main(arguments)


# ---------------------------------------------------------------------- the two clients


def produce(
    pipe: Connection, bootstrap: str, security: Any, topic: str, linger: float, rate: float, count: int
) -> None:
    """In a child: `WARMING` records, then, once told, `count` of them; tells when each was due, and where it is."""
    from mq_client import Producer
    from mq_client.producing.accumulator import Accumulator
    from mq_client.producing.sender import ProduceStream, Sender

    def taken(result: Any, *_given: Any) -> None:
        if result is not None:
            note("taken", str(result[1]), result[0].uuid.hex())

    def results(*given: Any) -> None:
        for result in given[-1]:
            note("heard", "", str(result.correlation))

    noted_in("producer")
    around(Accumulator, "take", after=taken)
    around(ProduceStream, "send", before=lambda _, request: note("encoded", "", request.header.uuid.hex()))
    around(ProduceStream, "send", after=lambda _r, _, request: note("written", "", request.header.uuid.hex()))
    around(Sender, "_on_results", before=results)
    padding = bytes(RECORD_BYTES - NUMBER_BYTES)
    with Producer(bootstrap, linger_ms=linger, security=security) as producer:
        for number in range(WARMING):
            producer.publish(topic, bytes(RECORD_BYTES), partition=number % PARTITIONS).result(HEAR_S)
        pipe.send("warm")
        pipe.recv()
        called: list[int] = []
        futures = []
        for number, _ in enumerate(paced(Schedule(time.time_ns() + round(LEAD_S * 1e9), rate, count))):
            called.append(_clock())
            futures.append(producer.publish(topic, number.to_bytes(NUMBER_BYTES, "little") + padding))
        producer.flush()
        found = [future.result(HEAR_S) for future in futures]
    pipe.send([(at, each.partition, each.offset) for at, each in zip(called, found, strict=True)])


def consume(pipe: Connection, bootstrap: str, security: Any, topic: str, count: int) -> None:
    """In a child: `WARMING` records, then `count`; tells when it had each in hand."""
    from mq_client import Consumer
    from mq_client.consuming.subscription import Session, Subscriptions

    def heard(_session: Any, message: Any) -> None:
        for each in message.header.batches:
            note("heard", str(each.partition), each.base_offset)

    def put(_result: None, _subscriptions: Any, _session: Any, header: Any, _payloads: Any) -> None:
        for each in header.batches:
            note("put", str(each.partition), each.base_offset)

    noted_in("consumer")
    around(Session, "_heard", before=heard)
    around(Subscriptions, "pushed", after=put)
    in_hand = [0] * count
    with Consumer(bootstrap, start="earliest", security=security) as consumer:
        consumer.subscribe(topic)
        arrivals = iter(consumer)
        for _ in range(WARMING):
            next(arrivals)
        pipe.send("warm")
        for _ in range(count):
            value = next(arrivals).value
            in_hand[int.from_bytes(value[:NUMBER_BYTES], "little")] = _clock()
        pipe.send(in_hand)


# ---------------------------------------------------------------------- what came of it


class Notes:
    """What one process noted. A number that grows is found by the first note that is not below it."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self._at: dict[tuple[str, str], tuple[list[int], list[tuple[int, int]]]] = {}
        self._named: dict[tuple[str, str], tuple[int, int]] = {}
        self.correlations: dict[str, str] = {}
        for step, place, number, at, woke in found["rows"]:
            if isinstance(number, str):
                self._named.setdefault((step, number), (at, woke))
                if step == "taken":
                    self.correlations[number] = place
                continue
            numbers, times = self._at.setdefault((step, place), ([], []))
            if not numbers or number > numbers[-1]:
                numbers.append(number)
                times.append((at, woke))
        self.uuids = {(place, index): uuid for place, index, uuid in found["uuids"]}
        self.batches: dict[str, list[tuple[int, int, int]]] = {}
        for place, index, base_offset, records in found["offsets"]:
            self.batches.setdefault(place, []).append((base_offset, index, records))

    def at(self, step: str, place: str, number: int) -> tuple[int, int]:
        """When it came to that step, and when its loop had woken before. Raises `LookupError` if it did not."""
        numbers, times = self._at[step, place]
        return times[bisect_left(numbers, number)]

    def has(self, step: str, name: str) -> bool:
        return (step, name) in self._named

    def named(self, step: str, name: str) -> tuple[int, int]:
        return self._named[step, name]


WAY: Final = {
    "taken": "client: the sending thread takes its batch",
    "encoded": "client: the batch is encoded",
    "written": "client: written to the socket",
    "leader woke": "leader: its loop wakes",
    "read": "leader: the stream's task has the batch",
    "proposed": "leader: checked, given to the core",
    "appended": "leader: given to the journal",
    "linked": "leader: written to the follower's link",
    "follower woke": "follower: its loop wakes",
    "follower appended": "follower: given to the journal",
    "disk begins": "follower: its writer begins",
    "disk ends": "follower: written",
    "told": "follower: its loop knows",
    "acknowledged": "follower: acknowledgement written",
    "ack woke": "leader: its loop wakes",
    "committed": "leader: committed",
    "pushed": "leader: the push is written",
    "consumer woke": "consumer: the loop of pushes wakes",
    "put": "consumer: in the queue, the application's thread is woken",
    "in hand": "application: it has the record",
}
"""What each step is, in their order."""

BESIDE: Final = {
    "own disk begins": "leader: its own writer begins",
    "own disk ends": "leader: written",
    "own told": "leader: its loop knows",
    "answered": "leader: the answer is written",
    "answer heard": "client: its thread has the answer",
}
"""What goes on at the same time: milliseconds after `publish`."""


class Record(NamedTuple):
    called: int
    partition: int
    offset: int
    in_hand: int


def way_of(
    record: Record, topic_id: str, brokers: dict[int, Notes], producer: Notes, consumer: Notes
) -> dict[str, int]:
    """When it came to each step. Raises `LookupError` if something was not noted: it went another way."""
    place = f"{topic_id}/{record.partition}"
    knowing = max(brokers.values(), key=lambda each: len(each.batches.get(place, ())))
    batches = knowing.batches[place]
    base, index, _ = batches[bisect_right(batches, record.offset, key=lambda batch: batch[0]) - 1]
    uuid = knowing.uuids[place, index]
    leader_id, leader = next(each for each in brokers.items() if each[1].has("read", uuid))
    followers = [each for each in brokers if each != leader_id]
    last = max(followers, key=lambda each: leader.at(f"of {each}", place, index)[0], default=0)
    follower = brokers.get(last, leader)
    found = {"taken": producer.named("taken", uuid)[0], "encoded": producer.named("encoded", uuid)[0]}
    found["written"] = producer.named("written", uuid)[0]
    found["read"], found["leader woke"] = leader.named("read", uuid)
    found["proposed"] = leader.named("proposed", uuid)[0]
    found["appended"] = leader.at("appended", place, index)[0]
    for step in ("disk begins", "disk ends", "told"):
        found[f"own {step}"] = leader.at(step, place, index)[0]
    if followers:
        found["linked"] = leader.at(f"to {last}", place, index)[0]
        found["follower woke"] = follower.at("heard", place, index)[1]
        found["follower appended"] = follower.at("appended", place, index)[0]
        for step in ("disk begins", "disk ends", "told", "acknowledged"):
            found[step] = follower.at(step, place, index)[0]
        found["ack woke"] = leader.at(f"of {last}", place, index)[1]
    found["committed"] = leader.at("committed", place, index)[0]
    number = str(record.partition)
    found["pushed"] = leader.at("pushed", number, base)[0]
    found["consumer woke"] = consumer.at("heard", number, base)[1]
    found["put"] = consumer.at("put", number, base)[0]
    found["in hand"] = record.in_hand
    correlation = producer.correlations[uuid]
    found["answered"] = leader.named("answered", correlation)[0]
    found["answer heard"] = producer.named("heard", correlation)[0]
    return found


def table(ways: list[tuple[int, dict[str, int]]]) -> str:
    """Markdown. A record that shares a batch waits for it: that is in the first hop."""
    lines = ["| step | ms of this hop | ms after `publish` |", "|---|---:|---:|"]
    before: str | None = None
    for step, meaning in WAY.items():
        if step not in ways[0][1]:
            continue
        hop = statistics.median((way[step] - (called if before is None else way[before])) / 1e6 for called, way in ways)
        after = statistics.median((way[step] - called) / 1e6 for called, way in ways)
        lines.append(f"| {meaning} | {hop:.3f} | {after:.2f} |")
        before = step
    lines.append("| *at the same time* | | |")
    for step, meaning in BESIDE.items():
        lines.append(f"| {meaning} | | {statistics.median((way[step] - called) / 1e6 for called, way in ways):.2f} |")
    return "\n".join(lines)


class Spent(NamedTuple):
    """Of a process so far: seconds of its first thread, of the others, and how often each thread has waited."""

    first: float
    others: float
    waits: dict[str, int]


def spent(process: psutil.Process) -> Spent:
    waits = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    waits[task.name] = int(line.split()[1])
    first = next(each.user_time + each.system_time for each in process.threads() if each.id == process.pid)
    return Spent(first, sum(process.cpu_times()[:2]) - first, waits)


def costs(names: list[str], before: list[Spent], after: list[Spent], count: int) -> str:
    lines = [
        "| process | first thread, µs a record | other threads, µs | waits a record |",
        "|---|---:|---:|---:|",
    ]
    for name, early, late in zip(names, before, after, strict=True):
        first, others = ((b - a) * 1e6 / count for a, b in zip(early[:2], late[:2], strict=True))
        waits = sum(times - early.waits.get(task, 0) for task, times in late.waits.items()) / count
        lines.append(f"| {name} | {first:.0f} | {others:.0f} | {waits:.2f} |")
    return "\n".join(lines)


def measure(given: argparse.Namespace, directory: Path) -> None:
    from mq_client import Admin
    from mq_dev.certificates import make_missing
    from mq_dev.local_cluster import HOST, LocalCluster

    os.environ[DIRECTORY] = str(directory)
    count, certs = round(given.rate * given.seconds), directory / "certs" if given.tls else None
    if certs is not None:
        make_missing(certs, HOST, range(1, given.brokers + 1))
    cluster = LocalCluster(directory / "cluster", given.brokers, certs=certs)
    for broker in cluster.brokers.values():
        broker.module = "benchmarks.record_way"
    with ExitStack() as opened:
        opened.enter_context(cluster)
        with Admin(cluster.bootstrap, security=cluster.security) as admin:
            admin.create_topic("way", partitions=PARTITIONS, replicas=given.brokers, durability=given.durability)
            topic_id = admin.describe_topic("way").topic_id
        to = cluster.bootstrap, cluster.security, "way"
        consuming = opened.enter_context(Helper(consume, *to, count))
        producing = opened.enter_context(Helper(produce, *to, given.linger, given.rate, count))
        for helper in (producing, consuming):
            helper.hear(HEAR_S)
        names = [f"broker {number}" for number in cluster.brokers] + ["producer", "consumer"]
        pids = [broker.pid for broker in cluster.brokers.values()] + [
            each._process.pid for each in (producing, consuming)
        ]
        processes = [psutil.Process(pid) for pid in pids]
        before = [spent(process) for process in processes]
        producing.say("go")
        in_hand = consuming.hear(HEAR_S)
        after = [spent(process) for process in processes]
        produced = producing.hear(HEAR_S)
    notes = {number: Notes(directory / f"broker-{number}.json") for number in cluster.brokers}
    clients = Notes(directory / "producer.json"), Notes(directory / "consumer.json")
    records = [Record(*each, at) for each, at in zip(produced, in_hand, strict=True)]
    ways = []
    for record in records:
        try:
            ways.append((record.called, way_of(record, topic_id, notes, *clients)))
        except (LookupError, StopIteration):  # it went another way, as by gRPC
            continue
    late = [(record.in_hand - record.called) / 1e6 for record in records]
    batches = len({way["written"] for _, way in ways})
    print(f"\n{len(ways)} of {count} records, {batches} batches; load {os.getloadavg()[0]:.1f}; ", end="")
    print(f"p50 {percentile(late, 50.0):.2f} ms, p99 {percentile(late, 99.0):.2f} ms\n")
    print(f"{table(ways)}\n\n{costs(names, before, after, count)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["broker"]:
        run_broker(sys.argv[1:])
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--durability", default="os")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        measure(arguments, Path(made))
