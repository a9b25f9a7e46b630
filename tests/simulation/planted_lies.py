"""Faults to plant in the admission of other brokers' messages: without each check, what a liar says ends a broker
(liar.py).

They are found as deaths alone. Others than the core have a part in it: a message that is admitted must also fit a frame
and a link.
"""

from __future__ import annotations

from tests.simulation.planted import Mutation

LIES = (
    Mutation(
        "entries that do not follow the one before are admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_entries",
        "if entry.index != index:",
        "if False:",
        profile="liar",
    ),
    Mutation(
        "entries whose epochs fall are admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_entries",
        "epoch = entry.leader_epoch",
        "pass",
        profile="liar",
    ),
    Mutation(
        "entries of an epoch below the one before are admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_entries",
        "max(message.prev_epoch, 1)",
        "-(1 << 63)",
        profile="liar",
    ),
    Mutation(
        "entries after one that no log has are admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_range",
        "not 0 <= message.prev_epoch <=",
        "not -1 <= message.prev_epoch <=",
        profile="liar",
    ),
    Mutation(
        "batches without records are admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_entry",
        "and not 0 < entry.record_count <=",
        "and not 0 <= entry.record_count <=",
        profile="liar",
    ),
    Mutation(
        "batches with half a UUID are admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_entry",
        "if count in {0, entry.record_count} else",
        "if True else",
        profile="liar",
    ),
    Mutation(
        "an acknowledgement of what was never sent is admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_ack",
        "if ack.matched_index > last_index:",
        "if False:",
        profile="liar",
    ),
    Mutation(
        "a snapshot of an epoch that its leader does not lead is admitted",
        "admission of peers",
        "replication.peer_admission:_wrong_snapshot",
        "or not 0 < snapshot.last_epoch <= leader_epoch",
        "",
        profile="liar",
    ),
    Mutation(
        "records beyond the end are dropped",
        "admission of peers",
        "machine.machine:PartitionMachine._apply",
        "min(offset, self.next_offset)",
        "offset",
        profile="liar",
    ),
)
