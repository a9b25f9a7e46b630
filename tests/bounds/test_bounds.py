"""What members that mean harm make a leader keep is within its bounds. `make bounds` is the full
size."""

from __future__ import annotations

import pytest

from mq_broker.core.work import state as work_state
from tests.bounds.__main__ import HEADER, row
from tests.bounds.adversaries import Cost, acks_every_second, gives_everything_back

RECORDS = 1 << 18
OFFSET_BYTES_MAX = 0.2
RUN_BYTES_MAX = 1_000
"""With a reason of 256 bytes of its own, and how its last lease ended."""

ENDING_BYTES_MAX = 500
"""Of how a lease ended, if it is the only one that ended so; a snapshot has a twentieth of it."""

EMPTY_BYTES_MAX = 4_000


def test_every_second_record_takes_less_than_a_fifth_of_a_byte_each_and_nothing_once_the_rest_is_settled() -> None:
    half, done = acks_every_second(RECORDS)
    assert (half.records, half.leased, half.runs) == (RECORDS, RECORDS // 2, 1)
    assert max(half.memory_bytes, half.snapshot_bytes) < OFFSET_BYTES_MAX * RECORDS + EMPTY_BYTES_MAX
    assert half.journal_bytes < 3 * RECORDS // 2
    assert (done.records, done.runs, done.leased) == (0, 0, 0)
    assert max(done.memory_bytes, done.snapshot_bytes) < EMPTY_BYTES_MAX


def test_what_is_given_back_and_lent_again_for_long_leaves_one_run() -> None:
    brief, long = (gives_everything_back(seconds, 500, records=2_000, reasons=False) for seconds in (1, 30))
    assert (long.records, long.runs, long.leased) == (500, 1, 0)
    leases = long.entries // 2
    assert long.snapshot_bytes < brief.snapshot_bytes + 10 + leases * ENDING_BYTES_MAX // 20, "but for its counts"
    assert long.memory_bytes < EMPTY_BYTES_MAX + leases * ENDING_BYTES_MAX
    assert long.journal_bytes / long.entries < 40, "a lease and its return are a range each"


def test_as_many_runs_are_kept_as_may_be_and_those_that_are_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_state, "RUNS_MAX", 1_000)
    once, often = (gives_everything_back(seconds, 1_500, records=6_000, reasons=True) for seconds in (1, 4))
    assert once.runs <= 2_000, "the bound is soft: what was lent may all come back"
    assert often.runs <= once.runs, "and nothing fresh is lent any more"
    assert often.memory_bytes < RUN_BYTES_MAX * often.runs
    assert often.snapshot_bytes < RUN_BYTES_MAX * often.runs


def test_a_row_of_the_table_has_all_that_is_kept() -> None:
    cost = Cost(1_000, 1, 2, 1 << 20, 1 << 19, 7, 1 << 21)
    assert row("x", cost) == "| x | 1,000 | 1 | 2 | 1.00 MiB | 0.50 MiB | 7 | 2.00 MiB |"
    assert row("x", cost).count("|") == HEADER.splitlines()[0].count("|")
