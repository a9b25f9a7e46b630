"""What records and rows that are lent say of themselves, and what reaches the leader. No thread and no clock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import InvalidRequest, InvalidSetting, LeaseLost, TritonMQError
from mq_client.queueing.leases import LOST
from mq_client.queueing.records import DELAY_MS_MAX, LeasedBatch, LeasedRecord, checked_delay
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_client.queueing.played_keeper import SCHEMA, Played, places

A, F, R, J = pb.OUTCOME_ACK, pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE, pb.OUTCOME_REJECT
PART = StagedPart("out", 0, (b"u" * 16,), 1, "id")
Told = tuple[int, list[int], str, int | None]


class Lent:
    """Records 0 to 4 of one lease, which were handed out."""

    def __init__(self, *, accept: bool = False) -> None:
        self.played = Played(accept=accept)
        self.held = self.played.lend(5)
        for _ in range(5):
            self.played.take()
        self.played.said()

    def record(self, index: int = 0) -> LeasedRecord:
        plain = ConsumerRecord("t", 0, index, None, b"v", (), 1)
        return LeasedRecord.of(plain, self.played.keeper, self.held, index)

    def batch(self, *indexes: int) -> LeasedBatch:
        chosen = places(*(indexes or range(5)))
        rows = pa.RecordBatch.from_pydict({"n": chosen.tolist()}, schema=SCHEMA)
        return LeasedBatch(self.played.keeper, self.held, chosen, rows)

    def told(self) -> list[Told]:
        """What goes out now: outcome, gaps and lengths, error and delay. The leader says that it is done."""
        self.played.clock.now += 1.0
        sayings = self.played.sayings()
        for saying in sayings:
            saying.done()
        self.played.rest()
        return [
            (one.outcome, list(one.ranges), one.error, one.delay_ms if one.HasField("delay_ms") else None)
            for saying in sayings
            for one in saying.settles
        ]


class Staged:
    """In the place of `Outputs`. `calls`: what was asked of it."""

    def __init__(self, *parts: StagedPart) -> None:
        self.parts = parts
        self.calls: list[str] = []
        self.unusable: TritonMQError | None = None

    def __bool__(self) -> bool:
        return bool(self.parts)

    def check_usable(self) -> None:
        self.calls.append("check_usable")
        if self.unusable is not None:
            raise self.unusable

    def stage(self, work: Any, lease: Any) -> tuple[StagedPart, ...]:
        self.calls.append(f"stage {work.partition}")
        return self.parts

    def note_given(self) -> None:
        self.calls.append("note_given")


OF_A_RECORD: list[tuple[Callable[[LeasedRecord], Future[None]], Told]] = [
    (lambda record: record.ack(), (A, [1, 1], "", None)),
    (lambda record: record.fail(), (F, [1, 1], "", None)),
    (lambda record: record.fail(ValueError("boom"), delay_ms=7), (F, [1, 1], "boom", 7)),
    (lambda record: record.release(), (R, [1, 1], "", None)),
    (lambda record: record.release(delay_ms=0), (R, [1, 1], "", 0)),
    (lambda record: record.reject("bad"), (J, [1, 1], "bad", None)),
]
OF_ROWS: list[tuple[Callable[[LeasedBatch, Any], Future[None]], Told]] = [
    (lambda batch, mask: batch.ack(mask), (A, [1, 2], "", None)),
    (lambda batch, mask: batch.fail(mask), (F, [1, 2], "", None)),
    (lambda batch, mask: batch.fail(mask, "boom", delay_ms=7), (F, [1, 2], "boom", 7)),
    (lambda batch, mask: batch.release(mask), (R, [1, 2], "", None)),
    (lambda batch, mask: batch.release(mask, delay_ms=0), (R, [1, 2], "", 0)),
    (lambda batch, mask: batch.reject(mask, "bad"), (J, [1, 2], "bad", None)),
]
NAMES = {A: r"ack\(\)", F: r"fail\(\)", R: r"release\(\)", J: r"reject\(\)"}


@pytest.mark.parametrize(("say", "wanted"), OF_A_RECORD)
def test_what_is_said_of_a_record_reaches_the_leader_and_is_named_by_the_error_of_a_second_outcome(
    say: Callable[[LeasedRecord], Future[None]], wanted: Told
) -> None:
    lent = Lent()
    record = lent.record(1)
    future = say(record)
    assert not future.done()
    assert lent.told() == [wanted]
    assert future.result(0) is None
    for again in (record.ack, record.reject, lambda: record.ack(outputs=Staged(PART))):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=f"offset 1 has an outcome already.* was given {NAMES[wanted[0]]}"):
            again()
    with record:
        pass
    assert lent.told() == []


@pytest.mark.parametrize("kind", [list, np.array, pa.array, lambda mask: pa.chunked_array([mask[:2], mask[2:]])])
def test_what_is_said_of_rows_by_a_mask_reaches_the_leader(kind: Callable[[list[bool]], Any]) -> None:
    for say, wanted in OF_ROWS:
        lent = Lent()
        batch = lent.batch()
        say(batch, kind([False, True, True, False, False]))
        assert lent.told() == [wanted]
        assert say(batch, kind([False] * 5)).result(0) is None, "there is nothing to say"
        with pytest.raises(InvalidRequest, match="leave them out of the mask"):
            say(batch, kind([False, False, True, True, False]))
        assert lent.told() == []
        say(batch, None)
        assert [ranges for _, ranges, _, _ in lent.told()] == [[0, 1, 2, 2]]
        assert say(batch, None).result(0) is None, "all have an outcome"
        assert lent.told() == []


@pytest.mark.parametrize("mask", [[True], [1, 0, 1, 0, 1], [[True] * 5], np.ones(6, dtype=bool), pa.array([True] * 4)])
def test_a_mask_has_a_truth_value_for_each_row(mask: Any) -> None:
    lent = Lent()
    for say, _ in OF_ROWS:
        with pytest.raises(InvalidRequest, match="a truth value for each of the 5 rows"):
            say(lent.batch(), mask)
    assert lent.told() == []


def test_rows_know_where_they_come_from() -> None:
    lent = Lent()
    lent.held.deliveries[:], lent.held.failures[:] = [1, 2, 3, 4, 5], [0, 1, 2, 3, 4]
    batch, record = lent.batch(1, 3), lent.record(3)
    assert (len(batch), batch.topic, batch.partition, batch.lease) == (2, "t", 0, lent.held.id)
    assert (batch.offsets.tolist(), batch.deliveries.tolist(), batch.failures.tolist()) == ([1, 3], [2, 4], [1, 3])
    assert (record.lease, record.deliveries, record.failures) == (lent.held.id, 4, 3)
    other = record.with_fields(record._replace(value="text"))
    assert (other.value, other.lease, other.deliveries) == ("text", lent.held.id, 4)
    other.ack()
    assert lent.told() == [(A, [3, 1], "", None)]
    with pytest.raises(InvalidRequest, match="settle the record itself"):
        lent.record()._replace(value=b"copy").ack()


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (None, (A, [0, 1], "", None)),
        (ValueError("boom"), (F, [0, 1], "ValueError: boom", None)),
        (ValueError(), (F, [0, 1], "ValueError", None)),
        (KeyboardInterrupt(), (R, [0, 1], "", None)),
    ],
)
def test_a_block_gives_its_record_the_outcome_that_it_has_none_of(error: BaseException | None, wanted: Told) -> None:
    def work(record: LeasedRecord, outcome: Callable[[], object]) -> None:
        with record:
            outcome()
            if error is not None:
                raise error

    def whole(record: LeasedRecord, outcome: Callable[[], object]) -> None:
        if error is None:
            work(record, outcome)
        else:
            with pytest.raises(type(error)):
                work(record, outcome)

    lent = Lent()
    whole(lent.record(0), lambda: None)
    assert lent.told() == [wanted]
    stands = lent.record(1)
    whole(stands, lambda: stands.reject("known"))
    assert lent.told() == [(J, [1, 1], "known", None)]
    lost = lent.record(2)
    lent.played.keeper.drop(lent.held, places(2), LOST)
    with pytest.raises(LeaseLost):
        lost.__enter__()
    if error is not None:
        lost.__exit__(type(error), error, None)
    assert lent.told() == []


# ---------------------------------------------------------------- settled by being lent


def test_what_was_settled_by_being_lent_takes_an_ack_and_no_other_outcome() -> None:
    lent = Lent(accept=True)
    record, batch = lent.record(), lent.batch()
    for future in (record.ack(), batch.ack(), batch.ack([True] * 5), record.extend(), batch.extend()):
        assert future.result(0) is None
    for say, _ in OF_A_RECORD[1:]:
        with pytest.raises(InvalidRequest, match='opened with ack="auto": its records were settled'):
            say(record)
    for tell, _ in OF_ROWS[1:]:
        with pytest.raises(InvalidRequest, match='opened with ack="auto": its records were settled'):
            tell(batch, None)
    with record:
        pass
    with pytest.raises(ValueError, match="boom"), record:
        raise ValueError("boom")
    outputs: Any = Staged(PART)
    for ack in (record.ack, batch.ack):
        with pytest.raises(InvalidRequest, match='Open it with ack="explicit"'):
            ack(outputs=outputs)
    assert "note_given" not in outputs.calls
    assert lent.told() == []


# ---------------------------------------------------------------- outputs


def test_outputs_are_checked_and_staged_before_the_ack_and_given_once() -> None:
    lent = Lent()
    outputs: Any = Staged(PART)
    record = lent.record(1)
    record.ack(outputs=outputs)
    assert outputs.calls == ["check_usable", "stage 0", "note_given"]
    asked = lent.played.one()
    assert [(one.outcome, list(one.ranges), len(one.outputs)) for one in asked.settles] == [(A, [1, 1], 1)]
    with pytest.raises(InvalidRequest, match=r"was given ack\(\)"):
        record.reject()
    outputs = Staged(PART)
    outputs.unusable = InvalidRequest("given before")
    with pytest.raises(InvalidRequest, match="given before"):
        lent.batch(2, 3).ack(outputs=outputs)
    outputs.unusable = None
    with pytest.raises(InvalidRequest, match="the mask names none"):
        lent.batch(2, 3).ack([False, False], outputs=outputs)
    with pytest.raises(InvalidRequest, match="outcome already"):
        lent.batch(1, 2).ack([True, True], outputs=outputs)
    assert outputs.calls == ["check_usable"] * 3, "nothing is staged for what is refused"


# ---------------------------------------------------------------- delays


def test_a_delay_is_from_nothing_to_a_year() -> None:
    assert [checked_delay(delay) for delay in (None, 0, 1.9, DELAY_MS_MAX)] == [None, 0, 1, DELAY_MS_MAX]
    for delay in (-0.1, DELAY_MS_MAX + 1, float("nan")):
        with pytest.raises((InvalidRequest, InvalidSetting), match="delay_ms"):
            checked_delay(delay)
    with pytest.raises(InvalidSetting, match="delay_ms"):
        checked_delay("5s")  # type: ignore[arg-type]
