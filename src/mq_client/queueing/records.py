"""What the application is lent: a record, or the rows of a batch, each with what may become of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_client.cluster.deadline import a_number
from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import InvalidRequest, LeaseLost
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.leases import SETTLING, HeldLease, Indexes, LeaseId
from mq_client.queueing.outputs import Outputs
from mq_client.queueing.settling import ACK, RELEASE, Word, failed, rejected
from mq_protocol import mq_pb2 as pb
from mq_protocol.queues.work_keys import WorkPlace

if TYPE_CHECKING:
    import pandas as pd

Mask: TypeAlias = Sequence[bool] | NDArray[np.bool_] | pa.BooleanArray

_OUTCOMES: Final = {
    pb.OUTCOME_ACK: "ack()",
    pb.OUTCOME_RELEASE: "release()",
    pb.OUTCOME_FAIL: "fail()",
    pb.OUTCOME_REJECT: "reject()",
}

DELAY_MS_MAX = 365 * 86_400_000


class LeasedRecord(ConsumerRecord):
    """A record that is lent to this member, until it has an outcome or its lease runs out.

    `lease` says by which lease, as a fencing token: later leases are higher. `deliveries`: how often it was lent, this
    time included. `failures`: how many of those were counted as failed.

    Exactly one outcome is given: `ack`, `fail`, `release` or `reject`. Each returns a future that ends once the outcome
    is committed; it need not be waited for. Its error is `LeaseLost` if the record was not this member's any more.
    Every method raises `LeaseLost` once that is known, and `InvalidRequest` for a second outcome.

    As a context manager it is acknowledged at the end of the block, or fails with the text of the exception that left
    the block. What is no error of the work, such as Ctrl-C, releases it. An outcome that was given inside stands. The
    block is not begun with a record that is known to be lost: that raises `LeaseLost`. An error that leaves the block
    of the queue itself does the same to the record that was taken last.
    """

    lease: LeaseId
    deliveries: int
    failures: int
    _keeper: Keeper | None
    _held: HeldLease
    _index: int
    _outcome: str = ""

    @classmethod
    def of(cls, record: ConsumerRecord, keeper: Keeper, held: HeldLease, index: int) -> LeasedRecord:
        """`index`: its place in the lease."""
        made = cls(*record)
        made._keeper, made._held, made._index = keeper, held, index
        made.lease = held.id
        made.deliveries, made.failures = int(held.deliveries[index]), int(held.failures[index])
        return made

    def with_fields(self, record: ConsumerRecord) -> LeasedRecord:
        """The same lent record with another key and value."""
        assert self._keeper is not None
        return LeasedRecord.of(record, self._keeper, self._held, self._index)

    def ack(self, *, outputs: Outputs | None = None) -> Future[None]:
        """It is done, for good. `outputs`, of `Queue.outputs()`: are published with it, exactly once, or not at all if
        the record is not this member's any more. They are staged first, and this call waits for that: it raises what
        could not be staged, and the record has no outcome then. The future ends once both are decided; readers see the
        outputs a moment later."""
        if outputs is None:
            return self._say(ACK)
        try:
            future = _ack_with(self._opened(), self._held, np.array([self._index], dtype=np.int64), outputs)
        except InvalidRequest as error:
            raise self._second(error) from None
        self._outcome = _OUTCOMES[pb.OUTCOME_ACK]
        return future

    def fail(self, error: object = "", *, delay_ms: float | None = None) -> Future[None]:
        """It failed: it is lent again after `delay_ms` (None: as the group's retries say). Once it has failed
        `delivery_limit` times it is a dead letter: by default it goes to the topic `<topic>.dead`. Of the error's text
        256 bytes are kept."""
        return self._say(failed(error, checked_delay(delay_ms)))

    def release(self, *, delay_ms: float | None = None) -> Future[None]:
        """It goes back, and that does not count as a failure. It is lent again after `delay_ms` (None: at once)."""
        return self._say(Word(pb.OUTCOME_RELEASE, "", checked_delay(delay_ms)))

    def reject(self, error: object = "") -> Future[None]:
        """It can never be worked on: it is a dead letter at once, and lent to nobody any more."""
        return self._say(rejected(error))

    def extend(self) -> Future[None]:
        """The lease's whole time begins anew for it. For work that takes longer than that."""
        keeper = self._opened()
        if keeper.terms.accept:
            return _done()
        return keeper.extend(self._held, np.array([self._index], dtype=np.int64))

    def __enter__(self) -> LeasedRecord:
        self._has_outcome()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fails_with(error)
        elif not self._has_outcome():
            self.ack()

    def fails_with(self, error: BaseException) -> None:
        """What becomes of it when an exception ends the work on it: see above. Nothing, if it has an outcome or is not
        this member's any more."""
        word = failed(_text(error)) if isinstance(error, Exception) else RELEASE
        with contextlib.suppress(LeaseLost):
            if not self._has_outcome():
                self._opened().settle_one(self._held, self._index, word)

    def _has_outcome(self) -> bool:
        """True also of what was settled by being lent. Raises `LeaseLost`."""
        return self._opened().has_outcome(self._held, self._index)

    def _opened(self) -> Keeper:
        keeper = self.__dict__.get("_keeper")
        if keeper is None:  # made by _replace, or unpickled
            raise InvalidRequest("this is a copy of a record that was lent: settle the record itself")
        assert isinstance(keeper, Keeper)
        return keeper

    def _say(self, word: Word) -> Future[None]:
        keeper = self._opened()
        if keeper.terms.accept:
            if word.outcome == pb.OUTCOME_ACK:
                return _done()
            raise InvalidRequest('this queue was opened with ack="auto": its records were settled by being lent')
        try:
            future = keeper.settle_one(self._held, self._index, word)
        except InvalidRequest as error:
            raise self._second(error) from None
        self._outcome = _OUTCOMES[word.outcome]
        return future

    def _second(self, error: InvalidRequest) -> InvalidRequest:
        """The error, with the outcome that the record has, if that is what is wrong."""
        return InvalidRequest(f"{error}, and this one was given {self._outcome}") if self._outcome else error


class LeasedBatch:
    """Rows that are lent to this member, all of one partition and by one lease.

    `rows`: the columns, as they are stored. `offsets`, `deliveries`, `failures`: of each row, as numpy arrays of int64.
    `lease`: as a record's.

    Each row has one outcome. A mask has a truth value for each row and names those that are meant; None means all rows
    that have no outcome yet. Futures and errors are as a record's; the future of rows of which some are lost has the
    error `LeaseLost`, and the others are settled.
    """

    def __init__(self, keeper: Keeper, held: HeldLease, indexes: Indexes, rows: pa.RecordBatch) -> None:
        self._keeper = keeper
        self._held = held
        self._indexes = indexes
        self.rows = rows
        self.topic = keeper.terms.topic
        self.partition = held.partition
        self.lease = held.id
        self.offsets: NDArray[np.int64] = held.offsets[indexes]
        self.deliveries: NDArray[np.int64] = held.deliveries[indexes]
        self.failures: NDArray[np.int64] = held.failures[indexes]

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas data frame, in the order of a mask. Needs pandas."""
        frame: pd.DataFrame = self.rows.to_pandas()
        return frame

    def ack(self, mask: Mask | None = None, *, outputs: Outputs | None = None) -> Future[None]:
        """They are done, for good. `outputs`: as a record's; all of these rows are settled with them, or none."""
        if outputs is None:
            return self._say(mask, ACK)
        return _ack_with(self._keeper, self._held, self._meant(mask), outputs)

    def fail(self, mask: Mask | None = None, error: object = "", *, delay_ms: float | None = None) -> Future[None]:
        """They failed. See `LeasedRecord.fail`."""
        return self._say(mask, failed(error, checked_delay(delay_ms)))

    def release(self, mask: Mask | None = None, *, delay_ms: float | None = None) -> Future[None]:
        """They go back, and that does not count as a failure."""
        return self._say(mask, Word(pb.OUTCOME_RELEASE, "", checked_delay(delay_ms)))

    def reject(self, mask: Mask | None = None, error: object = "") -> Future[None]:
        """They can never be worked on: they are dead letters at once."""
        return self._say(mask, rejected(error))

    def extend(self) -> Future[None]:
        """The lease's whole time begins anew for the rows that have no outcome."""
        left = self._left()
        return self._keeper.extend(self._held, left) if len(left) else _done()

    def _left(self) -> Indexes:
        with self._keeper.lock:
            states = self._held.states[self._indexes]
        return self._indexes[(states < SETTLING) | (states > SETTLING + 1)]

    def _say(self, mask: Mask | None, word: Word) -> Future[None]:
        if self._keeper.terms.accept:
            if word.outcome == pb.OUTCOME_ACK:
                return _done()
            raise InvalidRequest('this queue was opened with ack="auto": its records were settled by being lent')
        indexes = self._meant(mask)
        if not len(indexes):
            return _done()
        self._keeper.check_process()
        try:
            return self._keeper.settle(self._held, indexes, word)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{error}: leave them out of the mask, or give no mask to mean all that have none"
            ) from None

    def _meant(self, mask: Mask | None) -> Indexes:
        return self._left() if mask is None else self._indexes[_chosen(mask, len(self))]


def _ack_with(keeper: Keeper, held: HeldLease, indexes: Indexes, outputs: Outputs) -> Future[None]:
    outputs.check_usable()
    if keeper.terms.accept:
        raise InvalidRequest(
            'this queue was opened with ack="auto": its records were settled by being lent. Open it with '
            'ack="explicit" to publish outputs with them'
        )
    if not len(indexes):
        raise InvalidRequest("outputs are published with the rows that they were made of, and the mask names none")
    keeper.check_unsettled(held, indexes)
    if not outputs:
        return keeper.settle(held, indexes, ACK)
    parts = outputs.stage(WorkPlace(keeper.topic_id, held.partition, keeper.terms.group), held.id)
    future = keeper.ack_with_outputs(held, indexes, parts)
    outputs.note_given()
    return future


def _chosen(mask: Mask, rows: int) -> NDArray[np.bool_]:
    """Raises `InvalidRequest` unless there is a truth value for each row."""
    if isinstance(mask, pa.Array | pa.ChunkedArray):
        mask = mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy()
    chosen: NDArray[np.bool_] = np.asarray(mask)
    if chosen.shape != (rows,) or chosen.dtype != np.bool_:
        raise InvalidRequest(
            f"a mask of type {chosen.dtype} and shape {chosen.shape}: give a truth value for each of the {rows} rows"
        )
    return chosen


def checked_delay(delay_ms: float | None) -> int | None:
    """Raises `InvalidRequest` for a delay that is out of range, `InvalidSetting` for what is no number."""
    if delay_ms is None:
        return None
    if not 0 <= a_number("delay_ms", delay_ms) <= DELAY_MS_MAX:
        raise InvalidRequest(f"delay_ms={delay_ms}: give milliseconds from 0 to {DELAY_MS_MAX}, which is a year")
    return int(delay_ms)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
