"""Transactions as an administrator sees them: what queries have staged and decided, a dead query's key aborted, and a
key given to another user.

Queries are named by the first 16 hexadecimal digits of the SHA-256 of their id, since whoever knows an id can write in
the query's name. `Admin` offers these methods as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, attempts
from mq_client.cluster.requests import ask_each
from mq_client.errors import InvalidRequest, TritonMQError, UnknownTransaction, Unreachable
from mq_client.shown.described import described
from mq_protocol import mq_pb2 as pb

_Done = TypeVar("_Done")

_BROKER_MS = 3_000.0
"""A broker's time to say what it knows, when there are others."""


@dataclass(frozen=True, slots=True)
class StagedSum:
    """What one query has staged in one partition and nobody has decided yet. `bytes` as stored; `since_us`: when the
    oldest batch was staged, microseconds since 1970. `pins`: it keeps the partition's journal from being shortened by
    retention."""

    topic: str
    partition: int
    batches: int
    rows: int
    bytes: int
    first_batch_id: int
    last_batch_id: int
    since_us: int
    pins: bool


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One query writing to one sink. `query` is its name in listings. `batch_id`: the last decided micro-batch, -1 if
    there is none, or its coordinator did not answer; `published`: all that is decided is published. `changed_us`: when
    that was, else 0. `owner`: whose it is, as `User:etl`; empty if nobody has decided under it who has a name.

    `silent`: addresses of brokers that did not answer; what only they know is missing. `left_out`: so much more is
    known.
    """

    query: str
    sink: str
    batch_id: int = -1
    row_count: int = 0
    published: bool = True
    aborted: bool = False
    changed_us: int = 0
    staged: tuple[StagedSum, ...] = ()
    silent: tuple[str, ...] = ()
    left_out: int = 0
    owner: str = ""

    @property
    def key(self) -> str:
        """What `transaction show`, `give` and `abort` take: the query alone, if it writes to topics that its rows
        name."""
        return f"{self.query}:{self.sink}" if self.sink else self.query

    @property
    def batches(self) -> int:
        """Staged batches of all partitions together."""
        return sum(part.batches for part in self.staged)

    @property
    def bytes(self) -> int:
        """Their stored size."""
        return sum(part.bytes for part in self.staged)

    @property
    def since_us(self) -> int:
        """When the oldest of them was staged; 0 if there is none."""
        return min((part.since_us for part in self.staged), default=0)

    @property
    def pins(self) -> bool:
        """Whether they keep any journal from being shortened."""
        return any(part.pins for part in self.staged)


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """What an abort did. `batch_id`: the last micro-batch that had been decided before, -1 if none; `published`: it is
    readable everywhere. `discarded`: staged batches that were removed now. `unreached`: where there may be more, and
    why; the brokers remove those by themselves once they can."""

    query: str
    sink: str
    batch_id: int
    published: bool
    discarded: int
    unreached: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GivenTransaction:
    """A key that was given to `owner`. `former`: whose it was, the same if it was given before; empty if it was
    nobody's who has a name."""

    query: str
    sink: str
    owner: str
    former: str


class TransactionAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def transactions(self, query: str = "") -> list[TransactionDescription]:
        """What exactly-once queries have decided and staged: all queries, or one by its id or its listed name.
        Queries that keep a journal from being shortened come first. Empty if there are none. Raises `Unreachable` if
        no broker answers."""
        found, _ = _ask_all(self._connection, query, Deadline(self._timeout_ms))
        return sorted(found.values(), key=lambda each: (not each.pins, -each.bytes, each.query, each.sink))

    def abort_transaction(self, query: str) -> AbortedTransaction:
        """Fence a dead query's key for ever, and remove what it has staged and not decided. What it has decided is
        published.

        `query`: its id, or its name as listed, with ":" and the sink behind it if it writes to several. Idempotent:
        whatever dies on the way, ask again. From then on the query is refused as `TransactionAborted`. Raises
        `UnknownTransaction` if nobody has staged or decided anything under that name, `InvalidRequest` if several sinks
        are meant.
        """
        if not query:
            raise InvalidRequest("name the query to abort, as `transactions` lists it")
        deadline = Deadline(self._timeout_ms)

        def abort(chosen: TransactionDescription, address: str) -> AbortedTransaction | None:
            request = pb.AbortTransactionRequest(query=chosen.query, sink=chosen.sink, timeout_ms=_left_ms(deadline))
            answer = self._connection.ask(address, "AbortTransaction", request, pb.AbortTransactionResponse, deadline)
            return described(AbortedTransaction, answer, query=chosen.query, sink=chosen.sink) if answer.known else None

        return _until_known(self._connection, query, deadline, abort)

    def give_transaction(self, query: str, owner: str) -> GivenTransaction:
        """Give a query's key to another user, who alone decides under it from then on: for a query that goes on under a
        new user name. Stop it first, and start it as the new user, with its checkpoint.

        `query`: as for `abort_transaction`. `owner`: `User:NAME`. Idempotent. Needs the right to alter the transaction,
        of its owner too. Raises `UnknownTransaction` if nobody has decided anything under that name, or it may not be
        altered; `TransactionAborted`; `InvalidRequest` if several sinks are meant, or nobody can be that owner.
        """
        if not query:
            raise InvalidRequest("name the query to give to another user, as `transactions` lists it")
        deadline = Deadline(self._timeout_ms)

        def give(chosen: TransactionDescription, address: str) -> GivenTransaction | None:
            if chosen.batch_id < 0 and not chosen.aborted and not chosen.silent:
                raise UnknownTransaction(
                    f"nobody has decided anything under {chosen.key}, so it is nobody's: whoever decides first has it"
                )
            request = pb.GiveTransactionRequest(
                query=chosen.query, sink=chosen.sink, owner=owner, timeout_ms=_left_ms(deadline)
            )
            answer = self._connection.ask(address, "GiveTransaction", request, pb.GiveTransactionResponse, deadline)
            return GivenTransaction(chosen.query, chosen.sink, owner, answer.former) if answer.known else None

        return _until_known(self._connection, query, deadline, give)


def _left_ms(deadline: Deadline) -> int:
    """For a broker, so much that its answer comes back in time."""
    return int(900 * deadline.remaining_s) or 1


def _until_known(
    connection: Connection, query: str, deadline: Deadline, ask: Callable[[TransactionDescription, str], _Done | None]
) -> _Done:
    """What `ask` returns of the one query meant, asked of a broker that knows of it; again while that one does not know
    it any more."""
    last: TritonMQError | None = None
    for _ in attempts(deadline):
        try:
            found, where = _ask_all(connection, query, deadline)
            chosen = _only(found.values(), query)
            done = ask(chosen, where[chosen.query, chosen.sink])
        except TritonMQError as error:
            if not error.retriable:
                raise
            last = error
        else:
            if done is not None:
                return done
            # Whoever told of it did not know it a moment later: another leads by now, or the right is missing.
            last = UnknownTransaction(
                f"transaction {chosen.key} was not found again: ask once more. Whoever lacks the right is told the same"
            )
    assert last is not None
    raise last


def _only(found: Iterable[TransactionDescription], query: str) -> TransactionDescription:
    several = sorted(found, key=lambda each: each.key)
    if len(several) > 1:
        named = ", ".join(each.key if each.sink else f"{each.query}:" for each in several)
        raise InvalidRequest(f"{query!r} writes to several sinks: choose one of {named}")
    if not several:
        raise UnknownTransaction(
            f"no query has staged or decided anything as {query!r}: give a query's id, or its name in `tritonmq "
            "transaction list`"
        )
    return several[0]


def _ask_all(
    connection: Connection, query: str, deadline: Deadline
) -> tuple[dict[tuple[str, str], TransactionDescription], dict[tuple[str, str], str]]:
    """What each broker tells, put together, and a broker that knows of it."""

    def ask(address: str, limit: Deadline) -> pb.TransactionsResponse:
        request = pb.TransactionsRequest(query=query)
        return connection.ask(address, "Transactions", request, pb.TransactionsResponse, limit)

    told, silent = ask_each(connection, _BROKER_MS, ask, deadline)
    found: dict[tuple[str, str], TransactionDescription] = {}
    where: dict[tuple[str, str], str] = {}
    parts: dict[tuple[str, str], dict[tuple[str, int], StagedSum]] = {}
    for address, answer in told.items():
        for known in answer.known:
            key = known.query, known.sink
            where[key] = address
            before = found.get(key)
            if before is None or before.changed_us < known.changed_us:
                found[key] = described(TransactionDescription, known)
        for s in answer.staged:
            key = s.query, s.sink
            where.setdefault(key, address)
            parts.setdefault(key, {})[s.topic, s.partition] = described(StagedSum, s)
    if silent and not found and not parts and query:
        raise Unreachable(f"no answer from {', '.join(silent)}, and the others know nothing of {query!r}: ask again")
    together = {
        key: replace(
            found.get(key) or TransactionDescription(*key),
            staged=tuple(part for _, part in sorted(parts.get(key, {}).items())),
            silent=tuple(silent),
            left_out=sum(answer.left_out for answer in told.values()),
        )
        for key in found.keys() | parts.keys()
    }
    return together, where
