"""Faults to plant in what is done where something was put back to an older copy of itself (backups.py)."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

BACKUPS = (
    Fault(
        "a candidate claims without company",
        "core.replication.election:Company.allows",
        "if 1 + len(heard) < needed:",
        "if False:",
        ("old directory",),
    ),
    Fault(
        "a candidate claims though a named log is ahead",
        "core.replication.election:Company.allows",
        "> mine",
        "> (1 << 62, 0)",
        ("old directory",),
    ),
    Fault(
        "what a candidate asks is not answered",
        "broker.host.peer_messages:PeerMessages.hear_so_far",
        "self._admit(",
        "None and self._admit(",
        ("old directory",),
    ),
    Fault(
        "a claim names the epoch after that of the node, whatever was seen",
        "core.replication.election:Election._above_all_seen",
        "leader_epoch=shared.epoch + 1",
        "leader_epoch=state.leader_epoch + 1",
        ("old coordination",),
    ),
    Fault(
        "a node that is older than what was seen is passed over for ever",
        "core.replication.replica:Replica._put_back",
        "shared.put_back(Node(version, state))",
        "return True",
        ("old coordination",),
    ),
)
