"""Faults to plant in scheduled batches: each breaks one clause of their rules."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

SCHEDULED = (
    Fault(
        "what is due in five seconds is published",
        "broker.data.scheduled:Scheduled._publish",
        "now_us, machine = self.now_us(), partition.replica.machine",
        "now_us, machine = self.now_us() + 5_000_000, partition.replica.machine",
        ("schedules",),
        (
            (
                "broker.data.scheduled:Scheduled.publish_due",
                "now_us, first_us = self.now_us(), None",
                "now_us, first_us = self.now_us() + 5_000_000, None",
            ),
        ),
    ),
    Fault(
        "a new leader does not look for what its predecessor scheduled",
        "broker.data.scheduled:Scheduled.look",
        "self.waits(partition)",
        "pass",
        ("schedules", "lead"),
    ),
    Fault(
        "what is published is told as cancelled",
        "broker.data.scheduled:Scheduled.cancel_scheduled",
        "if placed.base_offset >= 0:",
        "if False:",
        ("schedules",),
    ),
    Fault(
        "a cancelling is told before it is committed",
        "broker.data.scheduled:Scheduled.cancel_scheduled",
        "await partition.ask(Discard(SCHEDULED, (request.uuid,)), deadline)",
        "self._shell.spawn(partition.ask(Discard(SCHEDULED, (request.uuid,)), deadline), 'cancel')\n"
        "        return pb.CancelScheduledResponse(cancelled=True)",
        ("schedules", "lead"),
    ),
    Fault(
        "what is cancelled may be scheduled again under its UUID",
        "core.machine.machine:PartitionMachine._stage",
        "self.uuids.remember(entry.uuid, Placed(entry.index, -1, entry.timestamp_us))",
        "due_us or self.uuids.remember(entry.uuid, Placed(entry.index, -1, entry.timestamp_us))",
        ("schedules",),
    ),
    Fault(
        "a journal is shortened past what is scheduled",
        "core.machine.machine:PartitionMachine.oldest_staged_index",
        "for batch in self.staged.values()",
        "for batch in self.staged.values() if not batch.due_us",
        ("schedules", "purge", "small segments", "busy"),
    ),
    Fault(
        "a snapshot forgets when batches are due",
        "core.machine.due_times:DueTimes.__init__",
        "if batch.due_us:",
        "if False:",
        ("carry", "small segments"),
    ),
    Fault(
        "batches are published in order of arrival",
        "core.machine.due_times:DueTimes.due",
        "return [uuid for _, _, uuid in found]",
        "return [uuid for _, _, uuid in sorted(found, key=lambda line: line[1])]",
        ("schedules", "pause"),
    ),
    Fault(
        "a carried batch is read where it was before",
        "core.machine.machine:PartitionMachine._carry",
        "replace(waiting, index=entry.index)",
        "replace(waiting, index=max(entry.index - 1, 1))",
        ("carry", "small segments"),
    ),
    Fault(
        "a batch keeps the place under which it was staged once it is published",
        "core.machine.machine:PartitionMachine._publish",
        "placed = Placed(batch.index, published.base_offset, entry.timestamp_us)",
        "placed = Placed(batch.index, -1 if batch.due_us else published.base_offset, entry.timestamp_us)",
        ("schedules",),
    ),
)
