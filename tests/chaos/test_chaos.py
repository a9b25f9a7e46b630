"""A short run of everything: real processes under fire, and nothing found; and what would be found is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.nemesis import NEMESES
from tests.chaos.report import story
from tests.chaos.run import Outcome, Run, Settings
from tests.history.checker import judge
from tests.history.recording import Line, read

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(400)]

SECONDS = 20.0
SEED = 11
OF_QUEUES = ("job ok", "worked", "letter", "output")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    directory = tmp_path_factory.mktemp("chaos") / "run"
    settings = Settings(
        directory,
        SEED,
        durability="os",
        seconds=SECONDS,
        session_ms=3_000,
        partitions=2,
        rate=10.0,
        producers=1,
        workers=1,
    )
    return Run(settings).go()


def test_a_short_run_under_fire_shows_no_anomaly(outcome: Outcome) -> None:
    assert outcome.clean, story(outcome)
    assert outcome.applied, "something was done to the cluster"
    seen = outcome.verdict.operations
    for op in ("send ok", "txn ok", "poll", "trimmed", "deliver", "settle", "drained", "final", *OF_QUEUES):
        assert seen[op], f"{op}: {story(outcome)}"


@pytest.fixture
def lines(outcome: Outcome) -> list[Line]:
    return list(read(outcome.history))


def acknowledged(lines: list[Line]) -> tuple[str, str]:
    """The topic and value of a record that was acknowledged, not the first and not the last, where everything is
    kept."""
    done = {(line["process"], line["id"]) for line in lines if line["op"] == "send" and line["state"] == "ok"}
    sent = [
        line
        for line in lines
        if line["op"] == "send" and (line["process"], line["id"]) in done and line.get("topic") == "a"
    ]
    chosen = sent[len(sent) // 2]
    return chosen["topic"], chosen["values"][0]


def without(lines: list[Line], topic: str, value: str, ops: tuple[str, ...]) -> Iterator[Line]:
    """The history as it would be if these operations had not seen that record."""
    for line in lines:
        if line["op"] in ops and line["topic"] == topic and value in line["values"]:
            kept = [(o, v) for o, v in zip(line["offsets"], line["values"], strict=True) if v != value]
            line = {**line, "offsets": [o for o, _ in kept], "values": [v for _, v in kept]}
        yield line


def test_an_acknowledged_record_that_nobody_read_would_be_reported(lines: list[Line]) -> None:
    topic, value = acknowledged(lines)
    verdict = judge(without(lines, topic, value, ("final", "poll")))
    assert verdict.counts["lost-write"] == 1
    assert repr(value) in verdict.story()
    assert set(verdict.counts) <= {"lost-write", "poll-skip", "int-poll-skip"}


def test_a_record_that_the_group_was_not_given_would_be_reported(lines: list[Line]) -> None:
    topic, value = acknowledged(lines)
    verdict = judge(without(lines, topic, value, ("deliver",)))
    assert verdict.counts == {"queue-lost": 1}
    assert repr(value) in verdict.story()


def test_a_refusal_that_happened_after_all_would_be_reported(lines: list[Line]) -> None:
    _, value = acknowledged(lines)
    sent = next(line for line in lines if line["op"] == "send" and value in line.get("values", ()))
    refused = [
        {**line, "state": "fail"}
        if line["op"] == "send"
        and line["state"] == "ok"
        and (line["process"], line["id"]) == (sent["process"], sent["id"])
        else line
        for line in lines
    ]
    counts = judge(refused).counts
    assert counts["aborted-read"] == counts["queue-unexpected"] == len(sent["values"])


def test_a_dead_letter_that_came_twice_would_be_reported(lines: list[Line]) -> None:
    letter = next(line for line in lines if line["op"] == "letter")
    verdict = judge([*lines, letter])
    assert verdict.counts == {"letter-twice": 1, "totals": 1}
    assert repr(letter["value"]) in verdict.story()


def test_a_job_that_was_settled_and_that_nobody_did_would_be_reported(lines: list[Line]) -> None:
    done = {line["id"] for line in lines if line["op"] == "job" and line.get("word") == "ack"}
    begun = next(line for line in lines if line["op"] == "job" and line["state"] == "begin" and line["id"] in done)
    place = begun["partition"], begun["offset"]
    same = {
        (line["process"], line["id"])
        for line in lines
        if line["op"] == "job" and line["state"] == "begin" and line["group"] == begun["group"]
        and (line["partition"], line["offset"]) == place
    }  # fmt: skip
    kept = [line for line in lines if line["op"] != "job" or (line["process"], line["id"]) not in same]
    verdict = judge(kept)
    assert verdict.counts["job-lost"] == 1
    assert repr(begun["value"]) in verdict.story()


def test_what_is_searched_for_in_sealed_files_is_found_in_plain_ones(outcome: Outcome) -> None:
    assert outcome.readable > 0


def test_every_nemesis_strikes_and_heals_within_bounds() -> None:
    for name, nemesis in NEMESES.items():
        shortest, longest = nemesis.hold
        assert 0 <= shortest <= longest <= 5, name
