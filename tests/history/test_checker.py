"""Histories written by hand: each anomaly is found, alone, with its records; what is legitimate is not taken for
one."""

from __future__ import annotations

import random

import pytest

from tests.history.checker import judge
from tests.history.recording import HistoryError, Line
from tests.history.written import History, written

ANOMALIES = {
    "lost write": ("lost-write", "p: a @0; p: b @1; p: c @2; final: a _ c"),
    "lost write without a last reading": ("lost-write", "p: a @0; p: b @1; poll r 1: b"),
    "lost write of a transaction": ("lost-write", "txn q/1: a b ok; final: a"),
    "lost write that was read before": ("lost-write", "p: a @0; p: b @1; poll r 0: a; final: _ b"),
    "unseen": ("unseen", "p: a @0; p: b @1; final: a"),
    "vanished": ("vanished", "p: a ?; poll r 0: a; final:"),
    "aborted read": ("aborted-read", "p: a !; final: a"),
    "unexpected": ("unexpected", "p: a @0; final: a b"),
    "duplicate": ("duplicate", "p: a ?; final: a a"),
    "inconsistent offsets": ("inconsistent-offsets", "p: a ?; q: b ?; poll r 0: a; final: b"),
    "hole": ("hole", "p: a @0; p: b @2; final: a _ b"),
    "torn batch": ("torn", "p: a b ?; final: a"),
    "torn transaction": ("torn", "txn q/1: a b; final: b"),
    "poll skip": ("poll-skip", "p: a @0; p: b @1; p: c @2; poll r 0: a; poll r 2: c; final: a b c"),
    "skip within a poll": ("int-poll-skip", "p: a @0; p: b @1; p: c @2; poll r 0,2: a c; final: a b c"),
    "nonmonotonic poll": ("nonmonotonic-poll", "p: a @0; p: b @1; poll r 0: a b; poll r 1: b; final: a b"),
    "going back within a poll": ("int-nonmonotonic-poll", "p: a @0; poll r 0,0: a a; final: a"),
    "nonmonotonic send": ("nonmonotonic-send", "p: a; p: b; 1 @1; 2 @0; final: b a"),
    "nonmonotonic send whose outcome is unknown": ("nonmonotonic-send", "p: a ?; p: b @0; final: b a"),
    "a batch out of order": ("int-nonmonotonic-send", "p: a b @1,0; final: b a"),
    "realtime order": ("realtime-order", "p: a @1; q: b @0; final: b a"),
    "queue lost": ("queue-lost", "p: a @0; p: b @1; deliver c 0: a; drained; final: a b"),
    "queue lost without a last reading": ("queue-lost", "p: a @0; drained; poll r 0: a"),
    "dropped where nothing may be": ("dropped", "p: a b @0; final 1: b"),
    "told of a trim that was none": ("false-trim", "retention 1; p: a b c @0; trimmed r 2; poll r 2: c; final 1: b c"),
    "poll skip beyond what was told": ("poll-skip", "retention 1; p: a b c @0; trimmed r 1; poll r 2: c; final 1: b c"),
    "queue unexpected": ("queue-unexpected", "deliver c 0: a"),
    "queue duplicated": ("queue-duplicated", "p: a @0; deliver c 0: a; settle c 1; deliver d 0: a; final: a"),
}
"""What is wrong, and a history of it."""


@pytest.mark.parametrize("case", ANOMALIES)
def test_an_anomaly_is_found_once_and_nothing_else_with_it(case: str) -> None:
    kind, script = ANOMALIES[case]
    verdict = written(script).judged()
    assert verdict.counts == {kind: 1}, verdict.story()
    [anomaly] = verdict.anomalies[kind]
    assert anomaly.records, "the offending records are named"


CLEAN = {
    "unknown and it happened": "p: a ?; p: b c; txn q/1: d e unknown; final: a b c e d",
    "unknown and it did not": "p: a ?; p: b c; txn q/1: d e unknown; final:",
    "an attempt that failed before one that did not": (
        "txn q/1: a b fail; txn q/1: a b ok; txn q/2: c fail; txn q/2: c; final: a b c"
    ),
    "a late unknown behind those of another process": "p: a ?; q: b @0; final: b a",
    "an unknown in its turn": "p: a @0; p: b ?; p: never ?; p: c @2; final: a b c",
    "side by side in either order": "p: a; q: b; 1 @1; 2 @0; final: b a",
    "a reader that seeks and another that began late": (
        "p: a @0; p: b @1; p: c @2; poll r 0: a b c; seek r; poll r 1: b; poll late 2: c; final: a b c"
    ),
    "given again before it was settled": (
        "p: a b @0; deliver c 0: a b; settle c 1; deliver d 1: b; drained; final: a b"
    ),
    "readers that were told what retention took": (
        "retention 1; p: a b c d @0; poll r 0: a; trimmed r 2; poll r 2: c d; "
        "trimmed late 3; poll late 3: d; deliver c 0: a; deliver c 3: d; drained; final 3: d"
    ),
}
"""An unknown may have been on its way for long: no order is promised between processes, and none by the clock without
an acknowledgement."""


@pytest.mark.parametrize("case", CLEAN)
def test_what_is_legitimate_is_no_anomaly(case: str) -> None:
    verdict = written(CLEAN[case]).judged()
    assert verdict.clean, verdict.story()


def test_every_kind_of_operation_may_be_right() -> None:
    h = History()
    h.ok("p", "a", "b", at=[0, 1])
    h.begin("p", "c", partition=None)("ok", offsets=[0], partition=1)
    h.txn("q/1", ["d", "e"], "ok")
    h.poll("r", 0, "a", "b")
    h.deliver(0, "a", "b", "d")
    h.add("settle", group="g", process="c", topic="t", partition=0, offset=2)
    h.add("note", what="all brokers killed")
    h.final("a", "b", "d", partition=0)
    h.final("a", "b", partition=0, replica=1)
    h.final("c", "e", partition=1)
    assert h.judged().clean


def test_a_contradiction_is_told_once_however_many_readers_see_it() -> None:
    h = written(ANOMALIES["duplicate"][1])
    for reader in ("r", "s"):
        h.poll(reader, 0, "a", "a")
    assert h.judged().counts == {"duplicate": 1}
    h = written(ANOMALIES["inconsistent offsets"][1])
    for reader in ("s", "u"):
        h.poll(reader, 0, "b")
    assert h.judged().counts == {"inconsistent-offsets": 1}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"op": "sned"}], "'sned' is not known"),
        ([{"op": "poll", "process": "r"}], "operation 1 is not complete"),
        ([{"op": "send", "state": "ok", "process": "p", "id": 1}], "has an outcome and no beginning"),
        (written("p: a @1,2").lines, "has 1 values"),
    ],
)
def test_a_history_that_contradicts_itself_is_not_judged(lines: list[Line], says: str) -> None:
    with pytest.raises(HistoryError, match=says):
        judge(lines)


def long_history(records: int, seed: int = 1) -> History:
    """Producers side by side, readers and a group behind them, all as it should be."""
    chance, h = random.Random(seed), History()
    logs: dict[int, list[str]] = {0: [], 1: [], 2: []}
    done: dict[tuple[str, int], int] = {}
    for number in range(records):
        partition, value = number % 3, f"v{number}"
        outcome = h.begin(f"p{partition}", value, partition=partition)
        log = logs[partition]
        if chance.random() < 0.9 or number < 3:
            outcome("ok", offsets=[len(log)])
            log.append(value)
        else:
            outcome(chance.choice(("fail", "unknown")))
        for reader in ("r1", "r2"):
            at = done.get((reader, partition), 0)
            if len(log) - at >= 20:
                h.poll(reader, at, *log[at:], partition=partition)
                done[reader, partition] = len(log)
    for partition, log in logs.items():
        h.final(*log, partition=partition)
    return h


def test_one_missing_record_is_found_in_a_long_history() -> None:
    h = long_history(6_000)
    assert h.judged().clean
    final = next(line for line in h.lines if line["op"] == "final" and line["partition"] == 1)
    gone = final["values"].pop(1_000)
    final["offsets"].pop(1_000)
    verdict = h.judged()
    assert verdict.counts == {"lost-write": 1}
    assert repr(gone) in verdict.story()
