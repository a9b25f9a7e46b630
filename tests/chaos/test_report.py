"""What a run reports: silences measured from its history, and a row for each run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.nemesis import Applied
from tests.chaos.run import Outcome, Settings

MS = 1_000_000


def outcome(path: Path, acknowledged: dict[int, list[int]], faults: list[Applied]) -> Outcome:
    """`acknowledged`: by partition, milliseconds."""
    lines = []
    for partition, times in acknowledged.items():
        process = f"p{partition}"
        for number, at in enumerate(times):
            lines.append({"at": 0, "process": process, "op": "send", "state": "invoke", "id": number, "topic": "t"})
            lines[-1] |= {"partition": partition, "values": [f"{process}-{number}"]}
            lines.append(
                {"at": at * MS, "process": process, "op": "send", "state": "ok", "id": number, "offsets": [number]}
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Outcome(Settings(path.parent, seed=7, seconds=60), path, applied=faults)


def fault(kind: str, began: int, healed: int, *, alone: bool = True) -> Applied:
    return Applied(kind, "leader", f"{kind} of [1]", began * MS, healed * MS, alone)


def test_a_silence_is_the_longest_of_any_partition_until_the_next_fault_strikes(tmp_path: Path) -> None:
    acknowledged = {0: [90, 110, 400, 410, 2_000, 2_010], 1: [95, 150, 300, 420, 1_990, 2_500]}
    faults = [fault("kill", 100, 200), fault("stop", 1_500, 1_600)]
    assert report.silences(outcome(tmp_path / "h", acknowledged, faults)) == {
        ("kill", "leader"): [1_090.0],  # 410 to 1,500: what follows is the other fault's
        ("stop", "leader"): [510.0],  # 1,990 to 2,500: what was silent before it struck counts from then on
    }


def test_a_partition_that_never_answers_again_is_silent_until_the_others_end(tmp_path: Path) -> None:
    found = report.silences(outcome(tmp_path / "h", {0: [90, 3_000], 1: [95]}, [fault("kill", 100, 200)]))
    assert found == {("kill", "leader"): [2_900.0]}


def test_faults_that_overlapped_are_not_blamed_for_a_silence(tmp_path: Path) -> None:
    together = [fault("kill", 100, 200, alone=False), fault("slow", 100, 200, alone=False)]
    assert report.silences(outcome(tmp_path / "h", {0: [90, 500]}, together)) == {}


def test_a_row_has_a_cell_for_each_column_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = report.RESULTS.read_text()
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.md")
    found = outcome(tmp_path / "h", {0: [90, 110, 400]}, [fault("kill", 100, 200)])
    report.save(found, "abc1234", "python -m tests.chaos --seed 7")
    row = report.RESULTS.read_text()
    *_, head = (line for line in table.splitlines() if line.startswith("| date"))
    assert row.count("|") == head.count("|")
    assert "| fsync | 3 | 1.0 | 1 |" in row
    assert "| 290 / 290 (1) |" in row
    assert "no anomaly" in report.story(found)
