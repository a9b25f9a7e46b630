"""What a recovery may lose, and nothing else, is taken out of a history before it is judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mq_broker.core.entries import Append, Entry
from mq_broker.core.replication.log import Log
from tests.history.checker import judge
from tests.simulation.real.lives import Lives, Recovery
from tests.simulation.real.recoveries import without_lost

HERE = {"topic": "t", "partition": 0}
GAPS = {("t", 0): [(2, 100)]}


def sent(number: int, values: list[int], offsets: list[int]) -> list[dict[str, Any]]:
    who = {"process": "producer", "op": "send", "id": number}
    return [
        {"at": 10 * number, **who, "state": "invoke", **HERE, "values": values},
        {"at": 10 * number + 1, **who, "state": "ok", "partition": 0, "offsets": offsets},
    ]


def read(offsets: list[int], values: list[int]) -> dict[str, Any]:
    return {"at": 50, "process": "reader", "op": "poll", **HERE, "offsets": offsets, "values": values}


def trimmed(offset: int) -> dict[str, Any]:
    return {"at": 55, "process": "reader", "op": "trimmed", **HERE, "offset": offset}


def final(offsets: list[int], values: list[int]) -> dict[str, Any]:
    return {
        "at": 90,
        "process": "oracle",
        "op": "final",
        **HERE,
        "start": 0,
        "end": offsets[-1] + 1,
        "offsets": offsets,
        "values": values,
    }


def test_what_was_acknowledged_and_read_in_the_lost_offsets_counts_for_nothing() -> None:
    history = [
        *sent(1, [1, 2], [0, 1]),
        *sent(2, [3], [2]),
        read([0, 1, 2], [1, 2, 3]),
        trimmed(100),
        *sent(3, [4], [100]),
        read([100], [4]),
        final([0, 1, 100], [1, 2, 4]),
    ]
    assert not judge(history).clean, "without a word of the loss all of that is wrong"
    assert judge(without_lost(history, GAPS)).clean


def test_what_is_lost_before_the_lost_offsets_or_after_them_is_found() -> None:
    for kept, values in (([1, 100], [2, 4]), ([0, 1, 101], [1, 2, 5])):
        history = [*sent(1, [1, 2], [0, 1]), *sent(3, [4], [100]), *sent(4, [5], [101]), final(kept, values)]
        assert not judge(without_lost(history, GAPS)).clean, kept


def test_a_reader_that_leaves_out_what_was_kept_is_found() -> None:
    history = [
        *sent(1, [1, 2], [0, 1]),
        *sent(3, [4], [100]),
        read([0], [1]),
        trimmed(100),
        read([100], [4]),
        final([0, 1, 100], [1, 2, 4]),
    ]
    assert "poll-skip" in judge(without_lost(history, GAPS)).counts


def test_a_refusal_that_was_lost_is_no_refusal() -> None:
    refused = {"at": 12, "process": "producer", "op": "send", "id": 1, "state": "fail"}
    history = [sent(1, [1], [0])[0], refused, final([0], [1])]
    assert not judge(without_lost(history, GAPS)).clean
    assert judge(without_lost(history, GAPS, {("producer", 1)})).clean


# ---------------------------------------------------------------------- lives


def log_of(*epochs: int) -> Log:
    return Log(tuple(Entry(index, epoch, 1, Append()) for index, epoch in enumerate(epochs, 1)))


def lives(failures: list[str]) -> Lives:
    return Lives(cast(Any, SimpleNamespace(fail=failures.append, done={"lives after a recovery": 0})), "t-0")


def commit(found: Lives, log: Log, upto: int, *, recovery: int = 0, leading: bool = True) -> None:
    found.see(log)
    shared = SimpleNamespace(log=log, recovery=recovery)
    replica = SimpleNamespace(_shared=shared, high_watermark=upto, leading=leading, first_index=1)
    found.commits(cast(Any, "b1#1"), replica, 0)


def test_an_entry_that_was_committed_is_never_another() -> None:
    failures: list[str] = []
    found = lives(failures)
    commit(found, log_of(1, 1, 1), 3)
    commit(found, log_of(1, 1, 2), 2, leading=False)
    assert failures == []
    commit(found, log_of(1, 1, 2), 3)
    assert failures == ["t-0: entry 3 was committed as one of epoch 1, and b1#1 commits one of 2"]


def test_after_a_recovery_what_the_chosen_log_had_is_committed_and_the_rest_is_not() -> None:
    failures: list[str] = []
    found = lives(failures)
    commit(found, log_of(1, 1, 1, 1), 4)
    found.recovered(Recovery(1, 2, 2, 1, 5.0))
    commit(found, log_of(1, 1, 3), 3, recovery=1)
    assert (failures, found.present.committed) == ([], {1: 1, 2: 1, 3: 3})
    commit(found, log_of(1, 1, 1, 1), 4, leading=False)
    assert failures == [], "it has not heard of the recovery yet"
    commit(found, log_of(1, 1, 1, 1, 1), 5, leading=False)
    assert len(failures) == 1, "but nothing more was committed there"


def test_a_leader_after_a_recovery_has_all_that_the_chosen_log_had() -> None:
    failures: list[str] = []
    found = lives(failures)
    commit(found, log_of(1, 1, 1), 3)
    found.recovered(Recovery(1, 2, 3, 1, 5.0))
    commit(found, log_of(1, 1, 3), 3, recovery=1)
    assert failures == [
        "t-0: recovery 1 is to go on from entry 3 of epoch 1, and b1#1 has others: up to 3",
    ]
