"""Faults to plant in what expires of queue groups, and in what becomes of it."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

EXPIRY = (
    Fault(
        "what has expired is lent until it is gone",
        "broker.queues.policy.expiring:Expiring.fit",
        "yield from self._out.missing(first, min(end, known_to))",
        "yield first, min(end, known_to)",
        ("queue", "lives", "drop"),
    ),
    Fault(
        "what has expired is lent while it is not all found",
        "broker.queues.policy.expiring:Expiring.held_back",
        "return self.behind",
        "return False",
        ("queue", "lives", "drop", "tight"),
    ),
    Fault(
        "the lives of batches are not read",
        "broker.queues.policy.batch_expiries:BatchExpiries.read",
        "if not index.has_expiries:",
        "if True:",
        ("queue", "lives", "drop"),
    ),
    Fault(
        "where a group has a ttl_ms the lives of batches count for nothing",
        "broker.queues.policy.expiring:Expiring.look",
        "self._note(self._expiries.over(now_us, FOUND_AT_ONCE))",
        "self._note([] if self.ttl_ms else self._expiries.over(now_us, FOUND_AT_ONCE))",
        ("queue", "lives", "ttl", "drop"),
    ),
    Fault(
        "where batches have lives a group's ttl_ms counts for nothing",
        "broker.queues.policy.expiring:Expiring.look",
        "if self.ttl_ms and now_us >= self._next_us and",
        "if self.ttl_ms and not self._index.has_expiries and now_us >= self._next_us and",
        ("queue", "lives", "ttl", "drop"),
    ),
    Fault(
        "where everything has expired the next batch is taken to be young",
        "broker.queues.policy.expiring:Expiring._raise_floor",
        "self._next_us = 0 if first_us is None",
        "self._next_us = now_us + ttl_us if first_us is None",
        ("queue", "ttl", "drop"),
    ),
    Fault(
        "of a thousand batches those that expire later do so with the first",
        "broker.queues.policy.batch_expiries:BatchExpiries.over",
        "bisect_right(block.expire_us, now_us, lo=block.at)",
        "len(block.expire_us)",
        ("queue", "lives", "drop", "tight"),
    ),
    Fault(
        "of a thousand batches those that expire last stay",
        "broker.queues.policy.batch_expiries:BatchExpiries.over",
        "self._push(block, made)",
        "pass",
        ("queue", "lives", "drop", "tight", "isolate"),
    ),
    Fault(
        "what has expired goes though a member has it",
        "core.work.settling:_Entry.send",
        "if any(lease is not None for _, _, lease in state.lent.pieces(send.ranges)):",
        "if False:",
        ("queue", "lives", "dead"),
        (
            (
                "broker.queues.policy.dropping:Dropping._droppable",
                "self._state.unleased(first, end)",
                "self._state.marks.pieces(((first, end),))",
            ),
        ),
    ),
    Fault(
        "what came back after it had expired stays",
        "broker.queues.policy.dropping:Dropping.written",
        "heapq.heappush(self._pending, (first, end))",
        "pass",
        ("queue", "lives", "drop"),
    ),
    Fault(
        "records expire by a clock that jumped",
        "broker.administration.retention:RetentionClock.now_us",
        "if ahead_us > JUMP_US and not self._is_set_right(wall_us, passed_s):",
        "if False:",
        ("queue", "lives", "drop", "clock"),
    ),
    Fault(
        "what has expired is dropped where it is to become dead letters",
        "broker.queues.policy.policy:fate_of",
        "if settings.expired is Expired.DROP or settings.dead_letter is DeadLetter.DROP:",
        "if True:",
        ("queue", "lives", "dead"),
    ),
    Fault(
        "the life of a scheduled batch counts from when it was sent",
        "core.machine.machine:PartitionMachine._give_offsets",
        "timestamp_us + attributes.ttl_ms",
        "sized.timestamp_us + attributes.ttl_ms",
        ("queue", "schedules", "lives", "drop"),
    ),
    Fault(
        "a snapshot leaves out how long staged batches live",
        "storage.codec.snapshot:_staged_from_wire",
        "attributes_from_wire(batch.attributes)",
        "type(state := attributes_from_wire(batch.attributes))(state.priority)",
        ("queue", "carry", "lives", "drop", "kill", "small segments"),
    ),
    Fault(
        "those who follow a leader do not know how long batches live",
        "storage.codec.frame:attributes_from_wire",
        "return Attributes(priority, told.ttl_ms)",
        "return Attributes(priority)",
        ("queue", "lives", "drop", "kill"),
    ),
    Fault(
        "batches are taken in however many bytes are kept",
        "core.machine.admission:_why_full",
        "overlay.appended_bytes >= room.bytes_left",
        "False",
        ("queue", "reject", "bytes", "busy"),
    ),
    Fault(
        "what members give back counts for no bytes",
        "broker.queues.policy.length:Kept.written",
        "self._dirty[chunk] = None",
        "pass",
        ("queue", "drop_head", "bytes"),
    ),
    Fault(
        "what members have counts for bytes that are kept",
        "broker.queues.policy.length:Kept._unlent",
        "self._state.unleased(low, min((chunk + 1) * _CHUNK, self._fresh))",
        "self._state.marks.pieces(((low, min((chunk + 1) * _CHUNK, self._fresh)),))",
        ("queue", "drop_head", "bytes"),
    ),
    Fault(
        "what is too much is dropped where it is to become dead letters",
        "broker.queues.policy.policy:makes_letters_of_surplus",
        "return drops and",
        "return False and",
        ("queue", "drop_head", "letters of length"),
    ),
    Fault(
        "what is to become a letter, since it is too much, is lent",
        "broker.queues.policy.dropping:Dropping.fit",
        "yield from self._out.missing(first, end)",
        "yield from [(first, end)] if self.reason is Reason.LENGTH else self._out.missing(first, end)",
        ("queue", "drop_head", "letters of length"),
        (
            (
                "core.work.settling:_Entry.send",
                "if any(lease is not None for _, _, lease in state.lent.pieces(send.ranges)):",
                "if False:",
            ),
            (
                "core.work.state:WorkState._send",
                "!= send.member:",
                "not in (send.member, *(() if send.member else [held.member for held in self.leases.values()])):",
            ),
        ),
    ),
)
