"""Topics, above any store: made in two steps, changed by compare-and-set, and read by what has changed since.

The counter of changes, `topic_changes`, is a node whose version grows by one with every change; its data are lines
`number name`, the newest last, the number being the version that the change made. Whoever changes topics reads it, adds
their lines and writes it back in the transaction of the change. A note whose newest number is not the version is not
believed, by readers nor by the next writer, who begins a new one. So a note that is believed is true, whoever wrote
there; and one that is not costs a reading of all topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from mq_broker.coordination import documents
from mq_broker.coordination.documents import Unreadable
from mq_broker.coordination.interface import PARTITIONS_ADDED_AT_ONCE_MAX, NewTopic, TopicChanges, TopicSpec
from mq_broker.coordination.store import (
    Change,
    Check,
    Make,
    Node,
    Put,
    Remove,
    Store,
    Watch,
    Written,
    names_below,
    surely,
)
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    InvalidTopicName,
    OutcomeUnknown,
    TopicExists,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.names import check_topic_name

_log = logging.getLogger(__name__)

LINES_MAX: Final = 100
"""How many changes a reader may be behind and still read only what changed."""

TOPICS_MAX: Final = 50
"""In one transaction. Whoever is not further behind than the note goes reads no more than these."""

CHANGES_MAX: Final = 500
"""In one transaction: at about 300 bytes a state, a seventh of what a store takes at once."""

DOCUMENT_BYTES_MAX: Final = 600_000
"""Of the topics of one transaction."""

_NOTE_ATTEMPTS: Final = 20
_DIGITS_MAX: Final = 10
"""Of a node's version, which is an int32."""

_COUNTER: Final = "topic_changes"


class Topics:
    """What coordination says of topics. Owns what is remembered of the counter. `changed`: called once a topic has
    changed since it was read."""

    def __init__(self, store: Store, unreadable: Unreadable, changed: Watch) -> None:
        self._store = store
        self._unreadable = unreadable
        self._topics_changed = changed
        self._changing = asyncio.Lock()
        self._read_all = True

    def forget_topics(self) -> None:
        """What is remembered may be of another ensemble, or of one that was put back."""
        self._read_all = True

    # -------------------------------------------------------------- reading

    async def topics(self) -> dict[str, TopicSpec]:
        """All topics that can be read; once this has returned, TOPICS_CHANGED will follow any later change."""
        return (await self.topic_changes(-1)).present

    async def topic_changes(self, since: int) -> TopicChanges:
        """As `topics`, but where it is known what has changed since the answer whose `version` was `since`, only that.
        -1: all."""
        if self._read_all:
            since, self._read_all = -1, False
        try:
            return await self._changes(since)
        except BaseException:
            self._read_all = True
            raise

    async def _changes(self, since: int) -> TopicChanges:
        # The counter first: a change after it was read fires the watch, even if what is read below already has it.
        counter = await self._counter(self._topics_changed)
        changed = changed_since(counter.data, counter.version, since) if since >= 0 else None
        names = changed if changed is not None else sorted(await names_below(self._store, "topics"))
        nodes = zip(names, await self._store.get_all([_topic(name) for name in names]), strict=True)
        read = {name: self._unreadable.read(*self._parsed(name, node)) for name, node in nodes if node is not None}
        present = {name: spec for name, spec in read.items() if spec is not None}
        unreadable = tuple(name for name, spec in read.items() if spec is None)
        self._read_all = bool(unreadable)  # whoever puts such a document right need not know of the counter
        gone = tuple(name for name in changed or () if name not in read)
        return TopicChanges(counter.version, changed is None, present, gone, unreadable)

    async def read_topic(self, name: str) -> tuple[int, TopicSpec] | None:
        """(version, topic), read after a sync; None if there is no such topic. `CoordinationUnavailable` for one whose
        document cannot be read, as `read_state` and `delete_topic`."""
        check_topic_name(name, internal=True)
        node = await self._store.get(_topic(name))
        return None if node is None else (node.version, self._unreadable.require(*self._parsed(name, node)))

    def _parsed(self, name: str, node: Node) -> tuple[str, bytes, documents.Parse[TopicSpec]]:
        return self._where(_topic(name)), node.data, documents.topic_of(name)

    def _where(self, path: str) -> str:
        return f"{self._store.home}/{path}"

    async def _counter(self, watch: Watch | None = None) -> Node:
        counter = await self._store.get(_COUNTER, watch)
        if counter is None:
            raise CoordinationUnavailable(f"{self._where(_COUNTER)} is gone: start a broker anew, which makes it")
        return counter

    # -------------------------------------------------------------- making

    async def create_topic(self, topic: TopicSpec, states: tuple[NodeState, ...]) -> None:
        """The topic and the first state (version 0) of each partition, all or nothing: nobody sees one without the
        other. `topic_id` must be fresh. Raises `TopicExists`; `CoordinationUnavailable` if it was certainly not made,
        `OutcomeUnknown` if that is all that can be said."""
        for error in await self.create_topics([(topic, states)]):
            if error is not None:
                raise error

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        """As `create_topic` for each, with what that would have raised at its place. One that is refused keeps no other
        back."""
        for spec, _ in topics:
            check_topic_name(spec.name, internal=True)
        answers: list[TritonMQError | None] = []
        for some in _pieces(topics):
            answers += await self._make(some)
        return answers

    async def _make(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        """All in few transactions, or else each by itself."""
        specs = [spec for spec, _ in topics]
        try:
            written = await self._written(topics)
        except CoordinationUnavailable as error:  # nothing names their states, whatever became of those
            await self._remove_states(specs)
            return [CoordinationUnavailable(f"topic {spec.name!r} was not made: {error}") for spec in specs]
        except InvalidRequest as error:
            refusal: TritonMQError = error
        else:
            if written.done:
                return [None] * len(topics)
            if written.outcome is CasOutcome.UNKNOWN:
                # All at once: while nobody answers each of them waits as long as it may
                return await asyncio.gather(*(self._settled(spec, written.why) for spec in specs))
            refusal = _exists(specs[0])
        await self._remove_states(specs)
        return [refusal] if len(topics) == 1 else [(await self._make([topic]))[0] for topic in topics]

    async def _written(self, topics: Sequence[NewTopic]) -> Written:
        """Raises `CoordinationUnavailable` if none of them was made."""
        states: list[Change] = []
        for spec, first in topics:
            states += [Make(_states(spec)), Make(_unnamed(spec)), *_made(spec, 0, first)]
        for begin in range(0, len(states), CHANGES_MAX):
            written = await self._store.transact(states[begin : begin + CHANGES_MAX])
            if written.outcome is CasOutcome.REFUSED:
                return Written(CasOutcome.UNKNOWN, why="there are states under its id")
            if not written.done:
                raise CoordinationUnavailable(written.why)
        named: list[Change] = [Remove(_unnamed(spec)) for spec, _ in topics]
        named += [Make(_topic(spec.name), _dumped(spec)) for spec, _ in topics]
        return await self._noted([spec.name for spec, _ in topics], named)

    async def _settled(self, topic: TopicSpec, why: str) -> TritonMQError | None:
        """The answer was lost: None if the topic was made after all. What says that it has no name comes away first,
        since the transaction that names it takes it away: if that has not happened by then it never will."""
        not_made = CoordinationUnavailable(f"topic {topic.name!r} was not made: {why}; ask again")
        try:
            await surely(self._store, [Remove(_unnamed(topic))])
            node = await self._store.get(_topic(topic.name))
            found = None if node is None else self._unreadable.require(*self._parsed(topic.name, node))
        except CoordinationUnavailable as error:
            return OutcomeUnknown(
                f"topic {topic.name!r} may or may not have been made: {error}; then see whether it is there"
            )
        if found is not None and found.topic_id == topic.topic_id:
            return None
        await self._remove_states([topic])
        return not_made if found is None else _exists(topic)

    # -------------------------------------------------------------- changing

    async def update_topic(
        self, expected_version: int, topic: TopicSpec, states: tuple[NodeState, ...] = ()
    ) -> tuple[CasOutcome, int]:
        """Compare-and-set on the topic's document, whose name and id stay: (DONE, new version), (REFUSED, -1) or
        (UNKNOWN, -1), as `write_state`. `states` are the first ones of partitions that the document has more than
        before, at most `PARTITIONS_ADDED_AT_ONCE_MAX`: they are there with it or not at all. TOPICS_CHANGED follows
        everywhere."""
        assert expected_version >= 0, "a version of -1 would be no compare-and-set"
        assert len(states) <= PARTITIONS_ADDED_AT_ONCE_MAX
        # A topic made again has version 0 again: only the node above the states, written when a topic goes, tells the
        # two apart.
        changes = [
            Check(_states(topic), 0),
            Put(_topic(topic.name), _dumped(topic), expected_version),
            *_made(topic, len(topic.assignment) - len(states), states),
        ]
        try:
            written = await self._noted([topic.name], changes)
        except CoordinationUnavailable as error:  # nothing was done; who waits for an outcome is told in one way
            _log.warning("topic %s was not changed from version %d: %s", topic.name, expected_version, error)
            return CasOutcome.UNKNOWN, -1
        return written.outcome, written.versions[1] if written.done else -1

    async def delete_topic(self, name: str) -> None:
        """Raises `UnknownTopic`; `OutcomeUnknown` if the answer was lost: ask again. State nodes live under the topic's
        id, so a topic made again never meets old ones (trap 29)."""
        found = await self.read_topic(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r}: see `tritonmq topic list`")
        written = await self._noted([name], [Put(_states(found[1]), b"deleted", 0), Remove(_topic(name))])
        if written.outcome is CasOutcome.UNKNOWN:
            raise OutcomeUnknown(f"topic {name!r} may or may not have been deleted: {written.why}; ask again")
        if not written.done:
            raise UnknownTopic(f"there is no topic {name!r} any more: it was deleted meanwhile")
        await self._remove_states([found[1]])

    async def _noted(self, names: Sequence[str], changes: Sequence[Change]) -> Written:
        """These changes, and the counter that says so. One broker changes at one time: those that meet ask again."""
        async with self._changing:
            for attempt in range(1, _NOTE_ATTEMPTS + 1):
                counter = await self._counter()
                # In the end without insisting: whoever reads the note sees that one is missing
                version = counter.version if attempt < _NOTE_ATTEMPTS else -1
                note = with_changes(counter.data, counter.version, names)
                written = await self._store.transact([*changes, Put(_COUNTER, note, version)])
                if written.at != len(changes):
                    break
        return written

    async def _remove_states(self, topics: Sequence[TopicSpec]) -> None:
        """Of topics that are no more. What cannot be removed now stays, unnamed and harmless."""
        for home in map(_states, topics):
            try:
                if self._store.condition == "suspended":
                    raise CoordinationUnavailable("nobody answers")
                names = await self._store.children(home) or ()
                removed: list[Change] = [*(Remove(f"{home}/{name}") for name in names), Remove(home)]
                for begin in range(0, len(removed), CHANGES_MAX):
                    await self._store.transact(removed[begin : begin + CHANGES_MAX])
            except CoordinationUnavailable as error:
                _log.warning("the states of a removed topic stay behind at %s: %s", self._where(home), error)


def _topic(name: str) -> str:
    return f"topics/{name}"


def _states(topic: TopicSpec) -> str:
    return f"states/{topic.topic_id}"


def _unnamed(topic: TopicSpec) -> str:
    """A node that is there until the topic has its name."""
    return f"{_states(topic)}/unnamed"


def _made(topic: TopicSpec, first: int, states: Sequence[NodeState]) -> list[Change]:
    """The states of partitions from the first one on."""
    dumped = (documents.dump(documents.state_to_json(state)) for state in states)
    return [Make(f"{_states(topic)}/{partition}", data) for partition, data in enumerate(dumped, first)]


def _dumped(topic: TopicSpec) -> bytes:
    return documents.dump(documents.topic_to_json(topic))


def _exists(topic: TopicSpec) -> TopicExists:
    return TopicExists(f"topic {topic.name!r} exists already: choose another name, or delete it first")


def _pieces(topics: Sequence[NewTopic]) -> Iterator[Sequence[NewTopic]]:
    """As many at once as one transaction may have."""
    piece: list[NewTopic] = []
    changes = size = 0
    for topic in topics:
        more, larger = 2 + len(topic[1]), len(_dumped(topic[0]))
        full = len(piece) == TOPICS_MAX or changes + more > CHANGES_MAX or size + larger > DOCUMENT_BYTES_MAX
        if piece and full:
            yield piece
            piece, changes, size = [], 0, 0
        piece.append(topic)
        changes, size = changes + more, size + larger
    if piece:
        yield piece


# ---------------------------------------------------------------- the note


def with_changes(note: bytes, version: int, names: Sequence[str]) -> bytes:
    """The note to write with one change of these topics, where the counter has this note and version now."""
    lines = _lines(note)
    lines = lines if lines and lines[-1][0] == version else []
    lines += [(version + 1, name) for name in names]
    # A change is noted whole, or not at all
    cut = {number for number, _ in lines[:-LINES_MAX]}
    return b"\n".join(f"{number} {name}".encode() for number, name in lines[-LINES_MAX:] if number not in cut)


def changed_since(note: bytes, version: int, known: int) -> list[str] | None:
    """The topics changed after version `known`, in order of name; None if the note does not say."""
    if known == version:
        return []
    lines = _lines(note)
    if known > version or not lines or lines[-1][0] != version or lines[0][0] > known + 1:
        return None
    return sorted({name for number, name in lines if number > known})


def _lines(note: bytes) -> list[tuple[int, str]]:
    """No line if one of them is not what is written here: then all topics are read. Names become parts of paths."""
    lines: list[tuple[int, str]] = []
    for line in note.split(b"\n"):
        number, _, name = line.partition(b" ")
        try:
            check_topic_name(name.decode(), internal=True)
        except (InvalidTopicName, UnicodeDecodeError):
            return []
        if not number.isdigit() or len(number) > _DIGITS_MAX:
            return []
        lines.append((int(number), name.decode()))
    return lines
