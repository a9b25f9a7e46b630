"""QUEUES.md: what was measured, and kept in QUEUES.json, so that a run of some rows leaves the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.bench.measure import Readings, spread
from benchmarks.bench.report import spread_text
from benchmarks.queues.table import ROWS, TITLES

OURS: Final = "TritonMQ"
HIGHER: Final = "/s"
AIMS: Final[Mapping[tuple[str, str], tuple[str, float]]] = {
    ("batched", "records/s"): (">=", 100_000),
    ("one-by-one", "records/s"): (">=", 60_000),
    ("jobs", "jobs/s"): (">=", 5_000),
    ("jobs", "p99 ms"): ("<=", 50),
    ("published", "p50 ms"): ("<=", 8),
    ("published", "p99 ms"): ("<=", 20),
    ("stuck", "MB more"): ("<=", 10),
    ("dead-letters", "letters/s"): (">=", 10_000),
    ("urgent", "slowest ms"): ("<=", 100),
    ("scheduled", "p99 ms"): ("<=", 50),
}
COLUMNS: Final = ("who", "what", "median (min to max)", "times as fast", "aim", "came twice")
NOTES: Final = (
    "Each row checks that every record was received and settled exactly once, by its id and by what the brokers say. A "
    "run in which a record was lost, settled twice or received again without a reason ends with an error. “Came "
    "twice” counts receipts beyond those that the row itself asks for.",
    "Three brokers, 3 replicas, 6 partitions, 100 B; `fsync`, or `os` where it is named. A row's contestants ran in "
    "turn, round after round. “Times as fast” is TritonMQ against that one, the median of the rounds' own ratios.",
    "RabbitMQ: quorum queues, which sync a majority: beside `fsync`. NATS JetStream: work-queue streams of 3 replicas, "
    "whose majority has a record in its page cache: beside `os`. Both three nodes, six queues, asyncio clients, each "
    "record acknowledged by itself. Their clients do not wait for what becomes of an acknowledgement (JetStream's do "
    "in the row of jobs), so their time ends when the last record came, ours when it is committed. They have "
    "a tenth of the records of most rows, since they take so much longer.",
    "Kafka share groups: brokers as they ship, `acks=all`, the state's topic with 3 replicas: beside `os`. The client "
    "is confluent-kafka's `ShareConsumer`, a preview, written in C. Six topics of one partition. A member joins its "
    "group for seconds, so its time runs from the first record. In the row of jobs it is handed whole batches of the "
    "log, and commits each record before it looks at the next.",
    "Time runs from the word to begin, connecting included, to the last committed outcome. The p99 of jobs is of the "
    "time from asking for a record until its outcome is committed.",
    "The machine has two cores, and other people worked on it. The load beside each row was measured before and after "
    "it. Above the number of cores it slows most whoever needs most processes and wake-ups.",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The readings of a row by contestant; `load` before and after; `run` says when and how much."""

    row: str
    run: str
    load: str
    readings: dict[str, list[dict[str, float]]]
    left_out: dict[str, str]


def read(path: Path) -> dict[str, Measured]:
    if not path.exists():
        return {}
    return {each["row"]: Measured(**each) for each in json.loads(path.read_text())["rows"]}


def write(path: Path, rows: Iterable[Measured], facts: Mapping[str, str]) -> None:
    kept = {"machine": dict(facts), "rows": [asdict(each) for each in rows]}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def title(row: str) -> str:
    return TITLES[row.removesuffix("-os")] + (", os" if row.endswith("-os") else "")


def lines_of(measured: Measured) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    ours = measured.readings.get(OURS, [])
    for who, readings in measured.readings.items():
        for metric in (each for each in readings[0] if each != "again"):
            values = spread_text(spread([each[metric] for each in readings]))
            twice = f"{sum(each['again'] for each in readings):,.0f}"
            times = "" if who == OURS or metric not in ours[0] else _times(ours, readings, metric)
            found.append((who, metric, values, times, _aim(measured.row, who, metric, readings), twice))
    return found


def _times(ours: Sequence[Readings], theirs: Sequence[Readings], metric: str) -> str:
    ratios = [mine[metric] / other[metric] for mine, other in zip(ours, theirs, strict=True)]
    if not metric.endswith(HIGHER):
        ratios = [1 / each for each in ratios]
    return f"{spread(ratios).median:.2f}"


def _aim(row: str, who: str, metric: str, readings: Sequence[Readings]) -> str:
    if who != OURS or (row, metric) not in AIMS:
        return ""
    sign, bound = AIMS[row, metric]
    median = spread([each[metric] for each in readings]).median
    reached = median >= bound if sign == ">=" else median <= bound
    return f"{sign.replace('>=', '≥').replace('<=', '≤')} {bound:,.0f}: {'reached' if reached else 'missed'}"


def markdown(rows: Mapping[str, Measured], facts: Mapping[str, str]) -> str:
    lines = ["# Work queues", "", "Made by `make bench-queues`.", "", *(f"- {note}" for note in NOTES)]
    for name in ROWS:
        if name in rows:
            measured = rows[name]
            lines += ["", f"## {title(name)}", "", f"`--rows {name}`. {measured.run}; load {measured.load}.", ""]
            lines += [f"Without {who}: {why}." for who, why in measured.left_out.items()]
            lines += [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---|---:|"]
            lines += [f"| {' | '.join(cells)} |" for cells in lines_of(measured)]
    lines += [
        "",
        "## Machine of the latest rows",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"
