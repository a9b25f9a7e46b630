"""What a partition keeps of transactions, how much and for how long: decided keys, fences and staged batches."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.core.entries import (
    Abort,
    Append,
    Decide,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Operation,
    Publish,
    Stage,
    TransactionKey,
)
from mq_broker.core.machine.admission import (
    ABORTED_KEYS_MAX,
    TRANSACTION_KEYS_MAX,
    Admit,
    Answer,
    WaitFor,
    judge,
)
from mq_broker.core.machine.machine import FENCED_KEYS_MAX, PUBLISHED_KEYS_MAX, PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Done, Propose, Refused
from mq_protocol.errors import InvalidRequest, TooManyTransactions, TransactionAborted
from mq_protocol.manifest import StagedPart


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

    def commits(self, operations: Iterable[Operation]) -> None:
        """They were admitted before."""
        for operation in operations:
            self.index += 1
            self.machine.apply(Entry(self.index, 1, self.index, operation))

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


def test_a_coordinator_refuses_new_keys_beyond_its_bound_and_those_that_it_has_go_on() -> None:
    full = TRANSACTION_KEYS_MAX
    coordinator = Coordinator()
    coordinator.commits(map(decide, range(full - 1)))
    assert isinstance(coordinator.ask(decide(full - 1)), Admit)
    assert is_refused(coordinator.ask(decide(full)), TooManyTransactions), "what is not committed yet counts as well"
    coordinator.commit()
    assert is_refused(coordinator.ask(decide(full)), TooManyTransactions)
    assert isinstance(coordinator.ask(decide(0, batch_id=1)), Admit)


def test_a_full_coordinator_can_still_abort_a_key_that_it_does_not_know() -> None:
    first, last = TRANSACTION_KEYS_MAX, TRANSACTION_KEYS_MAX + ABORTED_KEYS_MAX - 1
    coordinator = Coordinator()
    coordinator.commits(map(decide, range(first)))
    coordinator.commits(Abort(key(number)) for number in range(first, last))
    assert isinstance(coordinator.ask(Abort(key(last))), Admit)
    assert is_refused(coordinator.ask(Abort(key(last + 1))), TooManyTransactions), "the one on its way counts"
    coordinator.commit()
    assert is_refused(coordinator.ask(Abort(key(last + 1))), TooManyTransactions)
    assert isinstance(coordinator.ask(Abort(key(0))), Admit)
    coordinator.commit()
    assert is_refused(coordinator.ask(decide(last)), TransactionAborted)


def test_a_partition_forgets_its_oldest_fence_beyond_its_bound() -> None:
    last = FENCED_KEYS_MAX
    partition = Coordinator()
    partition.commits(Fence(key(number)) for number in range(last))
    assert is_refused(partition.ask(Stage(key(0), 0, "run")), TransactionAborted)
    partition.commits([Fence(key(last))])
    assert list(partition.machine.fenced) == [key(number) for number in range(1, last + 1)]
    assert is_refused(partition.ask(Stage(key(last), 0, "run")), TransactionAborted)
    assert isinstance(partition.ask(Stage(key(0), 0, "run")), Admit)


def test_a_partition_forgets_the_key_that_has_published_nothing_for_longest_beyond_its_bound() -> None:
    last = PUBLISHED_KEYS_MAX
    partition = Coordinator()
    partition.commits(Publish(key(number), 0, ()) for number in range(last))
    partition.commits([Publish(key(0), 1, ()), Publish(key(last), 0, ())])
    assert dict(partition.machine.published) == {key(0): 1} | {key(number): 0 for number in range(2, last + 1)}


def test_the_last_published_micro_batch_of_a_key_never_falls() -> None:
    partition = PartitionMachine(WindowBounds(100))
    for index, batch_id in enumerate((5, 3), start=1):
        partition.apply(Entry(index, 1, index, Publish(key(0), batch_id, ())))
    assert partition.published[key(0)] == 5


def test_one_key_waits_for_what_is_about_it_and_no_other_does() -> None:
    """Rule 12. Of one key nothing is judged before what is in the tail about it is committed."""
    coordinator = Coordinator()
    coordinator.ask(decide(0))
    about: list[Operation] = [
        decide(0, 1),
        Finish(key(0), 0),
        Abort(key(0)),
        Fence(key(0)),
        Discard(key(0), ()),
        Publish(key(0), 0, ()),
    ]
    for operation in about:
        assert coordinator.ask(operation) == WaitFor(1)
    assert isinstance(coordinator.ask(decide(1)), Admit)
    coordinator.commit()
    assert not any(isinstance(coordinator.ask(operation), WaitFor) for operation in about[:1])


def once(number: int) -> Decide:
    return Decide(key(number), 0, "run", 0, (StagedPart("t", 0, (bytes(16),), 1),), once=True)


def test_a_key_is_forgotten_only_if_it_was_for_one_decision_and_nothing_of_it_is_due() -> None:
    coordinator = Coordinator()
    for operation in (once(0), once(1), once(2), decide(3), once(4)):
        coordinator.ask(operation)
        coordinator.commit()
    for number in (0, 2, 4):
        coordinator.ask(Finish(key(number), 0))
    coordinator.commit()
    coordinator.ask(Abort(key(2)))
    coordinator.commit()
    coordinator.ask(Abort(key(4)))
    everything = tuple(key(number) for number in range(6))
    assert coordinator.ask(Forget(everything)) == Admit(Forget((key(0),)))
    assert coordinator.ask(Forget((key(1), key(5)))) == Done(0, duplicate=True)


def test_what_is_finished_is_only_what_was_decided_last() -> None:
    coordinator = Coordinator()
    coordinator.ask(once(0))
    coordinator.commit()
    for operation in (Finish(key(0), 1), Finish(key(1), 0)):
        assert coordinator.ask(operation) == Done(0, duplicate=True)
        coordinator.machine.apply(Entry(9, 1, 9, operation))
    assert list(coordinator.machine.transactions) == [key(0)]
    assert not coordinator.machine.transactions[key(0)].finished
    assert isinstance(coordinator.ask(Finish(key(0), 0)), Admit)
    coordinator.commit()
    assert coordinator.machine.transactions[key(0)].finished
    assert coordinator.machine.transactions[key(0)].manifest == (), "what it published is of no use any more"
    assert coordinator.ask(Finish(key(0), 0)) == Done(0, duplicate=True)


def test_an_abort_of_a_key_that_nothing_was_decided_under_leaves_nothing_to_publish() -> None:
    coordinator = Coordinator()
    coordinator.ask(Abort(key(0)))
    coordinator.commit()
    known = coordinator.machine.transactions[key(0)]
    assert (known.batch_id, known.row_count, known.manifest, known.finished, known.aborted) == (-1, 0, (), True, True)
    assert coordinator.ask(Abort(key(0))) == Done(0, duplicate=True)
    assert is_refused(coordinator.ask(decide(0)), TransactionAborted), "the first micro-batch, 0, as well"


def test_a_fence_forgets_what_is_staged_for_its_key_and_keeps_what_is_named_and_what_is_of_others() -> None:
    partition = Coordinator()
    for number, uuid in enumerate((b"kept", b"lost", b"other")):
        entry = Entry(number + 1, 1, 1, Stage(key(number // 2), 0, "run"), uuid.ljust(16), 1)
        partition.machine.apply(entry)
    fence = Fence(key(0), (b"kept".ljust(16),))
    assert partition.ask(fence) == Admit(fence)
    partition.commit()
    assert list(partition.machine.staged) == [b"kept".ljust(16), b"other".ljust(16)]
    assert partition.ask(fence) == Done(0, duplicate=True)
    assert partition.ask(Fence(key(0))) == Admit(Fence(key(0))), "now that is not to be kept either"


def test_an_oldest_staged_batch_keeps_the_journal_from_beginning_after_it() -> None:
    """Rule 13."""
    partition = PartitionMachine(WindowBounds(100))
    assert partition.oldest_staged_index() is None
    for index in (3, 4, 5):
        partition.apply(Entry(index, 1, 1, Stage(key(0), index, "run"), bytes([index]) * 16, 1))
    partition.apply(Entry(6, 1, 1, Publish(key(0), 3, (bytes([3]) * 16, b"never staged".ljust(16)))))
    assert partition.oldest_staged_index() == 4
    assert partition.next_offset == 1, "what is not staged is given no offsets"


def test_a_batch_is_published_only_while_its_payload_is_in_the_journal() -> None:
    """Rule 15, trap 32: a recovery may have lost the entries that published and trimmed it."""
    partition = PartitionMachine(WindowBounds(100))
    partition.apply(Entry(5, 1, 1, Stage(key(0), 0, "run"), bytes(16), 1))
    publish = Propose(1, Publish(key(0), 0, (bytes(16),)), 0)
    assert judge(publish, partition, Overlay([]), 5) == Admit(publish.operation)
    assert isinstance(judge(publish, partition, Overlay([]), 6), Answer)


def test_the_tail_forgets_what_was_applied_and_keeps_what_came_later_under_the_same_name() -> None:
    """Rule 12: the leader sees the tail through an overlay, from which each entry goes when it is applied."""
    records = Append(bytes(16) + bytes([1]) * 16)
    first, again = Entry(1, 1, 1, records, b"batch".ljust(16), 2), Entry(2, 1, 1, records, b"batch".ljust(16), 2)
    fence, later = Entry(3, 1, 1, Fence(key(0))), Entry(4, 1, 1, Forget((key(0), key(1))))
    overlay = Overlay([first, again, fence, later])
    assert (overlay.fence_index(key(0)), overlay.key_index(key(0)), overlay.key_index(key(1)), overlay.key_count) == (
        3,
        4,
        4,
        2,
    )
    overlay.remove(first)
    overlay.remove(fence)
    assert [overlay.uuid_index(uuid) for uuid in (bytes(16), bytes([1]) * 16, b"batch".ljust(16))] == [2, 2, 2]
    assert (overlay.fence_index(key(0)), overlay.key_index(key(0))) == (None, 4)
    overlay.remove(again)
    overlay.remove(later)
    assert overlay.uuid_index(b"batch".ljust(16)) is None
    assert overlay.uuid_index(bytes(16)) is None
    assert (overlay.key_index(key(0)), overlay.key_index(key(1)), overlay.key_count) == (None, None, 0)


def test_an_operation_that_only_a_leader_writes_by_itself_is_refused() -> None:
    assert is_refused(Coordinator().ask(EpochStart(1)), InvalidRequest)


def test_a_decision_that_another_run_asks_for_again_stays_to_be_published() -> None:
    """Only the run is news: what the first one staged is not published yet."""
    coordinator = Coordinator()
    coordinator.ask(once(0))
    coordinator.commit()
    decided = coordinator.machine.transactions[key(0)]
    again = coordinator.ask(Decide(key(0), 0, "another run", 0, once(0).manifest))
    assert again == Admit(Decide(key(0), 0, "another run", 0, ()))
    coordinator.commit()
    known = coordinator.machine.transactions[key(0)]
    assert (known.manifest, known.finished, known.once) == (decided.manifest, False, True)
    assert (known.run_id, known.superseded) == ("another run", ("run",))
