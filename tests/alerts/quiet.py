"""`python -m tests.alerts.quiet --minutes 60 --table tests/ALERTS.md`: what `make chaos` runs, without a fault, watched
by a real Prometheus with the rules as they are. Ends with 1 if an alert fires, or if the run is not clean."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.alerts.table import Seen, page, quiet_row, quiet_rows, told
from tests.chaos.__main__ import version
from tests.chaos.nemesis import Ground
from tests.chaos.report import story
from tests.chaos.run import Run, Settings
from tests.deploy.monitoring import DIRECTORY, rules
from tests.deploy.prometheus import Prometheus, until
from tests.history.recording import Recorder

SCRAPE_S: Final = 15
SCRAPED_MIN: Final = 0.9
"""Of the scrapes that there should be, so many must have succeeded: who did not look saw no alert."""

RATE: Final = 10.0
"""Operations a second of each thread that writes: of an hour there must not be more than the judge can hold."""

_QUANTILE: Final = "histogram_quantile(0.99, sum by (instance, le) (rate({bucket}[5m])))"
_HIGHEST: Final = "max(max_over_time(" + _QUANTILE + "[{past}:15s]))"


class QuietRun(Run):
    """Owns what a run owns, and a Prometheus for as long as there would be faults. `seen` is there at the end."""

    seen: Seen

    def _storm(self, ground: Ground, recorder: Recorder) -> None:
        """No faults."""
        targets = [broker.http for broker in ground.cluster.brokers.values()]
        directory = self.settings.directory / "prometheus"
        directory.mkdir()
        prometheus = Prometheus(directory, targets, (DIRECTORY / "alerts.yml").read_text(), every_s=SCRAPE_S)
        try:
            until(lambda: len(_ask(prometheus, "up == 1")) == len(targets), "not all brokers are scraped")
            began, load = time.monotonic(), []
            while (passed_s := time.monotonic() - began) < self.settings.seconds:
                load.append(os.getloadavg()[0])
                firing = ", ".join(sorted(prometheus.firing())) or "nothing"
                print(f"{passed_s / 60:.1f} min, load {load[-1]:.1f}, firing: {firing}", flush=True)
                self._hear(ground.cluster.supervise())
                # A run of so many minutes: nothing is waited for but its end
                time.sleep(min(SCRAPE_S, max(0.0, self.settings.seconds - passed_s)))
            self.seen = _seen(prometheus, time.monotonic() - began, load, len(targets))
        finally:
            prometheus.end()


def _ask(prometheus: Prometheus, query: str) -> list[Any]:
    found: list[Any] = prometheus.ask("query", query=query)["result"]
    return found


def _seen(prometheus: Prometheus, seconds: float, load: list[float], brokers: int) -> Seen:
    """What Prometheus knows at the end. Raises `AssertionError` if it did not look."""
    health = {rule["name"]: rule["health"] for rule in prometheus.ask("rules")["groups"][0]["rules"]}
    assert health == dict.fromkeys(rules(), "ok"), f"rules that Prometheus cannot evaluate: {health}"
    past = f"{seconds:.0f}s"
    scrapes = _numbers(prometheus, f'sum_over_time(up{{job="tritonmq"}}[{past}])', "instance")
    wanted = SCRAPED_MIN * seconds / SCRAPE_S
    assert len(scrapes) == brokers, f"of {brokers} brokers {len(scrapes)} were scraped"
    assert min(scrapes.values()) >= wanted, f"brokers were scraped {scrapes} times of {wanted:.0f} at least"
    states = {
        state: _numbers(
            prometheus, f'sum by (alertname) (count_over_time(ALERTS{{alertstate="{state}"}}[{past}]))', "alertname"
        )
        for state in ("pending", "firing")
    }
    late, sync = (
        max(_numbers(prometheus, _HIGHEST.format(bucket=bucket, past=past), "").values())
        for bucket in ("tritonmq_loop_lag_seconds_bucket", 'tritonmq_fsync_seconds_bucket{kind="commit"}')
    )
    return Seen(
        minutes=round(seconds / 60, 1),
        cores=os.cpu_count() or 0,
        load=load,
        late_s=late,
        sync_s=sync,
        pending_s={alert: count * SCRAPE_S for alert, count in states["pending"].items()},
        fired=sorted(states["firing"]),
    )


def _numbers(prometheus: Prometheus, query: str, label: str) -> dict[str, float]:
    """By that label of what is found."""
    return {each["metric"].get(label, ""): float(each["value"][1]) for each in _ask(prometheus, query)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.alerts.quiet", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=RATE, help="operations a second of each thread that writes")
    parser.add_argument("--session-ms", type=int, default=10_000, help="brokers' sessions with ZooKeeper")
    parser.add_argument("--table", type=Path, help="add a row to this page")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tritonmq-quiet-"))
    print(f"in {directory}", flush=True)
    run = QuietRun(
        Settings(
            directory / "run", seed=0, seconds=given.minutes * 60, rate=given.rate, session_ms=given.session_ms,
            nemeses=(), http=True,
        )
    )  # fmt: skip
    outcome = run.go()
    print(story(outcome), flush=True)
    row = quiet_row(run.seen, outcome.records, datetime.now(UTC).strftime("%Y-%m-%d"), version())
    print(row, flush=True)
    if given.table:
        text = given.table.read_text()
        given.table.write_text(page(told(text), [*quiet_rows(text), row]))
    if run.seen.fired or not outcome.clean:
        print(f"FAILED: fired {run.seen.fired}, problems {outcome.problems}; kept in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
