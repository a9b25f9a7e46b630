"""What is staged under a queue group's key, and who may decide about it."""

from __future__ import annotations

import pytest

from mq_broker.core.entries import Abort, Append, Decide, Entry, Fence, Operation, Publish, Stage, TransactionKey
from mq_broker.core.machine.admission import Admit, Answer, judge
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import AreStaged, Done, Propose, Refused
from mq_protocol.errors import InvalidRequest, StagedBatchMissing
from mq_protocol.queues.work_keys import WorkPlace, query_id_of

KEY = TransactionKey(query_id_of(WorkPlace("0" * 32, 3, "g")), "out")
UUIDS = tuple(bytes([n]) * 16 for n in range(1, 4))
EPOCH_5 = 5 << 32


def machine_with_staged(*uuids: bytes) -> PartitionMachine:
    machine = PartitionMachine(WindowBounds(100, None))
    machine.apply(Entry(1, 1, 0, Append(), b"a" * 16, 1, 1))
    for index, uuid in enumerate(uuids, 2):
        machine.apply(Entry(index, 1, 0, Stage(KEY, 0, "epoch:5"), uuid, 1, 1))
    return machine


def verdict(machine: PartitionMachine, operation: Operation | AreStaged) -> object:
    return judge(Propose(1, operation, 0), machine, Overlay([]), 1)


def test_a_number_that_was_not_known_when_the_batches_were_staged_publishes_them() -> None:
    machine = machine_with_staged(*UUIDS)
    for n, uuid in enumerate(UUIDS, EPOCH_5):
        publish = Publish(KEY, n, (uuid,))
        assert verdict(machine, publish) == Admit(publish)
        machine.apply(Entry(n - EPOCH_5 + 9, 1, 0, publish))
        assert verdict(machine, publish) == Answer(Done(0, machine.next_offset, duplicate=True))
    assert (machine.next_offset, machine.staged) == (4, {})


def test_of_another_key_than_a_queue_groups_the_micro_batch_must_be_the_one() -> None:
    machine = PartitionMachine(WindowBounds(100, None))
    key = TransactionKey("query", "out")
    machine.apply(Entry(1, 1, 0, Stage(key, 0, "run"), UUIDS[0], 1, 1))
    answer = verdict(machine, Publish(key, 7, UUIDS[:1]))
    assert isinstance(answer, Answer)
    assert isinstance(answer.result, Refused)
    assert isinstance(answer.result.error, StagedBatchMissing)


@pytest.mark.parametrize("operation", [Decide(KEY, 0, "run", 0, ()), Abort(KEY), Fence(KEY)])
def test_nobody_else_decides_under_a_queue_groups_key(operation: Operation) -> None:
    answer = verdict(machine_with_staged(*UUIDS), operation)
    assert isinstance(answer, Answer)
    assert isinstance(answer.result, Refused)
    assert isinstance(answer.result.error, InvalidRequest)
    assert "queue groups" in str(answer.result.error)
