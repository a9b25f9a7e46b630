"""Order, retries and outcomes of one partition's batches, without a network or a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mq_client.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    NotSent,
    OutcomeUnknown,
    OutOfOrder,
    TritonMQError,
    Unreachable,
)
from mq_client.producing.futures import BatchOutcome
from mq_client.producing.lanes import Lane, OutgoingBatch

DEADLINE = 30.0


def lane(**options: int) -> Lane:
    return Lane("t", 0, options.get("max_in_flight", 5), options.get("retries", 1000), random=random.Random(1))


def batch(number: int, deadline: float = DEADLINE) -> OutgoingBatch:
    payload = pa.py_buffer(b"payload")
    return OutgoingBatch("t", 0, number.to_bytes(16, "big"), 1, 7, 0, BatchOutcome("t"), lambda: payload, deadline)


def filled(count: int, **options: int) -> tuple[Lane, list[OutgoingBatch]]:
    made = lane(**options)
    batches = [batch(number) for number in range(1, count + 1)]
    for one in batches:
        made.add(one)
    return made, batches


def send_all(made: Lane, now: float) -> Iterator[tuple[OutgoingBatch, bytes]]:
    correlation = int(now * 1000) * 100
    while (one := made.next(now)) is not None:
        correlation += 1
        yield one, made.sent(one, correlation, now)


def test_a_lost_batch_and_those_behind_it_go_again_in_order_under_their_uuids() -> None:
    made, (first, second, third) = filled(3)
    list(send_all(made, 0.0))
    assert made.failed(first, NotEnoughReplicas("wait"), 1.0) is None
    assert made.failed(second, OutOfOrder("first"), 1.0) is None
    assert made.failed(third, OutOfOrder("second"), 1.0) is None
    assert made.next(1.0) is None, "a failure is followed by a pause"
    assert list(send_all(made, made.not_before)) == [(first, b""), (second, first.uuid), (third, second.uuid)]


def test_a_batch_whose_predecessor_is_refused_for_good_goes_on_without_it() -> None:
    made, (first, second) = filled(2)
    list(send_all(made, 0.0))
    refused = made.failed(first, InvalidRequest("no"), 0.0)
    assert isinstance(refused, InvalidRequest)
    assert made.failed(second, OutOfOrder("first"), 0.0) is None
    assert list(send_all(made, 0.0)) == [(second, b"")]


def test_a_batch_told_who_leads_goes_there_at_once_but_only_once_without_a_pause() -> None:
    made, (first,) = filled(1)
    list(send_all(made, 0.0))
    assert made.failed(first, NotLeader("2 leads", leader=2), 0.0) is None
    assert [sent for sent, _ in send_all(made, 0.0)] == [first]
    assert made.failed(first, NotLeader("1 leads", leader=1), 0.0) is None
    assert made.next(0.0) is None


def test_retries_are_counted() -> None:
    made, (first,) = filled(1, retries=2)
    error: TritonMQError | None = None
    now = 0.0
    for _ in range(3):
        now = max(now, made.not_before)
        list(send_all(made, now))
        error = made.failed(first, NotEnoughReplicas("2 of 3"), now)
    assert isinstance(error, NotEnoughReplicas)
    assert "after 3 attempts" in str(error)
    assert not made.batches


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([], NotSent),
        ([(Unreachable("refused"), False)], NotSent),
        ([(NotLeader("nobody"), True)], NotLeader),
        ([(NotEnoughReplicas("1 of 2"), True)], NotEnoughReplicas),
        ([(Unreachable("broke"), True)], OutcomeUnknown),
        ([(Unreachable("broke"), True), (NotLeader("nobody"), True)], OutcomeUnknown),
    ],
)
def test_at_the_deadline_the_error_says_what_is_known(
    errors: list[tuple[TritonMQError, bool]], outcome: type[TritonMQError]
) -> None:
    made, (first,) = filled(1)
    now = 0.0
    for error, reached in errors:
        now = max(now, made.not_before)
        list(send_all(made, now))
        assert made.failed(first, error, now, reached=reached) is None
    assert made.expired(DEADLINE - 0.1) == []
    assert made.expired(DEADLINE) == [first]
    said = made.give_up(first)
    assert type(said) is outcome
    assert said.definite == (outcome is not OutcomeUnknown)
    assert (str(errors[-1][0]) if errors else "no leader was known") in str(said)


def test_what_had_no_turn_behind_others_says_so() -> None:
    made, batches = filled(3, max_in_flight=2)
    list(send_all(made, 0.0))
    assert made.expired(DEADLINE) == batches
    *_, said = [made.give_up(one) for one in batches]
    assert type(said) is NotSent
    assert "the batches before it took all of that time. Publish more slowly" in str(said)


def test_a_refusal_after_an_unknown_attempt_is_unknown() -> None:
    made, (first,) = filled(1)
    list(send_all(made, 0.0))
    made.failed(first, Unreachable("broke"), 0.0)
    list(send_all(made, made.not_before))
    said = made.failed(first, InvalidRequest("topic is gone"), 1.0)
    assert type(said) is OutcomeUnknown
    assert "after 2 attempts" in str(said)
    assert "last: topic is gone" in str(said)


class Log:
    """A partition as a broker keeps it: what it took, by UUID, behind the batch named."""

    def __init__(self) -> None:
        self.uuids: list[bytes] = []

    def append(self, uuid: bytes, after: bytes) -> TritonMQError | int:
        if uuid in self.uuids:
            return self.uuids.index(uuid)
        if after and after not in self.uuids:
            return OutOfOrder("not here")
        self.uuids.append(uuid)
        return len(self.uuids) - 1


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_lost_refused_or_answered_late_each_batch_is_there_once_and_in_order(seed: int) -> None:
    """Requests arrive in order on a stream, which may break: then those on the way arrive, or not, from some point
    on."""
    random_ = random.Random(seed)
    made = Lane("t", 0, random_.randint(1, 6), 10**6, random=random_)
    log, now, made_count, answered = Log(), 0.0, 0, 0
    wire: list[tuple[OutgoingBatch, bytes, int]] = []
    late: list[tuple[bytes, bytes]] = []  # of a broken stream, still on the way to the broker
    correlation = steps = 0
    while answered < 40:
        steps += 1
        assert steps < 10_000, "no progress"
        now += random_.choice((0.0, 0.001, 0.1, 1.0))
        if made_count < 40 and random_.random() < 0.5:
            made_count += 1
            made.add(batch(made_count, deadline=1e9))
        while (one := made.next(now)) is not None:
            correlation += 1
            wire.append((one, made.sent(one, correlation, now), correlation))
        if late and random_.random() < 0.5:
            log.append(*late.pop(0))
        match random_.randrange(6):
            case 0 if wire:  # the stream breaks
                for one, after, sent_as in wire:
                    late.append((one.uuid, after))
                    assert one.correlation == sent_as
                    assert made.failed(one, Unreachable("broke"), now) is None
                late = late[: random_.randint(0, len(late))]
                wire = []
            case 1 if wire:  # refused, without being taken
                one, _, _ = wire.pop(0)
                assert made.failed(one, random_.choice((NotEnoughReplicas("x"), NotLeader("x", 2))), now) is None
            case _ if wire:
                one, after, _ = wire.pop(0)
                result = log.append(one.uuid, after)
                if isinstance(result, TritonMQError):
                    assert made.failed(one, result, now) is None
                elif random_.random() < 0.2:  # taken, and the answer says unknown
                    assert made.failed(one, OutcomeUnknown("slow"), now) is None
                else:
                    made.answered(one)
                    answered += 1
    assert log.uuids == [number.to_bytes(16, "big") for number in range(1, 41)]


def test_out_of_order_behind_one_that_is_still_on_its_way_makes_it_wait() -> None:
    made, (first, second) = filled(2)
    list(send_all(made, 0.0))
    made.failed(second, OutOfOrder("not yet"), 5.0)
    assert made.not_before > 5.0
    assert made.next(5.0) is None
    made.answered(first)
    assert made.next(5.0) is second
