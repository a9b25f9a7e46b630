"""How much a partition keeps of transactions: keys at a coordinator, fences where batches are staged."""

from __future__ import annotations

import pytest

from mq_broker.core import admission, machine
from mq_broker.core.admission import Admit, Answer, Overlay, judge
from mq_broker.core.entries import Abort, Decide, Entry, Fence, Operation, Stage, TransactionKey
from mq_broker.core.machine import PartitionMachine
from mq_broker.core.messages import Propose, Refused
from mq_broker.core.window import WindowBounds
from mq_protocol.errors import TooManyTransactions, TransactionAborted


def key(number: int) -> TransactionKey:
    return TransactionKey(f"query-{number}", "t")


def decide(number: int, batch_id: int = 0) -> Decide:
    return Decide(key(number), batch_id, "run", 0, ())


class Coordinator:
    """A machine and a tail above it, as a leader has them."""

    def __init__(self) -> None:
        self.machine = PartitionMachine(WindowBounds(100))
        self.tail: list[Entry] = []
        self.index = 0

    def ask(self, operation: Operation) -> Admit | Refused | object:
        """Judged; what is admitted is written to the tail."""
        verdict = judge(Propose(1, operation, 0), self.machine, Overlay(self.tail), 1)
        if isinstance(verdict, Admit):
            self.index += 1
            self.tail.append(Entry(self.index, 1, self.index, verdict.operation))
        return verdict.result if isinstance(verdict, Answer) else verdict

    def commit(self) -> None:
        for entry in self.tail:
            self.machine.apply(entry)
        self.tail = []


def is_refused(answer: object, error: type[Exception]) -> bool:
    return isinstance(answer, Refused) and isinstance(answer.error, error)


def test_a_coordinator_refuses_new_keys_beyond_its_bound_and_those_that_it_has_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TRANSACTION_KEYS_MAX", 3)
    coordinator = Coordinator()
    for number in range(2):
        assert isinstance(coordinator.ask(decide(number)), Admit)
    coordinator.commit()
    assert isinstance(coordinator.ask(decide(2)), Admit)
    assert is_refused(coordinator.ask(decide(3)), TooManyTransactions), "one that is not committed yet counts as well"
    coordinator.commit()
    assert is_refused(coordinator.ask(decide(3)), TooManyTransactions)
    assert isinstance(coordinator.ask(decide(0, batch_id=1)), Admit)


def test_a_full_coordinator_can_still_abort_a_key_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TRANSACTION_KEYS_MAX", 1)
    monkeypatch.setattr(admission, "ABORTED_KEYS_MAX", 1)
    coordinator = Coordinator()
    coordinator.ask(decide(0))
    coordinator.commit()
    assert isinstance(coordinator.ask(Abort(key(1))), Admit)
    coordinator.commit()
    assert is_refused(coordinator.ask(Abort(key(2))), TooManyTransactions)
    assert isinstance(coordinator.ask(Abort(key(0))), Admit)
    coordinator.commit()
    assert is_refused(coordinator.ask(decide(1)), TransactionAborted)


def test_a_partition_forgets_its_oldest_fence_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FENCED_KEYS_MAX", 2)
    partition = Coordinator()
    for number in range(3):
        partition.ask(Fence(key(number)))
        partition.commit()
    assert list(partition.machine.fenced) == [key(1), key(2)]
    assert is_refused(partition.ask(Stage(key(2), 0, "run")), TransactionAborted)
    assert isinstance(partition.ask(Stage(key(0), 0, "run")), Admit)
