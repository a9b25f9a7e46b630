"""Clients that write exactly once, and groups: as Spark's sink and as consumers use the brokers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mq_broker.rpc.service import parse
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import FencedRun, StagedBatchMissing, TritonMQError, Unreachable
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.partitioner import coordinator_partition
from mq_protocol.wire.connection import Connection
from mq_protocol.wire.envelope import split
from mq_protocol.wire.error_messages import from_wire
from tests.simulation.real.clients import ANSWER_S, FINGERPRINT, Client, payload_of, values_in

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster

WINDOW_BYTES = 4_000


class Transactor(Client):
    """A streaming query: stages a micro-batch in the partitions of a topic, decides it, goes on to the next. Now and
    then an attempt is given up half way, as a driver that dies would. Another run then does the same micro-batch
    again."""

    def __init__(self, cluster: Cluster, name: str, topic: str, partitions: int) -> None:
        super().__init__(cluster, name)
        self.topic = topic
        self._partitions = partitions
        self._key = pb.TransactionKey(query_id=name.replace(" ", "-"), sink="s")
        self._runs = 0
        self._coordinators = 0

    async def run(self) -> None:
        batch_id = 0
        while not self.cluster.stopping:
            values = [self.cluster.new_values(self.random.randint(1, 3)) for _ in range(self._partitions)]
            await self._write(batch_id, values)
            batch_id += 1
            await self.pause(self.cluster.plan.pause_s * 3)

    async def _write(self, batch_id: int, values: list[list[int]]) -> None:
        """Until it is decided and published."""
        flat = [value for part in values for value in part]
        name = f"{self._key.query_id}/{batch_id}"
        while True:
            self._runs += 1
            self.write("txn", state="invoke", id=name, topic=self.topic, values=flat)
            try:
                await self._attempt(batch_id, f"run-{self._runs}", values)
            except (TritonMQError, TimeoutError) as error:
                self.cluster.done[f"transaction again: {type(error).__name__}"] += 1
                self.write("txn", state="unknown", id=name, topic=self.topic)
                await self.pause(0.3)
            else:
                self.cluster.done["transactions published"] += 1
                self.write("txn", state="ok", id=name, topic=self.topic)
                return

    async def _attempt(self, batch_id: int, run_id: str, values: list[list[int]]) -> None:
        stage = pb.StageOf(key=self._key, batch_id=batch_id, run_id=run_id)
        manifest: list[pb.StagedBatches] = []
        for partition, part in enumerate(values):
            batches = [part[:1], part[1:]] if len(part) > 1 and self.random.random() < 0.3 else [part]
            uuids = [self.random.randbytes(16) for _ in batches]
            async with asyncio.timeout(3 * ANSWER_S):
                for uuid, batch in zip(uuids, batches, strict=True):
                    await stage_batch(self, (self.topic, partition), stage, uuid, batch)
            manifest.append(pb.StagedBatches(topic=self.topic, partition=partition, uuids=uuids, row_count=len(part)))
            if self.random.random() < 0.03:
                raise Unreachable("the driver died before it decided")
        request = pb.DecideRequest(
            key=self._key,
            batch_id=batch_id,
            run_id=run_id,
            row_count=sum(map(len, values)),
            manifest=manifest,
            timeout_ms=self.random.choice((300, 2_000, 8_000)),
        )
        for attempt in range(6):
            try:
                await self._decide(request, lost=self.random.random() < 0.05)
            except (StagedBatchMissing, FencedRun):
                raise
            except TritonMQError as error:
                if attempt == 5 or not error.retriable:
                    raise
                await self.pause(0.3)
            else:
                return

    async def _decide(self, request: pb.DecideRequest, *, lost: bool) -> None:
        if not self._coordinators:
            spec = self.cluster.zookeeper.topics.get(TRANSACTIONS_TOPIC)
            if spec is not None:
                self._coordinators = len(spec[1].assignment)
        broker = 0
        if self._coordinators:
            number = coordinator_partition(self._key.query_id, self._key.sink, self._coordinators)
            broker = await self.leader(TRANSACTIONS_TOPIC, number)
        asking = self.ask(broker or self.any_broker(), "Decide", request, 10.0)
        if lost:  # the driver dies while it asks
            task = self.loop.create_task(asking)
            await asyncio.wait({task}, timeout=self.loop.often_short(0.001, 0.5))
            task.cancel()
            raise FencedRun("the driver died while it decided")
        answer = await asking
        if not answer.published:
            raise Unreachable("decided, and not published yet")


class Member(Client):
    """The one member of a group that reads one partition, pushed by its leader. It settles what it was given, in
    order."""

    def __init__(self, cluster: Cluster, name: str, group: str, topic: str, partition: int) -> None:
        super().__init__(cluster, name)
        self.group = group
        self.topic = topic
        self.partition = partition
        self.at = 0
        self._lives = 0

    async def run(self) -> None:
        while not self.cluster.over:
            broker = await self.leader(self.topic, self.partition)
            if broker:
                try:
                    await self._converse(broker)
                except TritonMQError as error:
                    self.cluster.done[f"subscribe again: {type(error).__name__}"] += 1
            await self.pause(0.2)

    async def _converse(self, broker: int) -> None:
        self._lives += 1
        wanted = pb.SubscribePartition(topic=self.topic, partition=self.partition, earliest=True)
        member = {"member_id": f"{self.name} {self._lives}", "member_key": self._lives.to_bytes(16)}
        opened = pb.SubscribeOpen(group=self.group, partitions=[wanted], **member)
        request = pb.SubscribeRequest(open=opened, credit=pb.SubscribeCredit(bytes=WINDOW_BYTES))
        leave_at = self.loop.time() + self.loop.often_short(1.0, 60.0)
        async with self.call(broker, "Subscribe") as line:
            await line.write(request.SerializeToString())
            while not self.cluster.over and (self.cluster.stopping or self.loop.time() < leave_at):
                said = await self.read(line)
                if said is None:
                    return
                header = parse(said.body, pb.BatchesHeader)
                if header.HasField("error"):
                    raise from_wire(header.error)
                for told in header.opened:
                    if told.HasField("error") and not (told.active and told.error.code == pb.OFFSET_OUT_OF_RANGE):
                        raise from_wire(told.error)  # else it is told that offsets were lost, and goes on behind them
                await self._take(line, header, said.payload)

    async def _take(self, line: Connection, header: pb.BatchesHeader, payloads: memoryview) -> None:
        batches = list(header.batches)
        taken = 0
        end = 0
        for batch, payload in zip(batches, split(payloads, [b.payload_bytes for b in batches]), strict=True):
            values = values_in(payload)
            offsets = list(range(batch.base_offset, batch.base_offset + batch.record_count))
            self.cluster.done["records delivered"] += len(values)
            self.write(
                "deliver", group=self.group, topic=self.topic, partition=self.partition, offsets=offsets, values=values
            )
            taken += batch.payload_bytes
            end = offsets[-1] + 1
        if not taken:
            return
        self.at = max(self.at, end)
        settled = [pb.CursorPosition(topic=self.topic, partition=self.partition, offset=end)]
        request = pb.SubscribeRequest(settled=settled, credit=pb.SubscribeCredit(bytes=taken))
        await line.write(request.SerializeToString())


async def stage_batch(
    client: Client, place: tuple[str, int], stage: pb.StageOf, uuid: bytes, values: list[int]
) -> None:
    """Asked again until it is staged. Raises the `TritonMQError` with which it is refused for good."""
    client.cluster.values[uuid] = values
    while True:
        broker = await client.leader(*place)
        header = pb.ProduceHeader(
            correlation=1,
            topic=place[0],
            partition=place[1],
            uuid=uuid,
            stage=stage,
            record_count=len(values),
            schema_fingerprint=FINGERPRINT,
            timeout_ms=int(ANSWER_S * 1000),
        )
        try:
            async with client.call(broker or client.any_broker(), "Produce") as line:
                await line.write(header.SerializeToString(), (payload_of(values),))
                said = await client.read(line)
        except TritonMQError:  # of the call, not of the batch
            said = None
        if said is not None:
            [result] = parse(said.body, pb.ProduceResponse).results
            if not result.HasField("error"):
                return
            error = from_wire(result.error)
            if not error.retriable:
                raise error
        await client.pause(0.2)
