"""Many topics made in few transactions of ZooKeeper: all of one or none. Where that does not go each is made by itself.

The steps are those of one topic (zookeeper.py): first the states of all, under fresh ids where nobody looks, then the
topics themselves with the change counter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError

from mq_broker.coordination import change_notes, documents
from mq_broker.coordination.interface import NewTopic, TopicSpec, refusal
from mq_broker.coordination.kazoo_session import AnswerLost, KazooSession
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, TritonMQError
from mq_protocol.names import check_topic_name

TOPICS_MAX: Final = 50
"""In one transaction. Whoever is not further behind than the change counter's note goes reads no more than these."""

OPERATIONS_MAX: Final = 500
DOCUMENT_BYTES_MAX: Final = 600_000
"""Of the topics of one transaction, below the megabyte that ZooKeeper takes."""

NOTE_ATTEMPTS: Final = 20
"""To note topics together with their making, while other brokers make theirs. One broker makes at one time."""


def states_into(transaction: TransactionRequest, home: str, topic: NewTopic) -> None:
    """The first states of a topic's partitions, and the node above them."""
    transaction.create(home)
    for partition, state in enumerate(topic[1]):
        transaction.create(f"{home}/{partition}", documents.dump(documents.state_to_json(state)))


class TopicsTogether:
    """Owns nothing. `path`: of the names below the root. `create`: makes one topic by itself. `settle`: returns if a
    topic was made whose answer was lost, raises if not. `remove_states`: of a topic that was not made. `making`: held
    while the change counter is read and written."""

    def __init__(
        self,
        session: KazooSession,
        path: Callable[..., str],
        making: asyncio.Lock,
        create: Callable[..., Awaitable[None]],
        settle: Callable[[TopicSpec, Exception], Awaitable[None]],
        remove_states: Callable[[str], Awaitable[None]],
    ) -> None:
        self._session = session
        self._path = path
        self._making = making
        self._create = create
        self._settle = settle
        self._remove_states = remove_states

    async def make(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        """As `CoordinationService.create_topics`."""
        for spec, _ in topics:
            check_topic_name(spec.name, internal=True)
        answers: list[TritonMQError | None] = []
        for some in _pieces(topics):
            answers += await self._make_some(some)
        return answers

    async def _make_some(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        if len(topics) > 1:
            try:
                await self._make_all(topics)
            except (
                NodeExistsError,
                BadVersionError,
                InvalidRequest,
            ):  # one is there already, or they are too large: each by itself
                await asyncio.gather(*(self._remove_states(spec.topic_id) for spec, _ in topics))
            except (AnswerLost, CoordinationUnavailable) as lost:
                # All at once: while nobody answers each of them waits as long as it may
                return await asyncio.gather(*(refusal(self._settle(spec, lost)) for spec, _ in topics))
            else:
                return [None] * len(topics)
        return [await refusal(self._create(*topic)) for topic in topics]

    async def _make_all(self, topics: Sequence[NewTopic]) -> None:
        deadline = self._session.deadline()

        def build_states(transaction: TransactionRequest) -> None:
            for topic in topics:
                states_into(transaction, self._path("states", topic[0].topic_id), topic)

        await self._session.commit(build_states, deadline)
        async with self._making:
            for attempt in range(1, NOTE_ATTEMPTS + 1):
                try:
                    await self._name([spec for spec, _ in topics], deadline, is_last=attempt == NOTE_ATTEMPTS)
                    return
                except BadVersionError:  # another topic was changed meanwhile
                    if attempt == NOTE_ATTEMPTS:
                        raise

    async def _name(self, specs: Sequence[TopicSpec], deadline: float, *, is_last: bool) -> None:
        counter = self._path("topic_changes")
        note, stat = await self._session.ask_again(lambda client: client.get_async(counter), deadline)
        noted = change_notes.with_changes(note, stat.version, [spec.name for spec in specs])

        def build(transaction: TransactionRequest) -> None:
            for spec in specs:
                transaction.check(self._path("states", spec.topic_id), 0)
                transaction.create(self._path("topics", spec.name), documents.dump(documents.topic_to_json(spec)))
            # Each topic counts. What the node says in between nobody sees.
            transaction.set_data(counter, b"" if len(specs) > 1 else noted, -1 if is_last else int(stat.version))
            for count in range(2, len(specs) + 1):
                transaction.set_data(counter, noted if count == len(specs) else b"")

        await self._session.commit(build, deadline)


def _pieces(topics: Sequence[NewTopic]) -> Iterator[Sequence[NewTopic]]:
    """As many at once as one transaction may have."""
    piece: list[NewTopic] = []
    operations = size = 0
    for topic in topics:
        spec, states = topic
        more, larger = 1 + len(states), len(documents.dump(documents.topic_to_json(spec)))
        if piece and (
            len(piece) == TOPICS_MAX or operations + more > OPERATIONS_MAX or size + larger > DOCUMENT_BYTES_MAX
        ):
            yield piece
            piece, operations, size = [], 0, 0
        piece.append(topic)
        operations, size = operations + more, size + larger
    if piece:
        yield piece
