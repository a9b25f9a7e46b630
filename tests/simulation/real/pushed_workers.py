"""Members of a queue group that are pushed their records, in the simulated cluster.

They work as those do that ask (workers.py), by a session. Their streams break now and then: then they come back, and
claim what they hold.
"""

from __future__ import annotations

import asyncio

from mq_broker.core.work.steps import LeaseId
from mq_broker.rpc.service import parse
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.wire.connection import Connection
from mq_protocol.wire.error_messages import from_wire
from tests.simulation.real.queue_truth import FAILED, GROUP, RESUME_S
from tests.simulation.real.workers import Item, Worker

BACK = (pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE, pb.OUTCOME_REJECT)
SILENT_S = 6.0
"""A member that has heard nothing for so long, and waits for answers, looks for another leader."""


class Pushed(Worker):
    """Has a session with one partition's leader. `_said`: what waits for its answer, by number, with whether nobody had
    said it before, and when it was said. `_claimed`: what the leader may take for held by this session."""

    async def run(self) -> None:
        while not self.cluster.over:
            away_s, self._away_s = self._away_s, 0.0
            if away_s and not self.cluster.stopping:
                await asyncio.sleep(away_s)
            try:
                broker = await self.leader(self.topic, self.partition)
                if broker:
                    async with self.call(broker, "Work") as line:
                        await self._session(broker, line)
            except TritonMQError as error:
                self.cluster.done[f"session again: {type(error).__name__}"] += 1
            await self.pause(0.2)

    async def _session(self, broker: int, line: Connection) -> None:
        """Until something goes wrong, or the member has enough of it."""
        self._broker, self._opened_at, self._heard_at = broker, self.loop.time(), 0.0
        self._closing = False
        self._said: dict[int, tuple[Item, bool, float]] = {}
        self._numbers = self._credit = self._given = self._lent = 0
        self._forget()
        self._claimed = {lease: set(offsets) for lease, offsets in self._held.items()}
        self._ledger.truth.lending.asks(self.name, "", 0)
        self._ledger.truth.opens(self.name)
        await line.write(pb.WorkRequest(sessions=[self._opening()]).SerializeToString())
        reading = self.loop.create_task(self._read(line), name=f"{self.name} hears")
        try:
            while not self.cluster.over:
                pause_s = self.cluster.plan.pause_s
                await asyncio.wait({reading}, timeout=self.loop.often_short(pause_s / 20, pause_s * 2))
                if reading.done():
                    reading.result()
                    return
                if self._is_silent():
                    raise TimeoutError
                if not await self._speak(line):
                    return
        finally:
            reading.cancel()

    def _forget(self) -> None:
        """Now and then some of what the member holds: what it does not claim is not its own any more."""
        for lease, offset in [(lease, offset) for lease, offsets in self._held.items() for offset in offsets]:
            if self.random.random() < 0.1:
                self._settles = [item for item in self._settles if item[:2] != (lease, offset)]
                self._let_go(lease, offset)

    def _is_silent(self) -> bool:
        first = min((said_at for _, _, said_at in self._said.values()), default=self.loop.time())
        unopened = not self._heard_at and self._opened_at + SILENT_S < self.loop.time() and bool(self._said)
        return first + SILENT_S < self.loop.time() or unopened

    def _opening(self) -> pb.SessionRequest:
        held = []
        for (epoch, entry, step), offsets in self._held.items():
            claim = pb.HeldLease(lease=pb.LeaseId(leader_epoch=epoch, entry=entry, step=step))
            at = 0
            for offset in sorted(offsets):
                claim.ranges.extend((offset - at, 1))
                at = offset + 1
            held.append(claim)
        opened = pb.WorkOpen(
            topic=self.topic,
            partition=self.partition,
            group=GROUP,
            member=self.name,
            member_key=self._key,
            held=held,
        )
        return pb.SessionRequest(session=7, open=opened, terms=pb.WorkTerms(working=1))

    async def _speak(self, line: Connection) -> bool:
        """One message: outcomes and credit. False once the member has had enough of this session."""
        if not self.cluster.stopping:
            chance = self.random.random()
            if chance < 0.02:
                self._die()
                return False
            if chance < 0.04:
                self.cluster.done["sessions broken"] += 1
                return False
            if chance < 0.05:
                await self._close(line)
                return False
        self._work()
        request = pb.SessionRequest(session=7)
        self._say(request)
        if self._lent + 3 > self._credit or self.random.random() < 0.2:
            more = self.random.choice((0, 1, 5)) if not self.cluster.stopping else 100
            self._credit = self._lent + more
            self._given = max(self._given, self._credit)  # what is taken back may be on its way
            request.credit.CopyFrom(pb.WorkCredit(records=self._credit, watch=True))
        if len(request.ListFields()) > 1:
            await line.write(pb.WorkRequest(sessions=[request]).SerializeToString())
        return True

    def _say(self, request: pb.SessionRequest) -> None:
        waiting = {item for item, _, _ in self._said.values()}
        for item in [item for item in self._settles if item not in waiting]:
            lease, offset, outcome = item
            self._numbers += 1
            self._said[self._numbers] = item, not self._ledger.truth.was_said(item), self.loop.time()
            self._ledger.truth.asks(*item)
            if outcome == pb.OUTCOME_EXTEND:
                self._settles.remove(item)  # extensions are not asked for again
            else:
                self._ledger.let_go(offset)
            epoch, entry, step = lease
            said = request.settles.add(lease=pb.LeaseId(leader_epoch=epoch, entry=entry, step=step), ranges=[offset, 1])
            said.outcome = outcome  # type: ignore[assignment]
            if outcome in (pb.OUTCOME_FAIL, pb.OUTCOME_REJECT):
                said.error = FAILED

    async def _close(self, line: Connection) -> None:
        """The member gives back all that it has."""
        self.cluster.done["sessions closed"] += 1
        self._closing = True
        for offsets in self._held.values():
            for offset in offsets:
                self._ledger.let_go(offset)
        await line.write(pb.WorkRequest(sessions=[pb.SessionRequest(session=7, close=True)]).SerializeToString())
        await self.pause(0.2)
        self._begin_life()

    async def _read(self, line: Connection) -> None:
        while (heard := await line.read()) is not None:
            for said in parse(heard.body, pb.WorkHeader).sessions:
                self._hear(said)

    def _hear(self, said: pb.SessionResponse) -> None:
        truth, now = self._ledger.truth, self.loop.time()
        if self._closing:
            return
        if not self._heard_at:
            truth.hears(self.name, self._opened_at)
        self._heard_at = now
        answers = [(self._said.pop(each.number), each.answer) for each in said.answers]
        for (item, first, said_at), answer in answers:
            self._settled(self._judge([(item, answer)], said_at, self._broker, RESUME_S, first=first))
        for gone in said.gone:
            for offset in self._held.pop(LeaseId(gone.leader_epoch, gone.entry, gone.step), ()):
                self._ledger.let_go(offset)
        if said.HasField("lease"):
            self._take(said.lease)
        if said.HasField("error"):
            raise from_wire(said.error)

    def _take(self, lent: pb.LeaseResponse) -> None:
        lease = LeaseId(lent.lease.leader_epoch, lent.lease.entry, lent.lease.step)
        truth = self._ledger.truth
        for item, first, _ in self._said.values():
            if first and item[2] in BACK and truth.gave_back(*item, lease.entry):
                self.cluster.fail(f"{self.name} was pushed {lease} before it was answered about {item}")
        truth.not_claimed(self.name, self._claimed, lease)
        at = 0
        numbers = zip(lent.ranges[::2], lent.ranges[1::2], lent.deliveries, lent.failures, strict=True)
        for gap, length, deliveries, failures in numbers:
            for offset in range(at + gap, at + gap + length):
                truth.received(lease, offset, self._opened_at, (deliveries, failures))
                truth.lending.received(self.name, "", offset)
                written_at = truth.written_at(lease)
                self._ledger.receive(self.name, offset, written_at, deliveries, failures, RESUME_S)
                self._held.setdefault(lease, set()).add(offset)
                self._claimed.setdefault(lease, set()).add(offset)
                self._lent += 1
                self.cluster.done["records pushed"] += 1
            at += gap + length
        if self._lent > self._given:
            self.cluster.fail(f"{self.name} was pushed {self._lent} records, and its credit was of {self._given}")
