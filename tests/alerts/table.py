"""What `make alerts` writes: tests/ALERTS.md. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.alerts.causes import ACTS
from tests.alerts.world import FACTOR
from tests.deploy.monitoring import rules

HEAD: Final = f"""# Alerts, each caused once

`make alerts` writes this page. It runs three brokers, one with a small disk, one with a slow one, and a real Prometheus
that scrapes all of them each second. It causes each alert of `deploy/monitoring/alerts.yml` and waits until it fires.
[On call](../docs/on-call.md) says what to do then.

The rules are the same with shorter times: what they wait, what they look back on and ages in seconds are divided by
{FACTOR}, so ten minutes are {600 // FACTOR} seconds. Shares, percentiles and what one sync may last are as they are.
*Seconds* are from the beginning of the cause, in one run of each cause on a shared machine. *Waits* is the rule's own
`for`, not shortened. Alerts of one cause are waited for in turn, so a later one may have fired before.

| alert | severity | waits | caused by | seconds |
|---|---|---|---|---|
"""

QUIET: Final = """
## None while nothing is wrong

`make quiet MINUTES=60` runs the brokers and the clients of `make chaos` without a fault: producers, readers, a group, a
transactor and members of two work queues. A real Prometheus scrapes the brokers every 15 s and has the rules of
`deploy/monitoring/alerts.yml` as they are. The run demands that no alert fires. It adds a row here.

*Pending*: conditions that held, but not for as long as the rule waits, and for how many seconds they were seen.
*Late* and *sync* are the highest 99th percentiles of five minutes on any broker, of `LoopLate` and `FsyncSlow`. Both
fire above 250 ms. *Load* is the machine's, and counts what else ran there.

| date | version | minutes | records | cores | load, mean / highest | late | sync | pending | fired |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(took_s: Mapping[str, float], quiet: Iterable[str] = ()) -> str:
    """The whole page. `took_s`: of those that fired. `quiet`: the rows of runs without faults."""
    said = {alert: act.said for act in ACTS for alert in act.alerts}
    lines = []
    for alert, rule in rules().items():
        if alert in took_s:
            caused = f"{said[alert]} | {took_s[alert]:.0f}"
        else:
            caused = f"**it did not fire**: {said[alert]} | -"
        lines.append(f"| `{alert}` | {rule['labels']['severity']} | {rule.get('for', '-')} | {caused} |\n")
    return HEAD + "".join(lines) + QUIET + "".join(quiet)


def told(text: str) -> dict[str, float]:
    """The seconds on a page, of those that fired."""
    caused, _, _ = text.partition(QUIET)
    found = re.findall(r"^\| `(\w+)` \| .+ \| (\d+) \|$", caused, re.MULTILINE)
    return {alert: float(seconds) for alert, seconds in found}


def quiet_rows(text: str) -> list[str]:
    """The rows of runs without faults on a page."""
    return text.partition(QUIET)[2].splitlines(keepends=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run without faults saw. `pending_s`: by alert, for how long its condition was seen to hold."""

    minutes: float
    cores: int
    load: Sequence[float]
    late_s: float
    sync_s: float
    pending_s: Mapping[str, float]
    fired: Sequence[str]


def quiet_row(seen: Seen, records: int, date: str, version: str) -> str:
    """Its line on the page. `records`: there were in the end."""
    pending = ", ".join(f"`{alert}` {seconds:.0f} s" for alert, seconds in sorted(seen.pending_s.items()))
    fired = ", ".join(f"**`{alert}`**" for alert in sorted(seen.fired))
    load = f"{statistics.mean(seen.load):.1f} / {max(seen.load):.1f}"
    cells = [date, version, f"{seen.minutes:g}", f"{records:,}", str(seen.cores), load]
    cells += [f"{seen.late_s * 1000:.0f} ms", f"{seen.sync_s * 1000:.0f} ms", pending or "none", fired or "none"]
    return f"| {' | '.join(cells)} |\n"
