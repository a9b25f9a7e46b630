"""One run: a cluster, clients, faults for so many minutes, then peace, a last reading of everything, and a verdict."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from mq_client import Consumer, Reader, TritonMQError
from mq_client.cluster.lines import FetchCall
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch
from mq_protocol.limits import SEGMENT_BYTES_FLOOR
from mq_protocol.wire.envelope import split
from mq_protocol.wire.error_messages import from_wire
from tests import switch
from tests.chaos.checkpoint import micro_batches
from tests.chaos.client import GROUP, deliver
from tests.chaos.clients import ClientProcess, finish_all
from tests.chaos.cluster import FireCluster
from tests.chaos.jobs import JOBS, declare, tell_what_was_made, wait_until_worked_off
from tests.chaos.nemesis import NEMESES, Applied, Ground, apply
from tests.cluster.harness import wait_until
from tests.history.checker import Verdict, judge
from tests.history.recording import Recorder, merge, read

Piece: TypeAlias = tuple[int, pa.RecordBatch]

WHOLE_S: Final = 120.0
"""Until everything is led and in sync after faults have ended. Seconds on a machine that has nothing else to do."""

NO_ZOOKEEPER: Final = re.compile("no answer from ZooKeeper|no ZooKeeper answers")

SPARK_FINISH_S: Final = 300.0
"""A driver that was just started again needs half a minute before it does anything, and the last copying two at
most."""

LISTEN_AGAIN_MS: Final = 2_000
REPLICAS: Final = 3
TRANSACTIONS: Final = "tx"
SHORT: Final = "short"
"""The topic of which only the newest records are kept, so that readers are overtaken by retention."""

RECORD_BYTES_MAX: Final = 2_048
"""What one record takes at most when it is a batch of its own: by it retention by size is judged in records."""

SPARK_SOURCE: Final = "in"
SPARK_SINK: Final = "out"
TWO_AT_ONCE: Final = 0.25
WAIT_UNTIL_WHOLE: Final = 0.6


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is. `topics` and `partitions`: of records; of one more, `retention_bytes` of each partition only; one
    is for transactions."""

    directory: Path
    seed: int
    durability: str = "fsync"
    seconds: float = 60.0
    brokers: int = 3
    topics: int = 2
    partitions: int = 3
    rate: float = 20.0
    session_ms: int = 2_000
    nemeses: tuple[str, ...] = tuple(NEMESES)
    producers: int = 2
    members: int = 2
    workers: int = 2
    spark: bool = False
    encrypt: bool = False
    http: bool = False
    retention_bytes: int = 4_000


@dataclass(slots=True)
class Outcome:
    """What came of a run. `problems`: what did not come back, end or catch up in its time; no anomaly, and as bad."""

    settings: Settings
    history: Path
    verdict: Verdict = field(default_factory=Verdict)
    applied: list[Applied] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    records: int = 0
    readable: int = 0
    """Files of brokers in which a record can be read, at the end."""
    ended: int = 0
    """How often a broker ended by itself, because ZooKeeper did not answer while it started."""
    left_out: list[str] = field(default_factory=list)
    elastic: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return self.verdict.clean and not self.problems


class Run:
    """Owns one run's cluster and clients. `go` once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        names = [*(chr(ord("a") + at) for at in range(settings.topics)), SHORT]
        self.topics = dict.fromkeys(names, settings.partitions)
        self.all_topics = {**self.topics, TRANSACTIONS: settings.partitions, JOBS: settings.partitions}
        if settings.spark:
            self.all_topics |= {SPARK_SOURCE: settings.partitions, SPARK_SINK: settings.partitions}
        self.chance = random.Random(settings.seed)
        self.outcome = Outcome(settings, settings.directory / "history.jsonl")
        self._clients: list[ClientProcess] = []
        self._parts = settings.directory / "clients"
        self._checkpoint = settings.directory / "checkpoint"

    def go(self) -> Outcome:
        s = self.settings
        self._parts.mkdir(parents=True)
        disks = any(NEMESES[name].needs_disks for name in s.nemeses)
        cluster = FireCluster(
            s.directory / "cluster",
            s.brokers,
            session_ms=s.session_ms,
            disks=disks,
            encrypt=s.encrypt,
            http=s.http,
        )
        recorder = Recorder(self._parts / "nemesis.jsonl", "nemesis")
        try:
            cluster.start()
            self._create_topics(cluster, recorder)
            self._start_clients(cluster.bootstrap)
            ground = Ground(
                cluster,
                self._clients,
                self.topics,
                self.chance,
                survivors=s.durability == "memory",
                problems=self.outcome.problems,
                everything=list(self.all_topics),
                replicas=REPLICAS,
                elastic=self.outcome.elastic,
            )
            self._storm(ground, recorder)
            self._peace(cluster, recorder)
        finally:
            for client in self._clients:
                client.kill()
            cluster.stop()
            recorder.close()
        merge(sorted(self._parts.glob("*.jsonl*")), self.outcome.history)
        self.outcome.verdict = judge(read(self.outcome.history))
        return self.outcome

    def _create_topics(self, cluster: FireCluster, recorder: Recorder) -> None:
        s, admin = self.settings, cluster.admin
        for topic, partitions in self.all_topics.items():
            short = (
                {"retention_bytes": s.retention_bytes, "segment_bytes_max": SEGMENT_BYTES_FLOOR}
                if topic == SHORT
                else {}
            )
            admin.create_topic(topic, partitions=partitions, replicas=REPLICAS, durability=s.durability, **short)
        declare(cluster, s.partitions, REPLICAS, s.durability)
        recorder.write("retention", topic=SHORT, records=s.retention_bytes // RECORD_BYTES_MAX)

    def _start_clients(self, bootstrap: str) -> None:
        s = self.settings
        written = {**self.topics, SPARK_SOURCE: s.partitions} if s.spark else self.topics
        roles = [("producer", f"p{at}", written) for at in range(s.producers)]
        roles += [("reader", "r0", self.all_topics), ("transactor", "s0", {TRANSACTIONS: s.partitions})]
        roles += [("member", f"m{at}", self.topics) for at in range(s.members)]
        roles += [("producer", "j0", {JOBS: s.partitions})]
        roles += [("worker", f"w{at}", {JOBS: s.partitions}) for at in range(s.workers)]
        for role, name, topics in roles:
            self._start(role, name, partial(self._arguments, role, name, bootstrap, topics))
        if s.spark:
            command = ["tests.chaos.spark_job", "--bootstrap", bootstrap, "--state", str(self._checkpoint)]
            command += ["--source", SPARK_SOURCE, "--sink", SPARK_SINK]
            self._start("spark", "spark", lambda _life: command)

    def _start(self, role: str, name: str, arguments: Callable[[str], list[str]]) -> None:
        client = ClientProcess(role, name, self._parts / f"{name}.log", arguments)
        self._clients.append(client)
        client.start()

    def _arguments(self, role: str, name: str, bootstrap: str, topics: dict[str, int], life: str) -> list[str]:
        arguments = [
            "tests.chaos.client",
            role,
            "--name",
            life,
            "--bootstrap",
            bootstrap,
            "--rate",
            str(self.settings.rate),
        ]
        arguments += ["--topics", ",".join(f"{topic}:{count}" for topic, count in topics.items())]
        return [
            *arguments,
            "--state",
            str(self._parts / f"{name}.state"),
            "--history",
            str(self._parts / f"{life}.jsonl"),
        ]

    def _of(self, *roles: str) -> list[ClientProcess]:
        return [client for client in self._clients if client.role in roles]

    # ------------------------------------------------------------------ faults

    def _storm(self, ground: Ground, recorder: Recorder) -> None:
        kinds = self._kinds(ground)
        wait_until(lambda: any(self._parts.glob("p0.1*.jsonlp")), "a producer at work")
        end = time.monotonic() + self.settings.seconds
        while time.monotonic() < end:
            names = [self.chance.choice(kinds)]
            other = self.chance.choice(kinds)
            forgets = ground.survivors and any(NEMESES[name].forgets for name in (names[0], other))
            alone = any(NEMESES[name].alone for name in (names[0], other))
            if self.chance.random() < TWO_AT_ONCE and not forgets and not alone:
                names.append(other)
            elif (forgets or alone) and not self._whole(
                ground.cluster
            ):  # else the last who remembers might be the one to be killed
                return
            self._hear(ground.cluster.supervise())
            for fault in apply(ground, names, self.settings.session_ms / 1000):
                self.outcome.applied.append(fault)
                recorder.write(
                    "note", what=fault.what, kind=fault.kind, whom=fault.whom, began=fault.began, healed=fault.healed
                )
            pause_s = self.chance.uniform(0.0, self.settings.session_ms / 1000)
            if (self.chance.random() < WAIT_UNTIL_WHOLE or alone) and not self._whole(ground.cluster):
                return
            time.sleep(pause_s)  # how far apart faults are, which the seed says: nothing is waited for

    def _kinds(self, ground: Ground) -> list[str]:
        roles = {client.role for client in self._clients}
        kinds = []
        for name in self.settings.nemeses:
            nemesis = NEMESES[name]
            lacks_disks = nemesis.needs_disks and not ground.cluster.disks
            lacks_keys = nemesis.needs_keys and not self.settings.encrypt
            lacks_role = nemesis.needs != "" and nemesis.needs not in roles
            if lacks_disks or lacks_keys or lacks_role or len(ground.cluster.ids) < nemesis.brokers:
                self.outcome.left_out.append(name)
            else:
                kinds.append(name)
        return kinds

    def _whole(self, cluster: FireCluster) -> bool:
        try:
            self._hear(cluster.wait_until_whole(list(self.all_topics), WHOLE_S))
        except AssertionError as error:
            self.outcome.problems.append(str(error))
            return False
        return True

    def _hear(self, said: list[str]) -> None:
        """A broker may end by itself if ZooKeeper does not answer while it starts: it says so, and is started again."""
        self.outcome.ended += len(said)
        self.outcome.problems += [words for words in said if not NO_ZOOKEEPER.search(words)]

    # ------------------------------------------------------------------ peace

    def _peace(self, cluster: FireCluster, recorder: Recorder) -> None:
        """Heal, let everybody finish, and read all of it: from leaders, from every replica, and through the group once
        more."""
        cluster.heal()
        if not self._whole(cluster):
            return
        problems = self.outcome.problems
        decided = self._decided()
        try:
            wait_until(lambda: self._decided() > decided, "a transaction is decided once all is whole", WHOLE_S)
        except AssertionError as error:
            problems.append(str(error))
        problems += finish_all(self._of("producer", "transactor"))
        problems += finish_all(self._of("spark"), SPARK_FINISH_S)
        problems += finish_all(self._of("reader"))
        try:
            wait_until(
                lambda: _caught_up(cluster, self.topics), f"the group {GROUP} is at the end of everything", WHOLE_S
            )
            for topic in self.topics:
                recorder.write("drained", group=GROUP, topic=topic)
        except AssertionError as error:
            problems.append(str(error))
        try:
            wait_until_worked_off(cluster, recorder)
        except AssertionError as error:
            problems.append(str(error))
        problems += finish_all(self._of("member", "worker"))
        readable = cluster.readable()
        self.outcome.readable = len(readable)
        if self.settings.encrypt:
            problems += [f"a record can be read in {path}" for path in readable]
        with Recorder(self._parts / "final.jsonl", "final") as final:
            last: list[Callable[[], None]] = [
                partial(self._read_all, cluster, topic, final) for topic in self.all_topics
            ]
            last += [partial(self._tell_what_spark_wrote, cluster, final)] if self.settings.spark else []
            last += [partial(tell_what_was_made, cluster, final), partial(self._listen_again, cluster, final)]
            for reading in last:
                try:
                    reading()
                except (TritonMQError, AssertionError) as error:
                    problems.append(f"the last reading: {error}")

    def _decided(self) -> int:
        """How many transactions were, so far."""
        histories = self._parts.glob("s0.*.jsonl")
        return sum(path.read_text().count('"op":"txn","state":"ok"') for path in histories)

    def _read_all(self, cluster: FireCluster, topic: str, final: Recorder) -> None:
        reader = Reader(cluster.bootstrap)
        described = cluster.admin.describe_topic(topic)

        def kept(partition: int) -> tuple[int, int, list[Piece]]:
            start, end = cluster.admin.offsets(topic)[partition]
            return start, end, [(p.base_offset, p.batch) for p in reader.read_stored(topic, partition, start, end)]

        for partition in range(self.all_topics[topic]):
            # Retention may take some more while this is read: then it is read again, from where the log starts by then.
            start, end, stored = wait_until(partial(kept, partition), f"{topic}-{partition} can be read", WHOLE_S)
            self.outcome.records += end - start
            _write_final(final, topic, partition, start, end, stored)
            for replica in described.partitions[partition].replicas if end > start else ():
                fetch = partial(
                    _fetch, cluster.brokers[replica].address, topic, described.schema, partition, start, end
                )
                # As a list: a replica that does not know of the end yet is asked again from the start.
                pieces = wait_until(
                    lambda fetch=fetch: list(fetch()), f"broker {replica} has {topic}-{partition} up to {end}"
                )  # type: ignore[misc]
                _write_final(final, topic, partition, start, end, pieces, replica=replica)

    def _tell_what_spark_wrote(self, cluster: FireCluster, final: Recorder) -> None:
        """Each micro-batch as a transaction: its values are the source's at the offsets that Spark wrote down for
        it."""
        reader, done = Reader(cluster.bootstrap), dict.fromkeys(range(self.settings.partitions), 0)
        for planned in micro_batches(self._checkpoint, SPARK_SOURCE):
            values = [
                value.decode()
                for partition, end in planned.end.items()
                for batch in reader.read(SPARK_SOURCE, partition, planned.start[partition], end)
                for value in batch.column("value").to_pylist()
            ]
            name = f"spark/{planned.number}"
            final.write("txn", state="invoke", id=name, topic=SPARK_SINK, values=values)
            if planned.committed:
                final.write("txn", state="ok", id=name)
                done = planned.end
        ends = {partition: end for partition, (_, end) in cluster.admin.offsets(SPARK_SOURCE).items()}
        if done != ends:
            self.outcome.problems.append(f"Spark has copied {SPARK_SOURCE} up to {done}, and it ends at {ends}")

    def _listen_again(self, cluster: FireCluster, final: Recorder) -> None:
        """A new member of the group, when all is settled: it must be given nothing."""
        for cursor in cluster.admin.describe_group(GROUP).cursors:
            final.write("settle", group=GROUP, topic=cursor.topic, partition=cursor.partition, offset=cursor.offset)
        with Consumer(cluster.bootstrap, group=GROUP, idle_ms=LISTEN_AGAIN_MS) as consumer:
            consumer.subscribe(self.topics)
            for record in consumer:
                deliver(final, record)


def _caught_up(cluster: FireCluster, topics: dict[str, int]) -> bool:
    cursors = {
        (cursor.topic, cursor.partition): cursor.offset for cursor in cluster.admin.describe_group(GROUP).cursors
    }
    return all(
        cursors.get((topic, number), 0) >= end
        for topic in topics
        for number, (_, end) in cluster.admin.offsets(topic).items()
    )


def _fetch(address: str, topic: str, schema: pa.Schema, partition: int, start: int, end: int) -> Iterator[Piece]:
    """What that broker has, whether it leads or not."""
    request = pb.FetchRequest(topic=topic, partition=partition, start_offset=start, end_offset=end)
    for message in FetchCall(address, request, WHOLE_S, switch.client()):
        header: pb.BatchesHeader = message.header
        if header.HasField("error"):
            raise from_wire(header.error)
        payloads = split(message.payload, (stored.payload_bytes for stored in header.batches))
        for stored, payload in zip(header.batches, payloads, strict=True):
            yield stored.base_offset, decode_batch(payload, schema)


def _write_final(
    final: Recorder,
    topic: str,
    partition: int,
    start: int,
    end: int,
    pieces: Iterable[Piece],
    replica: int | None = None,
) -> None:
    """One line for each stored batch, and one at least: an empty partition has an end too."""
    more = {} if replica is None else {"replica": replica}
    final.write("final", topic=topic, partition=partition, start=start, end=end, offsets=[], values=[], **more)
    for base_offset, batch in pieces:
        values = [value.decode() for value in batch.column("value").to_pylist()]
        offsets = list(range(base_offset, base_offset + len(values)))
        final.write(
            "final", topic=topic, partition=partition, start=start, end=end, offsets=offsets, values=values, **more
        )
