"""Faults to plant in checkpoints: what they are of, when they are stored, and when they are gone on from."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

CHECKPOINTS = (
    Fault(
        "a checkpoint is said to be of entries that are not applied yet",
        "core.replication.replica:Replica.applied_state",
        "Snapshot(log.applied, log.epoch_at(log.applied)",
        "Snapshot(log.last_index, log.epoch_at(log.last_index)",
        ("busy",),
    ),
    Fault(
        "a replica that begins with a checkpoint begins without its state",
        "core.replication.replica_state:Shared.__init__",
        "log.checkpoint.snapshot if log.checkpoint is not None else log.snapshot",
        "log.snapshot",
        ("busy",),
    ),
    Fault(
        "a checkpoint is stored before what it is of is synced",
        "storage.journal.keeping:KeepingOfJournal._keep",
        "while self._log.synced < last_index:",
        "while False:",
        ("all power", "busy"),
        (("storage.journal.checkpoints:store_checkpoint", "mark < last_index", "False"),),
    ),
    Fault(
        "a truncation below a checkpoint leaves it",
        "storage.journal.segments:LogFiles._make_good",
        "if order.last_index < self.checkpointed:",
        "if False:",
    ),
    Fault(
        "a checkpoint is gone on from whatever segments are there",
        "storage.journal.checkpoints:begin_with_checkpoint",
        "_check_files(directory, place, files, found, firsts, keys)",
        "{}",
    ),
)
