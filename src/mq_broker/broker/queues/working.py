"""Every queue group of the partitions that this broker leads: who waits, whose leases run out, how it begins and ends.

A group is known here from the first request, or from the moment at which this broker leads a partition that has
leases of it, until the leadership is over. While nobody has a lease, and no group and no batch has a `ttl_ms`,
nothing here costs anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.queues.group.led_group import AGAIN_S, LedGroup
from mq_broker.broker.queues.group.requests import OwnSteps
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.queues.policy.length import Kept
from mq_broker.broker.queues.policy.policy import Policy, goes_by_itself
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Step
from mq_protocol.errors import TritonMQError

BEAT_S: Final = 0.25
"""How often leases are looked at that may have run out."""

SLEPT_S: Final = 1.0
"""A broker whose loop stood still for so long may have kept members from extending what they hold."""


@dataclass(frozen=True, slots=True)
class _Led:
    """The groups of a partition in one leadership of this broker, and what watches the partition."""

    epoch: int
    observer: Callable[[], None]
    groups: dict[str, LedGroup] = field(default_factory=dict)


class Working:
    """Owns the led_group of each queue group and partition that is led here. `now_us`: the time that is believed, in
    microseconds since 1970. `on_outbox`: publishes what a group has decided. `on_doomed`: sends its dead
    letters. `on_rows`: looks at its records, for their keys or for filters."""

    def __init__(
        self,
        shell: Shell,
        declared: Declared,
        now_us: Callable[[], int],
        on_outbox: Callable[[LedGroup, WorkState], None] = lambda *_: None,
        on_doomed: Callable[[LedGroup], None] = lambda _: None,
        on_rows: Callable[[LedGroup, Policy], None] = lambda *_: None,
    ) -> None:
        self._shell = shell
        self._on_rows = on_rows
        self._on_outbox = on_outbox
        self._on_doomed = on_doomed
        self._declared = declared
        self._now_us = now_us
        self._loop = asyncio.get_running_loop()
        self._groups: dict[Partition, _Led] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._beat_at = 0.0
        shell.on_role.append(self._role_changed)

    async def add_steps(self, partition: Partition, group: str, life: int, steps: Sequence[Step]) -> None:
        """Write steps that this leader wants by itself, of this life of the group: they go into an entry with what
        members ask. Returns once they are committed. Raises `NotLeader` when the leadership ends before, and whatever
        the entry was refused with; nothing is tried again."""
        own = OwnSteps(life, tuple(steps))
        self.led_group(partition, group).add(own)
        await own.written

    # ------------------------------------------------------------------ who leads

    def led_group(self, partition: Partition, group: str) -> LedGroup:
        """Raises `NotLeader` unless the partition is served here."""
        if not partition.serving:
            raise partition.not_leader()
        led = self._led(partition)
        known = led.groups.get(group)
        if known is None:
            known = led.groups[group] = LedGroup(
                partition,
                group,
                lambda: self._declared.find(partition, group),
                self._shell.now_ms,
                self._now_us,
                self._keep_time,
                self._stood_still,
                self._on_outbox,
                self._on_doomed,
                self._on_rows,
                self._refused,
            )
        return known

    def _refused(self, led_group: LedGroup, error: TritonMQError) -> None:
        """An entry of the group was, though this broker may lead still: its disk is full. What others rest on it is
        over, too. The group begins anew, as with a new leader."""
        partition, group = led_group.partition, led_group.group
        self._look(partition)
        led = self._groups.get(partition)
        if led is not None and led.groups.get(group) is led_group:
            del led.groups[group]
            led_group.close(error)
            self._loop.call_later(AGAIN_S, self._take_up, partition)

    def _led(self, partition: Partition) -> _Led:
        """What is known of a partition that is served here."""
        self._look(partition)
        led = self._groups.get(partition)
        if led is None:
            led = self._groups[partition] = _Led(partition.replica.leader_epoch, lambda: self._changed(partition))
            partition.observers.add(led.observer)
        return led

    def kept(self, partition: Partition, group: str) -> Kept | None:
        """How many bytes are kept for the group, if that is known here."""
        led = self._groups.get(partition)
        led_group = led.groups.get(group) if led is not None and led.epoch == partition.replica.leader_epoch else None
        return led_group.bounding.kept if led_group is not None else None

    def blocked_by(self, partition: Partition, group: str) -> int | None:
        """The record that others of the group wait for, which is not lent for now."""
        led = self._groups.get(partition)
        led_group = led.groups.get(group) if led is not None else None
        return led_group.blocked_by() if led_group is not None else None

    def asked(self, partition: Partition, group: str) -> bool:
        """Whether a member waits to be lent any record."""
        led = self._groups.get(partition)
        led_group = led.groups.get(group) if led is not None else None
        return led_group is not None and led_group.asked

    def settings_changed(self, changed: Collection[str] | None = None) -> None:
        """Queue groups of those topics (None: of any) may have been declared, changed or deleted."""
        for partition in self._shell.partitions_of(changed):
            if partition.replica.machine.work:
                self._take_up(partition)
        for led in self._groups.values():
            for led_group in led.groups.values():
                led_group.wake()

    def _role_changed(self, partition: Partition) -> None:
        self._loop.call_soon(self._take_up, partition)  # the core is in the middle of a step

    def _take_up(self, partition: Partition) -> None:
        """What a former leader has lent runs out here, and what it doomed is put aside here, whoever asks."""
        self._look(partition)
        if not partition.serving:
            return
        if partition.replica.machine.work:
            self._led(partition)  # a batch may come that expires, though nobody asks
        for group, state in partition.replica.machine.work.items():
            if state.runs or state.outbox or goes_by_itself(self._declared.find(partition, group), partition.index):
                self.led_group(partition, group).wake()

    def _changed(self, partition: Partition) -> None:
        """Observer: something became readable, or the role changed."""
        self._look(partition)
        led = self._groups.get(partition)
        if led is None:
            return
        if partition.index.has_expiries and not led.groups.keys() >= partition.replica.machine.work.keys():
            self._take_up(partition)
        for led_group in led.groups.values():
            if led_group.waits:
                led_group.wake()

    def _look(self, partition: Partition) -> None:
        """End what belongs to a leadership that is over."""
        led = self._groups.get(partition)
        if led is None or (partition.serving and partition.replica.leader_epoch == led.epoch):
            return
        del self._groups[partition]
        partition.observers.discard(led.observer)
        for led_group in led.groups.values():
            led_group.close(partition.not_leader())

    # ------------------------------------------------------------------ time

    def _keep_time(self) -> None:
        """Somebody has a lease, or records may expire."""
        if self._beat is None:
            self._beat_at = self._loop.time() + BEAT_S
            self._beat = self._loop.call_at(self._beat_at, self._on_beat)

    def _stood_still(self) -> bool:
        """Whether this broker's loop did, and has not looked at its clocks since."""
        return self._beat is not None and self._loop.time() - self._beat_at > SLEPT_S

    def _on_beat(self) -> None:
        slept = self._stood_still()
        self._beat = None
        now_ms = self._shell.now_ms()
        for led in self._groups.values():
            for led_group in led.groups.values():
                if led_group.has_clocks:
                    if slept:
                        led_group.slept(now_ms)
                    led_group.beat(now_ms)
                    self._keep_time()
