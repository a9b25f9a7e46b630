"""Faults to plant in the core: each breaks one rule by one textual edit. mutations.py plants them and lets the
simulator look.

An edit that no longer applies fails loudly: the core has changed, and whoever changed it says here what breaking that
rule means. Of rules 13 and 15, and of moves: planted_elastic.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """`where` is "module:Class.method" or "module:function" under mq_broker.core, or under tests.simulation if it
    begins with "simulation."; `old` must occur in its source exactly once.

    `breaks` names the rule or trap of src/mq_broker/core/DESIGN.md.
    """

    name: str
    breaks: str
    where: str
    old: str
    new: str
    needs: tuple[str, ...] = ()
    """Faults without which it cannot be found: seeds that do not plan them are not counted."""
    profile: str = ""
    """The narrower plans under which it is hunted (profiles.py), if what shows it is rare under the seeds' own."""


REPLICATION = (
    # ------------------------------------------------------------------ rule 1
    Mutation(
        "a follower obeys a leader of a lower epoch",
        "rule 1",
        "replication.replica:Replica._append",
        "if message.leader_epoch < shared.epoch:",
        "if False:",
    ),
    Mutation(
        "a node epoch below one's own is obeyed",
        "rule 1",
        "replication.replica:Replica._node_read",
        "if self._put_back(version, state):",
        "if False:",
    ),
    # ------------------------------------------------------------------ rule 2
    Mutation(
        "a follower acknowledges what it has flushed, matched or not",
        "rule 2, traps 10 and 25",
        "replication.follower:Follower.turn_ended",
        "acknowledged = min(shared.log.flushed, self.matched)",
        "acknowledged = shared.log.flushed",
    ),
    Mutation(
        "a follower acknowledges before its disk has",
        "rule 2, trap 6",
        "replication.follower:Follower.turn_ended",
        "acknowledged = min(shared.log.flushed, self.matched)",
        "acknowledged = self.matched",
    ),
    Mutation(
        "what matched in an earlier epoch still counts",
        "rule 2, trap 10",
        "replication.follower:Follower.__init__",
        "self.matched = 0",
        "self.matched = shared.log.flushed",
    ),
    Mutation(
        "a follower takes entries after an entry of another epoch",
        "rule 2",
        "replication.follower:Follower.append",
        "if log.epoch_at(message.prev_index) != message.prev_epoch:",
        "if log.last_index < message.prev_index:",
    ),
    Mutation(
        "a follower keeps an entry that conflicts with the leader's",
        "rule 2",
        "replication.follower:Follower.append",
        "if log.epoch_at(entry.index) == entry.leader_epoch:",
        "if entry.index <= log.last_index:",
    ),
    Mutation(
        "a conflict cuts to the high watermark",
        "trap 8",
        "replication.follower:Follower._conflict",
        "hint = ",
        "log.truncate(shared.high_watermark); shared.emit(Truncate(shared.high_watermark)); hint = ",
    ),
    Mutation(
        "a follower's high watermark runs past what matched",
        "rule 2",
        "replication.follower:Follower.advance",
        "min(self._leader_high_watermark, self.matched, shared.log.flushed)",
        "min(self._leader_high_watermark, shared.log.flushed)",
        ("clean_stop",),
    ),
    Mutation(
        "a flush counts for an entry that was cut",
        "rule 2, trap 24",
        "replication.replica:Replica._flushed",
        "if log.epoch_at(index) != epoch:",
        "if index > log.last_index:",
    ),
    Mutation(
        "cutting the log leaves the flushed index above its end",
        "rule 2, trap 24",
        "replication.log:Log.truncate",
        "self.flushed = min(self.flushed, last_index)",
        "pass",
    ),
    # ------------------------------------------------------------------ rules 3 and 4
    Mutation(
        "a new leader commits an earlier epoch's entry by counting",
        "rules 3 and 4",
        "replication.leader:Leader._advance",
        "lowest < self.epoch_start or ",
        "",
    ),
    Mutation(
        "the high watermark is counted over the confirmed ISR alone",
        "rule 4, trap 11",
        "replication.membership:Membership.maximal",
        "for state in self._unsettled.values():",
        "for state in ():",
    ),
    Mutation(
        "a leader does not wait for its own disk",
        "rule 4, trap 6",
        "replication.leader:Leader._advance",
        "log.flushed if log_id == shared.me.log_id else 0",
        "log.last_index",
    ),
    Mutation(
        "an acknowledgement counts for whichever log of that broker is named",
        "rule 4, trap 3",
        "replication.leader:Leader._advance",
        "if progress is not None and progress.log_id == log_id else 0",
        "if progress is not None else 0",
    ),
    # ------------------------------------------------------------------ rule 5
    Mutation(
        "a shrink counts as soon as it is proposed",
        "rule 5, trap 5",
        "replication.membership:Membership._send",
        "self._in_flight = ",
        "self.confirmed = min(self.confirmed, proposal.isr, key=len); self._unsettled.clear(); self._in_flight = ",
    ),
    Mutation(
        "the ISR shrinks below the floor",
        "rule 5",
        "replication.membership:Membership._shrunk",
        "if len(isr) <= settings.min_insync_replicas:",
        "if len(isr) <= 1:",
    ),
    Mutation(
        "a follower joins without the epoch start",
        "rule 5, trap 10",
        "replication.membership:Membership._expanded",
        "max(shared.high_watermark, epoch_start)",
        "shared.high_watermark",
    ),
    Mutation(
        "a follower joins on what it holds, whatever the high watermark",
        "rule 5",
        "replication.membership:Membership._expanded",
        "progress.acknowledged >= max(shared.high_watermark, epoch_start)",
        "progress.acknowledged > 0",
    ),
    Mutation(
        "acknowledgements of a broker's former log count for its new one",
        "rule 5, traps 3 and 10",
        "replication.progress:Progress.hears",
        "self.matched = self.acknowledged = 0",
        "pass",
    ),
    Mutation(
        "a former log may speak after the new one",
        "rule 5",
        "replication.progress:Progress.hears",
        "ack.incarnation == self.incarnation and ack.sequence <= self._log_since",
        "False",
        ("damage", "rough_links"),
        profile="replaced-logs",
    ),
    # ------------------------------------------------------------------ rule 6
    Mutation(
        "a broker claims whose log is not named",
        "rule 6, trap 3",
        "replication.election:Election._next_state",
        "if shared.my_member in state.isr:",
        "if any(broker == me.broker for broker, _ in state.isr):",
    ),
    Mutation(
        "anybody claims",
        "rule 6, trap 7",
        "replication.election:Election._next_state",
        "else:\n        return None",
        "else:\n        isr = with_member(state.isr, me.broker, me.log_id)",
    ),
    Mutation(
        "a restarted leader is taken for the one that is named",
        "rule 6, trap 2",
        "replication.replica_state:Shared.is_registered",
        "self.live.get(name.broker) == name.incarnation",
        "name.broker in self.live",
    ),
    Mutation(
        "a leader resumes its epoch",
        "rule 6, trap 1",
        "replication.replica:Replica._dispatch",
        "self._election.reconsider()",
        "self._election.reconsider()\n"
        "            if shared.registered and not self.leading and shared.node "
        "and shared.node.state.leader == shared.my_name:\n"
        "                self._take_up(shared.node.state)",
    ),
    Mutation(
        "a claimant drops everybody else",
        "rule 6",
        "replication.election:Election._next_state",
        "isr = state.isr\n",
        "isr = (shared.my_member,)\n",
    ),
    Mutation(
        "a leader that may not lead stays named",
        "rule 6, trap 27",
        "replication.election:Election.tick",
        "if named and (proposal is None or self.stands_back):",
        "if named and self.stands_back:",
    ),
    # ------------------------------------------------------------------ rule 7
    Mutation(
        "an unanswered proposal is taken for one that failed",
        "rule 7, trap 4",
        "replication.membership:Membership.answered",
        "case CasOutcome.UNKNOWN:",
        "case CasOutcome.UNKNOWN:\n            self._unsettled.clear()",
        ("coordination_loses_answers",),
    ),
    Mutation(
        "the old version read back settles an unanswered write",
        "rule 7, trap 4",
        "replication.replica:Replica._node_read",
        "version <= known.version",
        "version < known.version",
        ("coordination_loses_answers",),
        profile="joiners",
    ),
    Mutation(
        "an unanswered proposal is taken for one that succeeded",
        "rule 7, trap 4",
        "replication.membership:Membership.answered",
        "case CasOutcome.UNKNOWN:",
        "case CasOutcome.UNKNOWN:\n            self.confirmed = proposal.isr\n            self._unsettled.clear()",
        ("coordination_loses_answers",),
    ),
    Mutation(
        "an unanswered claim is taken for one that succeeded",
        "rule 7, trap 4",
        "replication.election:Election.answered",
        "if answer.outcome is CasOutcome.DONE:",
        "if answer.outcome is CasOutcome.UNKNOWN:\n"
        "        answer = CasAnswer(answer.token, CasOutcome.DONE, shared.node.version + 1)\n"
        "    if answer.outcome is CasOutcome.DONE:",
        ("coordination_loses_answers",),
    ),
    Mutation(
        "a refused claim is taken for one that succeeded",
        "rule 7",
        "replication.election:Election.answered",
        "if answer.outcome is CasOutcome.DONE:",
        "if answer.outcome is CasOutcome.REFUSED:\n"
        "        answer = CasAnswer(answer.token, CasOutcome.DONE, shared.node.version + 1)\n"
        "    if answer.outcome is CasOutcome.DONE:",
    ),
    Mutation(
        "a leader that is named and does not lead waits for itself",
        "rule 6, trap 27",
        "replication.election:Election._leaderless",
        "{None, shared.my_name}",
        "{None}",
    ),
    # ------------------------------------------------------------------ rules 8 to 12
    Mutation(
        "who waits is forgotten when the role ends",
        "rule 8",
        "replication.leader:Leader.end",
        "for index in sorted(self._waiting):",
        "for index in ():",
    ),
    Mutation(
        "an outcome that is unknown is called a refusal",
        "rule 10",
        "replication.leader:Leader.end",
        "OutcomeUnknown(",
        "NotLeader(",
    ),
    Mutation(
        "an answer is given when the entry is written, not when it is committed",
        "rule 4",
        "replication.leader:Leader.flushed",
        "if wait is Wait.WRITTEN]:",
        "if True]:",
    ),
    Mutation(
        "acks=leader is answered before the leader's disk has the entry",
        "rule 2, trap 6",
        "replication.leader:Leader.flushed",
        "while self._written < shared.log.flushed:",
        "while self._written < shared.log.last_index:",
    ),
    Mutation(
        "a new leader does not look for UUIDs in its tail",
        "rule 12, trap 13",
        "replication.leader:Leader.__init__",
        "Overlay(shared.log.tail())",
        "Overlay([])",
    ),
    Mutation(
        "a UUID is not looked up in the uncommitted tail",
        "rule 12, trap 13",
        "machine.admission:_judge_batch",
        "index = overlay.uuid_index(propose.uuid)",
        "index = None",
    ),
    Mutation(
        "a UUID is not looked up in what is committed",
        "rule 12, trap 13",
        "machine.admission:_judge_batch",
        "placed = machine.uuids.get(propose.uuid)",
        "placed = None",
    ),
    Mutation(
        "the tail's UUIDs stay when the disk refuses their entries",
        "rule 12",
        "replication.leader:Leader.disk_refused",
        "self._overlay = Overlay(log.tail())",
        "pass",
        ("disk_full",),
        profile="full-disks",
    ),
    Mutation(
        "a batch goes in before the one that it follows",
        "surface: order of a producer",
        "machine.admission:_judge_batch",
        "if after and after not in machine.uuids",
        "if False and after not in machine.uuids",
    ),
    Mutation(
        "known records of a batch are written again",
        "rule 12, trap 13",
        "machine.admission:_judge_batch",
        "if verdict is not None:",
        "if False:",
    ),
    Mutation(
        "records of a batch in the tail are written again",
        "rule 12",
        "machine.admission:_judge_records",
        "return None if index is None else WaitFor(index)",
        "return None",
    ),
    Mutation(
        "a deleted group's cursor stays",
        "surface: groups",
        "machine.machine:PartitionMachine._change_group",
        "self.cursors.pop(change.group, None)",
        "pass",
    ),
    Mutation(
        "a group that is deleted takes the others with it",
        "surface: groups",
        "machine.machine:PartitionMachine._change_group",
        "self.cursors.pop(change.group, None)",
        "self.cursors.clear()",
    ),
    Mutation(
        "a snapshot leaves out where groups are",
        "rule 13, surface: groups",
        "machine.machine:PartitionMachine.state",
        "tuple(self.cursors.items()),",
        "(),",
        ("retention",),
    ),
    Mutation(
        "a micro-batch is decided while another decision waits in the tail",
        "exactly-once: decide",
        "machine.admission:_judge_decide",
        "pending = overlay.key_index(decide.key)",
        "pending = None",
    ),
    Mutation(
        "an abort forgets to fence the key at its coordinator",
        "exactly-once: abort",
        "machine.machine:PartitionMachine._coordinate",
        "replace(known, aborted=True,",
        "replace(known,",
        ("aborts",),
    ),
    Mutation(
        "anybody who knows a key decides under it",
        "exactly-once: owners",
        "machine.admission:_judge_decide",
        'if known.owner not in ("", decide.owner) and not propose.for_anybody:',
        "if False:",
        ("thefts",),
    ),
    Mutation(
        "a later decision forgets whose its key is",
        "exactly-once: owners",
        "machine.machine:PartitionMachine._decide",
        'owner = (known.owner if known is not None else "") or decide.owner',
        'owner = "" if known is not None else decide.owner',
        ("thefts",),
    ),
    Mutation(
        "a key that is given stays whose it was",
        "exactly-once: owners",
        "machine.machine:PartitionMachine._coordinate",
        "replace(known, owner=owner,",
        "replace(known,",
        ("gives",),
    ),
    Mutation(
        "a decision does not wait for the give before it",
        "exactly-once: owners, rule 12",
        "machine.overlay:_keys_of",
        "case Give(key=key) | Abort(key=key)",
        "case Give():\n            return ()\n        case Abort(key=key)",
        ("gives",),
    ),
    Mutation(
        "an abort forgets to fence the key where it stages",
        "exactly-once: abort",
        "machine.machine:PartitionMachine._fence",
        "self.fenced[fence.key] = None",
        "pass",
        ("aborts",),
    ),
    Mutation(
        "an abort discards what is decided and not yet published",
        "exactly-once: abort",
        "machine.machine:PartitionMachine.undecided",
        "and uuid not in kept",
        "",
        ("aborts",),
    ),
    Mutation(
        "what is staged while its key is being fenced goes in behind the fence",
        "exactly-once: abort, rule 12",
        "machine.admission:_judge_batch",
        "if fence is not None:",
        "if False:",
        ("aborts",),
    ),
    Mutation(
        "a snapshot leaves out which keys are fenced",
        "exactly-once: abort, rule 13",
        "machine.machine:PartitionMachine.state",
        "tuple(self.fenced),",
        "(),",
        ("aborts",),
    ),
    Mutation(
        "a decision is not taken up by the next leader",
        "exactly-once: publish",
        "replication.leader:Leader._advance",
        "if not known.finished:",
        "if False:",
    ),
    Mutation(
        "a leader deposed unawares refuses for good what it lacks",
        "rule 10, trap 1",
        "replication.leader:Leader.propose",
        "case Answer(of_absence=True) if not confirmed:",
        "case Answer(of_absence=True) if False:",
        ("isolate_from_all",),
        profile="deposed",
    ),
    Mutation(
        "requests are judged before the end of the log is known",
        "rule 3",
        "replication.leader:Leader.propose",
        "if not self.ready and request.uuid == NO_UUID:",
        "if False:",
    ),
    Mutation(
        "a missing node is an order to delete",
        "trap 18",
        "replication.replica:Replica._node_read",
        "if state is None:",
        "if state is None:\n"
        "        shared.log.truncate(shared.log.applied)\n"
        "        shared.emit(Truncate(shared.log.applied))",
        ("coordination_forgets",),
    ),
    # ------------------------------------------------------------------ rule 14 and traps
    Mutation(
        "a leader writes another entry in the place of one that it sent",
        "trap 17",
        "replication.leader:Leader.disk_refused",
        "self._sent_last >= event.first_index or ",
        "",
        ("disk_full",),
    ),
    Mutation(
        "a follower is sent what follows entries that the disk refused",
        "trap 17",
        "replication.progress:Progress.log_was_cut",
        "if self.next_index > last_index + 1:",
        "if False:",
        ("disk_full",),
        profile="liar",
    ),
    Mutation(
        "the last members leave the ISR at a clean stop",
        "rule 14, trap 30",
        "replication.standing_back:StandingBack._resigned",
        "len(isr) > self._shared.settings.min_insync_replicas",
        "True",
        ("clean_stop",),
    ),
    Mutation(
        "a replica goes on with a log that was found damaged",
        "traps 16 and 26",
        "replication.replica:Replica._log_replaced",
        "shared.emit(Reopen(event.reason))",
        "return",
        ("damage",),
    ),
    Mutation(
        "a leader refused by the node waits for a version that never comes",
        "rule 7",
        "replication.membership:Membership.answered",
        "if shared.node is not None and shared.node.version > expected:",
        "if False:",
        ("coordination_loses_answers",),
        profile="unanswered",
    ),
    Mutation(
        "offsets are given to control entries",
        "offsets dense",
        "machine.machine:PartitionMachine._stage",
        "self.staged[entry.uuid] =",
        "self.next_offset += 1; self.staged[entry.uuid] =",
    ),
)
