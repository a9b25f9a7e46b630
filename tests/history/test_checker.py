"""Histories written by hand: each anomaly is found, alone, with its records; what is legitimate is not taken for
one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.history.checker import judge
from tests.history.recording import HistoryError, Line
from tests.history.written import History


def lost_write(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[1])
    h.ok("p", "c", at=[2])
    h.final("a", None, "c")


def lost_write_without_a_last_reading(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[1])
    h.poll("r", 1, "b")


def lost_write_of_a_transaction(h: History) -> None:
    h.txn("q/1", ["a", "b"], "ok")
    h.final("a")


def lost_write_that_was_read_before(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[1])
    h.poll("r", 0, "a")
    h.final(None, "b")


def unseen(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[1])
    h.final("a")


def vanished(h: History) -> None:
    h.begin("p", "a")("unknown")
    h.poll("r", 0, "a")
    h.final()


def aborted_read(h: History) -> None:
    h.begin("p", "a")("fail")
    h.final("a")


def unexpected(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.final("a", "b")


def duplicate(h: History) -> None:
    h.begin("p", "a")("unknown")
    h.final("a", "a")


def inconsistent_offsets(h: History) -> None:
    h.begin("p", "a")("unknown")
    h.begin("q", "b")("unknown")
    h.poll("r", 0, "a")
    h.final("b")


def hole(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[2])
    h.final("a", None, "b")


def torn_batch(h: History) -> None:
    h.begin("p", "a", "b")("unknown")
    h.final("a")


def torn_transaction(h: History) -> None:
    h.txn("q/1", ["a", "b"])
    h.final("b")


def poll_skip(h: History) -> None:
    for offset, value in enumerate("abc"):
        h.ok("p", value, at=[offset])
    h.poll("r", 0, "a")
    h.poll("r", 2, "c")
    h.final("a", "b", "c")


def skip_within_a_poll(h: History) -> None:
    for offset, value in enumerate("abc"):
        h.ok("p", value, at=[offset])
    h.poll("r", 0, "a", "c", offsets=[0, 2])
    h.final("a", "b", "c")


def nonmonotonic_poll(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[1])
    h.poll("r", 0, "a", "b")
    h.poll("r", 1, "b")
    h.final("a", "b")


def going_back_within_a_poll(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.poll("r", 0, "a", "a", offsets=[0, 0])
    h.final("a")


def nonmonotonic_send(h: History) -> None:
    first = h.begin("p", "a")
    second = h.begin("p", "b")
    first("ok", offsets=[1])
    second("ok", offsets=[0])
    h.final("b", "a")


def nonmonotonic_send_whose_outcome_is_unknown(h: History) -> None:
    h.begin("p", "a")("unknown")
    h.ok("p", "b", at=[0])
    h.final("b", "a")


def a_batch_out_of_order(h: History) -> None:
    h.ok("p", "a", "b", at=[1, 0])
    h.final("b", "a")


def realtime_order(h: History) -> None:
    h.ok("p", "a", at=[1])
    h.ok("q", "b", at=[0])
    h.final("b", "a")


def queue_lost(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.ok("p", "b", at=[1])
    h.deliver(0, "a")
    h.add("drained", group="g", topic="t")
    h.final("a", "b")


def queue_lost_without_a_last_reading(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.add("drained", group="g", topic="t")
    h.poll("r", 0, "a")


def dropped_where_nothing_may_be(h: History) -> None:
    h.ok("p", "a", "b", at=[0, 1])
    h.final("b", start=1)


def told_of_a_trim_that_was_none(h: History) -> None:
    h.add("retention", topic="t", records=1)
    h.ok("p", "a", "b", "c", at=[0, 1, 2])
    h.add("trimmed", process="r", topic="t", partition=0, offset=2)
    h.poll("r", 2, "c")
    h.final("b", "c", start=1)


def poll_skip_beyond_what_was_told(h: History) -> None:
    h.add("retention", topic="t", records=1)
    h.ok("p", "a", "b", "c", at=[0, 1, 2])
    h.add("trimmed", process="r", topic="t", partition=0, offset=1)
    h.poll("r", 2, "c")
    h.final("b", "c", start=1)


def queue_unexpected(h: History) -> None:
    h.deliver(0, "a")


def queue_duplicated(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.deliver(0, "a")
    h.add("settle", group="g", process="c", topic="t", partition=0, offset=1)
    h.deliver(0, "a", process="d")
    h.final("a")


ANOMALIES: list[tuple[Callable[[History], None], str]] = [
    (lost_write, "lost-write"),
    (lost_write_without_a_last_reading, "lost-write"),
    (lost_write_of_a_transaction, "lost-write"),
    (lost_write_that_was_read_before, "lost-write"),
    (unseen, "unseen"),
    (vanished, "vanished"),
    (aborted_read, "aborted-read"),
    (unexpected, "unexpected"),
    (duplicate, "duplicate"),
    (inconsistent_offsets, "inconsistent-offsets"),
    (hole, "hole"),
    (torn_batch, "torn"),
    (torn_transaction, "torn"),
    (poll_skip, "poll-skip"),
    (skip_within_a_poll, "int-poll-skip"),
    (nonmonotonic_poll, "nonmonotonic-poll"),
    (going_back_within_a_poll, "int-nonmonotonic-poll"),
    (nonmonotonic_send, "nonmonotonic-send"),
    (nonmonotonic_send_whose_outcome_is_unknown, "nonmonotonic-send"),
    (a_batch_out_of_order, "int-nonmonotonic-send"),
    (realtime_order, "realtime-order"),
    (queue_lost, "queue-lost"),
    (queue_lost_without_a_last_reading, "queue-lost"),
    (dropped_where_nothing_may_be, "dropped"),
    (told_of_a_trim_that_was_none, "false-trim"),
    (poll_skip_beyond_what_was_told, "poll-skip"),
    (queue_unexpected, "queue-unexpected"),
    (queue_duplicated, "queue-duplicated"),
]


@pytest.mark.parametrize(("write", "kind"), ANOMALIES, ids=lambda given: getattr(given, "__name__", given))
def test_an_anomaly_is_found_once_and_nothing_else_with_it(write: Callable[[History], None], kind: str) -> None:
    history = History()
    write(history)
    verdict = history.judged()
    assert verdict.counts == {kind: 1}, verdict.story()
    [anomaly] = verdict.anomalies[kind]
    assert anomaly.records, "the offending records are named"


def every_kind_of_operation(h: History) -> None:
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


def unknown_and_it_happened(h: History) -> None:
    h.begin("p", "a")("unknown")
    h.begin("p", "b", "c")
    h.txn("q/1", ["d", "e"], "unknown")
    h.final("a", "b", "c", "e", "d")


def unknown_and_it_did_not(h: History) -> None:
    h.begin("p", "a")("unknown")
    h.begin("p", "b", "c")
    h.txn("q/1", ["d", "e"], "unknown")
    h.final()


def an_attempt_that_failed_before_one_that_did_not(h: History) -> None:
    h.txn("q/1", ["a", "b"], "fail")
    h.txn("q/1", ["a", "b"], "ok")
    h.txn("q/2", ["c"], "fail")
    h.txn("q/2", ["c"])
    h.final("a", "b", "c")


def a_late_unknown_behind_those_of_another_process(h: History) -> None:
    """It was on its way for long. No order is promised between processes, and none by the clock without an
    acknowledgement."""
    h.begin("p", "a")("unknown")
    h.ok("q", "b", at=[0])
    h.final("b", "a")


def an_unknown_in_its_turn(h: History) -> None:
    h.ok("p", "a", at=[0])
    h.begin("p", "b")("unknown")
    h.begin("p", "not there")("unknown")
    h.ok("p", "c", at=[2])
    h.final("a", "b", "c")


def side_by_side_in_either_order(h: History) -> None:
    first, second = h.begin("p", "a"), h.begin("q", "b")
    first("ok", offsets=[1])
    second("ok", offsets=[0])
    h.final("b", "a")


def a_reader_that_seeks_and_another_that_began_late(h: History) -> None:
    for offset, value in enumerate("abc"):
        h.ok("p", value, at=[offset])
    h.poll("r", 0, "a", "b", "c")
    h.add("seek", process="r", topic="t", partition=0)
    h.poll("r", 1, "b")
    h.poll("late", 2, "c")
    h.final("a", "b", "c")


def given_again_before_it_was_settled(h: History) -> None:
    h.ok("p", "a", "b", at=[0, 1])
    h.deliver(0, "a", "b", process="c")
    h.add("settle", group="g", process="c", topic="t", partition=0, offset=1)
    h.deliver(1, "b", process="d")
    h.add("drained", group="g", topic="t")
    h.final("a", "b")


def readers_that_were_told_what_retention_took(h: History) -> None:
    h.add("retention", topic="t", records=1)
    h.ok("p", "a", "b", "c", "d", at=[0, 1, 2, 3])
    h.poll("r", 0, "a")
    h.add("trimmed", process="r", topic="t", partition=0, offset=2)
    h.poll("r", 2, "c", "d")
    h.add("trimmed", process="late", topic="t", partition=0, offset=3)
    h.poll("late", 3, "d")
    h.deliver(0, "a")
    h.deliver(3, "d")
    h.add("drained", group="g", topic="t")
    h.final("d", start=3)


CLEAN = [
    every_kind_of_operation,
    unknown_and_it_happened,
    unknown_and_it_did_not,
    an_attempt_that_failed_before_one_that_did_not,
    a_late_unknown_behind_those_of_another_process,
    an_unknown_in_its_turn,
    side_by_side_in_either_order,
    a_reader_that_seeks_and_another_that_began_late,
    given_again_before_it_was_settled,
    readers_that_were_told_what_retention_took,
]


@pytest.mark.parametrize("write", CLEAN)
def test_what_is_legitimate_is_no_anomaly(write: Callable[[History], None]) -> None:
    history = History()
    write(history)
    verdict = history.judged()
    assert verdict.clean, verdict.story()


def test_a_contradiction_is_told_once_however_many_readers_see_it() -> None:
    h = History()
    duplicate(h)
    for reader in ("r", "s"):
        h.poll(reader, 0, "a", "a")
    assert h.judged().counts == {"duplicate": 1}
    h = History()
    inconsistent_offsets(h)
    for reader in ("s", "u"):
        h.poll(reader, 0, "b")
    assert h.judged().counts == {"inconsistent-offsets": 1}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"op": "sned"}], "'sned' is not known"),
        ([{"op": "poll", "process": "r"}], "operation 1 is not complete"),
        ([{"op": "send", "state": "ok", "process": "p", "id": 1}], "has an outcome and no beginning"),
        (
            [
                {
                    "at": 1,
                    "op": "send",
                    "state": "invoke",
                    "process": "p",
                    "id": 1,
                    "topic": "t",
                    "partition": 0,
                    "values": ["a"],
                },
                {"at": 2, "op": "send", "state": "ok", "process": "p", "id": 1, "offsets": [1, 2]},
            ],
            "has 1 values",
        ),
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
