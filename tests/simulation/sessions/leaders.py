"""Brokers as members of a queue group meet them: the streams, sessions and gatherings are the real ones, and so is the
state of each partition. What is written is committed after a while; a partition that is handed over has another leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa

from mq_broker.broker.queues.asked import Asked
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.letters.outputs import Outputs
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.policy.ordering import ByKey
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.broker.queues.sessions import Sessions
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.memory import Held
from mq_broker.core.entries import Append, Entry, Operation
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.messages import Published, Result
from mq_broker.core.work.state import NO_MARK, WorkState
from mq_broker.core.work.steps import Begin
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.errors import NotLeader, OutcomeUnknown
from mq_protocol.queues.settings import Order
from tests.mq_broker.broker.queues.partitions import Led

TOPIC: Final = "t"
TOPIC_ID: Final = "x"
GROUP: Final = "g"
EPOCH_US: Final = 10**15


class Log(Led):
    """One partition. `home`: the broker that leads it, 0 for none. `key_of`: of each record, None for none."""

    def __init__(self, number: int, random: Random) -> None:
        super().__init__()
        self.name, self.number, self.home = f"{TOPIC}-{number}", number, 0
        self.topic = SimpleNamespace(spec=SimpleNamespace(name=TOPIC, topic_id=TOPIC_ID), schema=RECORD_SCHEMA)
        self.keeps_up = False
        self.commit_s: Callable[[], float] = lambda: 0.001
        self.keys: list[bytes | None] = []
        self._random = random
        self._payloads: dict[int, memoryview] = {}
        self.apply(GROUP, 1, Begin(0))
        self.serving = False
        self.replica.leader_epoch = 0

    def publish(self, keys: list[bytes | None], size: int) -> None:
        """A batch of records with these keys, of so many bytes each, becomes readable."""
        rows = [{"key": key, "value": bytes(size), "headers": [], "timestamp": None} for key in keys]
        payload = memoryview(encode_batch(pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)))
        self._last += 1
        uuid = self._last.to_bytes(16)
        entry = Entry(self._last, self.epoch, 0, Append(), uuid, len(keys), len(payload), len(payload))
        for change in self.machine.apply(entry):
            assert isinstance(change, Published)
            self.index.append(change)
            self._payloads[change.base_offset] = payload
        self.keys += keys
        self.tell()

    def read(self, first: int, _end: int, _bytes_max: int) -> list[tuple[Published, memoryview]]:
        batch = self.index.find(first)
        return [(batch, self._payloads[batch.base_offset])]

    def propose(self, operation: Operation, on_reply: Callable[[Result], None], deadline: float) -> None:
        super().propose(operation, on_reply, deadline)
        asyncio.get_running_loop().call_later(self.commit_s(), self._commit, self.epoch)

    def _commit(self, epoch: int) -> None:
        if self.serving and epoch == self.epoch:
            self.commit()

    def leave(self) -> None:
        """Its leader is so no more. What is on its way may be committed all the same."""
        for entry, _ in self._tail:
            if self._random.random() < 0.5:
                break
            self.machine.apply(entry)
        self.home = 0
        self.lose(OutcomeUnknown("another broker may lead by now: ask there"))

    def settle_in(self, home: int) -> None:
        """That broker leads it from now on."""
        self.home, self.serving = home, True
        self.replica.leader_epoch += 1
        self._overlay = Overlay([])
        self.tell()

    def not_leader(self) -> NotLeader:
        return NotLeader(f"{self.name} is not led here", self.home, self.epoch)

    @property
    def work(self) -> WorkState:
        state: WorkState = self.machine.work[GROUP]
        return state

    def ready_for(self, member: str, order: Order, now_us: int, limit: int, most: int) -> int:
        """How many records this member could be lent now, by a look at each; no more than so many are counted. None
        that is to be lent alone."""
        state, found = self.work, 0
        holders: dict[Any, str | None] = {}
        lent = {offset: state.leases[lease].member for a, b, lease in state.lent for offset in range(a, b)}
        everybody = set(lent.values()) if order is Order.ALL else set()
        if everybody and everybody != {member}:
            return 0
        for first, end in state.settled.missing(state.base, self.next_offset):
            for offset in range(first, end):
                key: Any = None if order is Order.NONE else () if order is Order.ALL else self.keys[offset]
                holder = lent.get(offset)
                mark = state.marks.at(offset) or NO_MARK
                alone = limit >= 2 and mark.failures == limit - 1
                free = holder is None and not mark.doomed(limit) and mark.due_us <= now_us and not alone
                if key is not None:
                    before = holders.get(key)
                    stuck = before == "" or (before is not None and before != member)
                    holders[key] = "" if stuck or (holder is None and not free) else holder or member
                    free = free and not stuck
                found += free
                if found >= most:
                    return found
        return found


class Broker:
    """Owns the streams of one broker. `keys_s`: how long it takes to read keys."""

    def __init__(self, number: int, logs: list[Log], queue: Callable[[], Queue], keys_s: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.address = number, f"b:{number}"
        self._logs, self._keys_s = logs, keys_s
        self._reading: set[LedGroup] = set()
        shell: Any = SimpleNamespace(
            now_ms=lambda: int(loop.time() * 1000),
            on_role=[],
            partitions_of=lambda _topic_ids: [log for log in logs if log.home == number],
            leader=self._led,
        )
        declared: Any = SimpleNamespace(find=lambda *_: queue(), get=lambda *_: queue())
        topics: Any = SimpleNamespace(get=self._topic)
        self.working = Working(shell, declared, now_us, on_rows=self._read_keys)
        self.sessions = Sessions(Asked(shell, topics, declared), self.working, Outputs(topics, shell), Held(1 << 40))

    def _led(self, _topic: object, number: int) -> Any:
        log = self._logs[number]
        if log.home != self.number:
            raise log.not_leader()
        return log

    async def _topic(self, _name: str) -> Any:
        return self._logs[0].topic

    def _read_keys(self, led_group: LedGroup, policy: Policy) -> None:
        if isinstance(policy.ready, ByKey) and led_group not in self._reading:
            self._reading.add(led_group)
            asyncio.get_running_loop().call_later(self._keys_s(), self._give_keys, led_group, policy, policy.ready)

    def _give_keys(self, led_group: LedGroup, policy: Policy, ready: ByKey) -> None:
        self._reading.discard(led_group)
        log: Any = led_group.partition
        wanted = ready.to_read(log.next_offset) if led_group.reads(policy) else None
        if wanted is not None:
            keyed = [(offset, key) for offset in range(*wanted) if (key := log.keys[offset]) is not None]
            ready.add(wanted[1], [offset for offset, _ in keyed], [hash_of(key) for _, key in keyed])
        led_group.wake()

    def take_up(self) -> None:
        self.working.settings_changed()

    def serve(self, requests: Any, send: Callable[[Any], Awaitable[None]]) -> Any:
        """The method Work."""
        return self.sessions.work(requests, send)


def hash_of(key: bytes) -> int:
    return int.from_bytes(key)


def now_us() -> int:
    """The time that is believed."""
    return EPOCH_US + int(asyncio.get_running_loop().time() * 1e6)
