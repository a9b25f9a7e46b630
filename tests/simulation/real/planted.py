"""Faults to plant in what surrounds the core: shell, storage, links, groups, transactions, moves. Each breaks one rule
by one edit.

An edit that no longer applies fails loudly: that code has changed, and whoever changed it says here what breaking its
rule means.
"""

from __future__ import annotations

from tests.simulation.real.fault import Fault
from tests.simulation.real.planted_backups import BACKUPS
from tests.simulation.real.planted_calls import CALLS
from tests.simulation.real.planted_checkpoints import CHECKPOINTS
from tests.simulation.real.planted_expiry import EXPIRY
from tests.simulation.real.planted_lending import IDLE, LENDING
from tests.simulation.real.planted_queues import ORDER, QUEUES
from tests.simulation.real.planted_recoveries import RECOVERIES
from tests.simulation.real.planted_scheduled import SCHEDULED
from tests.simulation.real.planted_sessions import SESSIONS

SHELL = (
    Fault(
        "a turn ends for the first of its partitions alone",
        "broker.host.shell:Shell._end_turn",
        "for partition in touched:",
        "for partition in touched[:1]:",
    ),
    Fault(
        "a partition that is opened is not told which brokers live",
        "broker.host.shell:Shell._open",
        "partition.feed(BrokersSeen(self._live))",
        "pass",
    ),
    Fault(
        "a replica is deleted that the in-sync set names",
        "broker.host.shell:Shell._released",
        "return not led_here and all(broker != self.broker for broker, _ in state.isr)",
        "return not led_here",
        ("move",),
    ),
    Fault(
        "the state node is read once and never again",
        "broker.host.partition:Partition._read_node",
        "self._reading_node = False",
        "pass",
    ),
    Fault(
        "the answer to a write of the state node is lost in the broker",
        "broker.host.partition:Partition._write_node",
        "self.feed(CasAnswer(state.token, outcome, version))",
        "self.feed(CasAnswer(state.token, outcome, version)) if version % 3 else None",
    ),
    Fault(
        "an unanswered write of the state node is told as done",
        "broker.host.partition:Partition._write_node",
        "self.feed(CasAnswer(state.token, outcome, version))",
        "lost = outcome is type(outcome).UNKNOWN\n"
        "    outcome, version = (type(outcome).DONE, effect.expected_version + 1) if lost else (outcome, version)\n"
        "    self.feed(CasAnswer(state.token, outcome, version))",
        ("lost answers", "pause", "long", "busy"),
    ),
    Fault(
        "a replica that woke is not ticked",
        "broker.host.quiescence:Ticking.woke",
        "self._awake[partition] = None",
        "pass",
    ),
)

LINKS = (
    Fault(
        "a link that is newer does not end the older one",
        "rpc.wire.links:Links._converse",
        "self._end(peer)\n    peer.incarnation",
        "peer.incarnation",
        ("power",),
    ),
    Fault(
        "an error dialling once is the last attempt",
        "rpc.wire.links:Links._dial_for_ever",
        'log.log(logging.INFO if failures == 0 else logging.DEBUG, "link to broker %d: %s", peer.broker, error)',
        "return",
    ),
)

STORAGE = (
    Fault(
        "what is written is acknowledged without a sync",
        "storage.journal.segments:LogFiles.sync",
        "self.files.sync(self._fd)",
        "pass",
        ("all power",),
    ),
    Fault(
        "a segment is followed by another without being synced",
        "storage.journal.segments:LogFiles._roll",
        "if not self.sync():",
        "if False:",
        ("all power", "small segments", "busy"),
    ),
    Fault(
        "the name of a new segment is not synced",
        "storage.journal.segments:LogFiles._roll",
        "self.files.sync_directory(self.directory)",
        "pass",
        ("all power", "small segments"),
    ),
    Fault(
        "the name of a new log is not synced",
        "storage.opening.opening:_new_log",
        "files.sync_directory(directory.parent)",
        "pass",
        ("all power", "topic"),
    ),
    Fault(
        "recovery cuts a torn tail and one whole entry",
        "storage.journal.recovery:_scan",
        "return _Bad(at, str(error))",
        "if kept.entries and at:\n"
        "            kept.entries.pop()\n"
        "            at -= kept.ends.pop() - kept.ends[-1] + overhead\n"
        "        return _Bad(at, str(error))",
        ("power in a disk operation", "busy"),
    ),
    Fault(
        "the flushed mark runs ahead",
        "storage.journal.segments:LogFiles._is_synced",
        "self._write_mark(written)",
        "self._write_mark(written + 1)",
    ),
    Fault(
        "a failed sync is taken for one that succeeded",
        "storage.journal.segments:LogFiles.sync",
        "self._sync_failed(error)\n        return False",
        "pass",
        ("sync fails", "all power"),
    ),
    Fault(
        "a truncation is forgotten by the files",
        "storage.journal.segments:LogFiles._truncate",
        "due = self._owed is not None or kept < self._written or order.segment != self._segment",
        "due = False",
        ("isolate", "pause", "busy"),
    ),
    Fault(
        "an outcome counts though entries were cut since",
        "storage.journal.journal:DiskJournal.settle",
        "if generation > outcome.generation], default",
        "if False], default",
        ("session", "cut", "busy", "slow disk", "long"),
    ),
    Fault(
        "a short write is taken for a whole one",
        "storage.journal.segments:LogFiles._write",
        "while at < len(parts) and taken >= (nbytes := memoryview(parts[at]).nbytes):\n"
        "            taken -= nbytes\n            at += 1\n        if taken:",
        "at += len(chunk)\n        if False:",
        ("busy",),
    ),
    Fault(
        "a journal is shortened past what can be read",
        "broker.host.partition:Partition.shorten",
        "needed if readable is None else min(needed, readable)",
        "needed",
        ("purge", "small segments"),
    ),
    Fault(
        "a snapshot is stored after the segments it stands for are gone",
        "storage.journal.shortening:make_snapshot",
        "store_snapshot(directory, data, files, key)",
        "drop_segments(directory, dropped[-1][0] + 1, files)",
        ("purge", "small segments"),
    ),
)

GROUPS = (
    Fault(
        "a group's member begins where the log ends",
        "broker.groups.sharing:Share._give",
        "self._settled = self._moves.cursor(self._partition, self._group)",
        "self._settled = self._partition.next_offset if self._partition.next_offset > 40 else -1",
        ("groups",),
    ),
    Fault(
        "a member that leaves counts as done with what it was given",
        "broker.groups.sharing:Share.leave",
        "if self._owner is member:",
        "if self._owner is member:\n        self.settle(member, member.position)",
        ("groups",),
    ),
    Fault(
        "a member begins a record too far",
        "broker.groups.subscriptions:_Subscription.activate",
        "self.position = self.settled = max(offset, self.partition.index.log_start_offset)",
        "self.position = self.settled = max(offset, self.partition.index.log_start_offset) + (offset > 20)",
        ("groups",),
    ),
    Fault(
        "a subscription outlives its partition's leadership",
        "broker.groups.subscriptions:_Subscription.changed",
        "elif partition.closed or not partition.replica.leading:",
        "elif False:",
        ("groups", "lead"),
    ),
)

TRANSACTIONS = (
    Fault(
        "a decision is published in the first of its partitions alone",
        "broker.transactions.coordinator:Transactions._publish_all",
        "lines = by_partition(decision.manifest)",
        "lines = by_partition(decision.manifest)[:1]",
        ("transactions",),
    ),
    Fault(
        "an attempt that lost discards what the decision names",
        "broker.transactions.coordinator:Transactions._discard_attempt",
        "if uuid not in kept]",
        "]",
        ("transactions", "decisions"),
    ),
    Fault(
        "publishing is given up once a partition does not answer",
        "broker.transactions.coordinator:Transactions._publish_line",
        'log.debug("publish %s-%d, attempt %d: %s", topic, number, attempt, error)',
        "return",
        ("transactions", "decisions"),
    ),
    Fault(
        "what a new coordinator finds decided it does not publish",
        "broker.transactions.coordinator:Transactions._decision_committed",
        "if former is not None:",
        "if partition.replica.leader_epoch > 1:\n        return\n    if former is not None:",
        ("transactions",),
    ),
)

MOVES = (
    Fault(
        "a move ends before those who came are in sync",
        "broker.administration.moves:Moves._may_end",
        "complete = is_complete(move, isr)",
        "complete = True",
        ("move",),
    ),
    Fault(
        "a leader that is to go does not hand over",
        "broker.administration.moves:Moves._may_end",
        "if here not in move.target:",
        "if here not in move.target:\n        return False\n    if False:",
        ("move",),
    ),
)

AROUND = (*SHELL, *LINKS, *STORAGE, *GROUPS, *TRANSACTIONS, *MOVES)
FAULTS = (
    *AROUND,
    *CALLS,
    *QUEUES,
    *ORDER,
    *LENDING,
    *EXPIRY,
    *IDLE,
    *SCHEDULED,
    *RECOVERIES,
    *SESSIONS,
    *CHECKPOINTS,
    *BACKUPS,
)
