"""What is counted where it happens."""

from __future__ import annotations

import pytest

from mq_process.measures import BUCKETS_S, Counts, Durations


def test_counts_add_up_by_their_labels_and_a_copy_does_not_change() -> None:
    counts = Counts("requests_total", "Requests.", "method", "code")
    counts.add("Produce", "OK")
    before = counts.rows()
    counts.add("Produce", "OK", n=2)
    counts.add("Fetch", "INTERNAL")
    assert before == {("Produce", "OK"): 1}
    assert counts.rows() == {("Produce", "OK"): 3, ("Fetch", "INTERNAL"): 1}


def test_what_has_no_label_is_there_before_it_happens() -> None:
    assert Counts("failures_total", "Failures.").rows() == {(): 0}
    assert Counts("by_peer_total", "By peer.", "peer").rows() == {}
    [row] = Durations("round_seconds", "Rounds.").rows().values()
    assert (sum(row.counts), row.sum_s) == (0, 0.0)


def test_rows_of_what_is_gone_are_forgotten() -> None:
    counts = Counts("topic_bytes_out_total", "Bytes.", "topic", "to")
    for topic in ("a", "b"):
        counts.add(topic, "fetch", n=7)
    counts.keep({"b", "c"})
    assert counts.rows() == {("b", "fetch"): 7}


def test_a_duration_falls_into_the_bucket_whose_end_it_does_not_pass() -> None:
    durations = Durations("fsync_seconds", "Syncs.", "kind")
    for seconds in (0.0, BUCKETS_S[0], BUCKETS_S[0] + 1e-9, BUCKETS_S[-1], 1_000.0):
        durations.add(seconds, "commit")
    row = durations.rows()["commit"]
    assert (row.counts[0], row.counts[1], row.counts[-2], row.counts[-1]) == (2, 1, 1, 1)
    assert row.sum_s == pytest.approx(1_000 + BUCKETS_S[-1] + 2 * BUCKETS_S[0])
    assert len(row.counts) == len(BUCKETS_S) + 1


def test_what_fails_is_measured_too() -> None:
    durations = Durations("fsync_seconds", "Syncs.", "kind")
    with pytest.raises(OSError, match="no"), durations.measuring("commit"):
        raise OSError("no")
    assert sum(durations.rows()["commit"].counts) == 1
