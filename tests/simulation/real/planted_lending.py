"""Faults to plant in which records queue groups lend, drop and take in: by filters, priorities and length."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

LENDING = (
    Fault(
        "what one filter does not keep is dropped when there is another",
        "broker.queues.policy.policy:_terms_of",
        "priority, settings.filter,",
        'priority, settings.filter and "some",',
        ("queue", "filter"),
    ),
    Fault(
        "a group drops the record after those that its filter does not keep",
        "broker.queues.policy.dropping:Dropping._unwanted",
        "yield at, until",
        "yield at, until + 1",
        ("queue", "filter"),
    ),
    Fault(
        "a group's filter is not asked about what is lent",
        "broker.queues.policy.ready_records:ReadyRecords._fit",
        "self.masks.fit(self._state.settled.missing(first, end))",
        "self._state.settled.missing(first, end)",
        ("queue", "filter"),
    ),
    Fault(
        "what a group's filter does not keep stays if it was leased when that was seen",
        "broker.queues.policy.dropping:Dropping.written",
        "heapq.heappush(self._pending, (first, end))",
        "pass",
        ("queue", "filter"),
    ),
    Fault(
        "a member is lent what comes after a record that its filter keeps",
        "broker.queues.policy.member_filters:Mask.fit",
        "yield from self._unfit.missing(first, end)",
        "yield first, end",
        ("queue", "sieves"),
    ),
    Fault(
        "the records of the lowest priority go first",
        "broker.queues.policy.by_level:ByLevel._fill",
        "self._heaps.keys(), reverse=True)",
        "self._heaps.keys())",
        ("queue", "strict"),
    ),
    Fault(
        "one priority comes after all others",
        "broker.queues.policy.by_level:ByLevel._fill_from",
        "for level in levels:",
        "for level in sorted(levels, key=lambda level: (level == 9, -level)):",
        ("queue", "strict"),
    ),
    Fault(
        "what came back comes after all others of its priority",
        "broker.queues.policy.by_level:ByLevel._fill_of",
        "if heap and (head is None or head[0] >= fresh_end or heap[0][0] < head[0]):",
        "if heap and (head is None or head[0] >= fresh_end):",
        ("queue", "strict"),
    ),
    Fault(
        "records of low priority are lent once nothing else is left",
        "broker.queues.policy.by_level:ByLevel._fill",
        "if level >= HIGH:",
        "if False:",
        ("queue", "weighted"),
    ),
    Fault(
        "members of a low priority do not stand by",
        "broker.queues.group.waiting:Waiting.in_turn",
        "if asking.priority >= self._floor]",
        "]",
        ("queue", "strict"),
    ),
    Fault(
        "what an entry lends counts as kept for the bound",
        "broker.queues.policy.length:excess_of",
        "state.unlent(end) - settings.length_max",
        "state.unlent(end) + state.leased - settings.length_max",
        ("queue", "drop_head"),
    ),
    Fault(
        "nothing is dropped above the bound",
        "broker.queues.policy.length:excess_of",
        "(records <= 0 and size <= 0)",
        "True",
        ("queue", "drop_head"),
    ),
    Fault(
        "batches are taken in however many records are kept",
        "broker.queues.policy.length:room",
        "end_max = end + settings.length_max - state.unlent(end)",
        "end_max = end + settings.length_max",
        ("queue", "reject", "busy"),
    ),
    Fault(
        "batches that are on their way do not count for the bound",
        "core.machine.admission:_why_full",
        "machine.next_offset + overlay.appended >= room.end_max",
        "machine.next_offset >= room.end_max",
        ("queue", "reject", "busy"),
    ),
)

IDLE = (
    Fault(
        "one leader's word is enough to delete a group as idle",
        "broker.queues.idle:Idle._end_if_all_agree",
        "for number in range(topic.partitions):",
        "for number in range(1):",
        ("idles", "long"),
    ),
    Fault(
        "a group that has leases is idle",
        "broker.queues.group.led_group:LedGroup.used_ms",
        "if self._asking or len(self.present) or (state is not None and (state.leases or state.outbox)):",
        "if self._asking or len(self.present):",
        ("idles", "long"),
    ),
    Fault(
        "what members ask does not keep a group from being idle",
        "broker.queues.idle:Idle._idle_ms",
        "watched.since_ms = max(watched.since_ms, used_ms)",
        "pass",
        ("idles", "long"),
    ),
    Fault(
        "a leader that stood still says for how long it heard of nobody",
        "broker.queues.idle:Idle._stood_still",
        "return now_ms - self._looked_ms > SLEPT_MS",
        "return False",
        ("idles", "pause", "long"),
    ),
)
