"""Faults to plant in what a recovery of a partition does, and in what is on a disk that was replaced."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

RECOVERIES = (
    Fault(
        "a recovery leaves leases with their members",
        "core.work.state:WorkState.recover",
        "self._return(tuple((low, high) for low, high, _ in self.lent), Return(()))",
        "pass",
        ("queue", "lose logs"),
    ),
    Fault(
        "a recovery charges what members had",
        "core.work.state:WorkState.recover",
        "Return(())",
        "Return((), charged=True)",
        ("queue", "lose logs"),
    ),
    Fault(
        "offsets that a recovery left out are nobody's and not settled",
        "core.work.state:WorkGroups.skip",
        "state.skip(first, end)",
        "pass",
        ("queue", "lose logs"),
    ),
    Fault(
        "a group that begins after a recovery waits for the offsets that were lost",
        "core.work.state:WorkGroups.apply",
        "for low, high in step.lost:",
        "for low, high in ():",
        ("queue", "lose logs"),
    ),
    Fault(
        "a group whose state was lost begins at the end of the log",
        "core.work.state:WorkGroups.apply",
        "base = min(max(step.offset, start), end)",
        "base = end",
        ("queue", "lose logs"),
    ),
    Fault(
        "leases are named without their epoch",
        "core.work.state:WorkGroups.apply",
        "LeaseId(leader_epoch, index, number)",
        "LeaseId(0, index, number)",
        ("queue", "lose logs"),
    ),
    Fault(
        "what a queue group has published is not known by its number",
        "core.machine.admission:_judge_publish",
        "if publish.batch_id <= machine.published.get(publish.key, -1):",
        "if not is_of_queue(publish.key.query_id) and publish.batch_id <= machine.published.get(publish.key, -1):",
        ("queue", "lose logs"),
    ),
    Fault(
        "dead letters that their topic lost are not staged again",
        "broker.queues.letters.dead_letters:DeadLetters.stage_again",
        "if outgoing is None or outgoing.reason is Reason.OUTPUT:",
        "if True:",
        ("queue", "lose logs"),
    ),
    Fault(
        "a partition is recovered though a log is left that is in sync",
        "broker.administration.recovery:choose",
        "if not force:",
        "if False:",
        ("queue", "lose logs"),
    ),
    Fault(
        "a partition is recovered from its shortest log",
        "broker.administration.recovery:choose",
        "best = max(sorted(candidates)",
        "best = min(sorted(candidates)",
        ("queue", "lose logs"),
    ),
    Fault(
        "offsets that lost records may have had are given again",
        "broker.administration.recovery:choose",
        "floor = next_life(floor)",
        "floor = 0",
        ("queue", "lose logs"),
    ),
    Fault(
        "a log that is made on an empty disk is taken for the one that was there",
        "storage.opening.opening:_new_log",
        "LogIdentity(new_log_id(), boot,",
        "LogIdentity(f'{place.topic_id}-{place.partition}', boot,",
        ("queue", "replace disk"),
    ),
    Fault(
        "a log that was found damaged goes on under its name",
        "storage.opening.opening:_open_files",
        "identity = _repair(directory, place, another, damage, files)",
        "identity = _repair(directory, place, identity, damage, files)",
        ("queue", "lose logs"),
    ),
)
