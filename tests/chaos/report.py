"""What a run has to say: a table for the terminal, a row for RESULTS.md. Counts and measures; judges nothing."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.chaos.nemesis import Applied
from tests.chaos.run import Outcome
from tests.history.recording import read

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
WINDOW_NS: Final = 10_000_000_000
"""A silence that begins so long after a fault has healed is not its doing, and none is counted beyond the next one's
strike."""


def silences(outcome: Outcome) -> dict[tuple[str, str], list[float]]:
    """Of each fault that held alone, by kind and victims: the longest time in which some partition acknowledged
    nothing, in ms."""
    begun: dict[tuple[str, int], tuple[str, int]] = {}
    times: dict[tuple[str, int], list[int]] = defaultdict(list)
    for line in read(outcome.history):
        if line["op"] == "send" and line["state"] == "invoke":
            begun[line["process"], line["id"]] = line["topic"], line["partition"]
        elif line["op"] == "send" and line["state"] == "ok":
            topic, partition = begun[line["process"], line["id"]]
            times[topic, line.get("partition", partition)].append(line["at"])
    faults = sorted(outcome.applied, key=lambda fault: fault.began)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    last = max((acknowledged[-1] for acknowledged in times.values()), default=0)
    for at, fault in enumerate(faults):
        if not fault.alone:
            continue
        until = min(faults[at + 1].began, last) if at + 1 < len(faults) else last
        longest = max((_longest(acknowledged, fault, until) for acknowledged in times.values()), default=0)
        found[fault.kind, fault.whom].append(longest / 1e6)
    return found


def _longest(times: list[int], fault: Applied, until: int) -> int:
    """The longest stretch without any of `times` that begins while the fault holds or soon after, up to `until` at
    most."""
    here = [fault.began, *times[bisect_right(times, fault.began) : bisect_right(times, until)], until]
    return max((b - a for a, b in pairwise(here) if a < fault.healed + WINDOW_NS), default=0)


def story(outcome: Outcome) -> str:
    """For the terminal: faults, operations, silences, and what was found."""
    s, operations = outcome.settings, outcome.verdict.operations
    quiet = silences(outcome)
    applied: dict[tuple[str, str], list[float]] = defaultdict(list)
    for fault in outcome.applied:
        applied[fault.kind, fault.whom].append((fault.healed - fault.began) / 1e6)
    lines = [
        f"durability {s.durability}, {s.brokers} brokers, {s.topics} topics of {s.partitions} partitions, "
        f"session {s.session_ms} ms, seed {s.seed}, {s.seconds / 60:.1f} min",
        "",
        f"{'nemesis':<16} {'victims':<10} {'times':>5} {'held, longest ms':>17} {'silence, median ms':>19} "
        f"{'longest ms':>11}",
    ]
    for key in sorted(applied):
        measured = quiet.get(key, [])
        median, longest = (f"{statistics.median(measured):,.0f}", f"{max(measured):,.0f}") if measured else ("-", "-")
        lines.append(
            f"{key[0]:<16} {key[1]:<10} {len(applied[key]):>5} {max(applied[key]):>17,.0f} {median:>19} {longest:>11}"
        )
    lines.append(
        f"{len(outcome.applied)} faults" + (f"; left out: {', '.join(outcome.left_out)}" if outcome.left_out else "")
    )
    if outcome.elastic:
        lines.append("by command: " + ", ".join(f"{count} {what}" for what, count in sorted(outcome.elastic.items())))
    if outcome.ended:
        lines.append(
            f"{outcome.ended} times a broker ended because ZooKeeper did not answer while it started; started again"
        )
    for op in ("send", "txn"):
        told = ", ".join(f"{operations[f'{op} {state}']:,} {state}" for state in ("ok", "fail", "unknown"))
        lines.append(f"{op}: {operations[f'{op} invoke']:,} begun, {told}")
    lines.append(
        f"{outcome.records:,} records at the end; {operations['poll']:,} readings, {operations['trimmed']:,} times "
        f"overtaken by retention; {operations['deliver']:,} deliveries to the group"
    )
    told = ", ".join(f"{operations[f'job {state}']:,} {state}" for state in ("ok", "lost", "unknown"))
    lines.append(
        f"jobs: {operations['job begin']:,} begun, {told}; {operations['letter']:,} dead letters, "
        f"{operations['output']:,} outputs"
    )
    lines += ["", f"anomalies: {outcome.verdict.counts.total()}", outcome.verdict.story()]
    lines += [f"PROBLEM: {problem}" for problem in outcome.problems]
    return "\n".join(lines)


def save(outcome: Outcome, version: str, command: str) -> None:
    """One more row in RESULTS.md."""
    s, operations = outcome.settings, outcome.verdict.operations
    quiet = silences(outcome)
    failover = [
        ms
        for (kind, whom), found in quiet.items()
        if kind in ("kill", "pause-long") and whom == "leader"
        for ms in found
    ]
    ok, fail = operations["send ok"], operations["send fail"]
    cells = [
        datetime.now(UTC).strftime("%Y-%m-%d"),
        version,
        s.durability,
        f"{s.brokers}",
        f"{s.seconds / 60:.1f}",
        f"{len(outcome.applied)}",
        f"{ok:,} / {fail:,} / {operations['send invoke'] - ok - fail:,}",
        f"{operations['txn ok']:,}",
        f"{operations['job ok']:,} / {operations['job lost']:,} / {operations['job unknown']:,}",
        f"{operations['letter']:,} / {operations['output']:,}",
        f"{outcome.records:,}",
        f"{statistics.median(failover):,.0f} / {max(failover):,.0f} ({len(failover)})" if failover else "-",
        f"{outcome.verdict.counts.total()}",
        f"{len(outcome.problems)}",
        f"`{command}`",
    ]
    with RESULTS.open("a") as file:
        file.write(f"| {' | '.join(cells)} |\n")
