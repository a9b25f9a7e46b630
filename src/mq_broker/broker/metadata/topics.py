"""The topics as this broker last read them, and which of their partitions it should hold.

The coordination service is the truth; this is a copy, read again on every hint and whenever a client names a topic that
is not in it. Opening and closing partitions is the shell's: `Topics` only says which.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from mq_broker.broker.runtime.periodic import Periodic
from mq_broker.coordination.documents import check_topic_size
from mq_broker.coordination.editing import until_written
from mq_broker.coordination.interface import TopicChanges, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.arrow import schema_fingerprint, schema_from_bytes
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, TritonMQError, UnknownTopic
from mq_protocol.names import (
    INTERNAL_PREFIX,
    Durability,
    TopicSettings,
    check_topic_name,
    no_such_topic,
    parse_settings,
    quoted,
)
from mq_protocol.sql.ddl import check_schema
from mq_protocol.sql.evolution import versions

log = logging.getLogger(__name__)


SWEEP_S: Final = 30.0
REFRESH_S_MIN: Final = 0.2
"""Clients that name topics or columns which do not exist cause no more reads than this allows."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with everything that is computed from its specification once. `versions`: what its schema is and has
    been, by fingerprint: producers that know a former one go on."""

    spec: TopicSpec
    settings: TopicSettings
    schema: pa.Schema
    versions: dict[int, pa.Schema]

    @classmethod
    def of(cls, spec: TopicSpec) -> Topic:
        """Raises a `TritonMQError` for a specification that this version cannot read."""
        schema = schema_from_bytes(spec.schema)
        if spec.schema and check_schema(schema) != schema:
            raise InvalidRequest("its schema is none that a topic can have: put back what was there")
        settings = parse_settings(spec.settings, spec.replicas)
        known = {schema_fingerprint(version): version for version in versions(schema, spec.earlier)}
        return cls(spec, settings, schema, known)

    @property
    def volatile(self) -> bool:
        return self.settings.durability is Durability.MEMORY

    @property
    def internal(self) -> bool:
        """One of the brokers' own."""
        return self.spec.name.startswith(INTERNAL_PREFIX)

    @property
    def partitions(self) -> int:
        return len(self.spec.assignment)


def first_state(members: tuple[int, ...]) -> NodeState:
    """Of a new partition: named by no log yet (the empty log id), so whoever of them claims first puts its own in its
    place."""
    return NodeState(None, 0, tuple(sorted((broker, "") for broker in members)), 0, "")


OnTopics = Callable[[dict[str, Topic], Collection[str] | None], None]
"""Given all topics by id after a successful read, and the ids of those that are others than before, or gone (None:
perhaps all)."""


class Topics:
    """Owns this broker's copy of the list of topics."""

    def __init__(self, coordination: CoordinationService, on_topics: OnTopics) -> None:
        self._coordination = coordination
        self._on_topics = on_topics
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[str, Topic] = {}
        self._present: dict[str, tuple[str, int]] = {}  # id and partitions, by name
        self._sorted: list[Topic] | None = []  # None: they have changed since
        self._version = -1
        self._kept: dict[str, str] = {}  # topics that an earlier state lacks (""), or has under another id (that)
        self._unreadable: set[str] = set()
        self._told: dict[str, TopicSpec] = {}  # those that this version cannot read, as they were when the log said so
        self._reading = asyncio.Lock()
        self._begun = 0
        self._read_last = 0
        self._refreshed_at = float("-inf")

    def all(self) -> list[Topic]:
        """In order of name. The list is not changed afterwards."""
        if self._sorted is None:
            self._sorted = [self._by_name[name] for name in sorted(self._by_name)]
        return self._sorted

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def with_id(self, topic_id: str) -> Topic | None:
        """As this broker read it last."""
        return self._by_id.get(topic_id)

    async def get(self, name: str) -> Topic:
        """The topic, read anew if it is not known. Raises `UnknownTopic`, `InvalidTopicName` or
        `CoordinationUnavailable`, which is also for one whose document cannot be read."""
        topic = self._by_name.get(name)
        if topic is None:
            check_topic_name(name, internal=True)  # one that cannot be there is not looked for, nor told back whole
            now = asyncio.get_running_loop().time()
            if now - self._refreshed_at >= REFRESH_S_MIN:
                await self.refresh()
            topic = self._by_name.get(name)
        if topic is None:
            self._check_readable(name)
            raise UnknownTopic(no_such_topic(name))
        return topic

    async def renewed(self, topic: Topic) -> Topic:
        """The topic as the coordination service has it now: for a client that may know of its columns before this
        broker does. Raises `UnknownTopic` or `CoordinationUnavailable`."""
        return await self.looked_for(topic.spec.name)

    async def looked_for(self, name: str) -> Topic:
        """The same of the topic of that name, which may have been made a moment ago. Raises what `get` raises."""
        check_topic_name(name, internal=True)
        wanted = self._begun + 1
        await asyncio.sleep(max(0.0, self._refreshed_at + REFRESH_S_MIN - asyncio.get_running_loop().time()))
        if self._read_last < wanted:  # nobody else has read it since this call
            await self.refresh()
        return await self.get(name)

    async def meant(self, name: str, topic_id: str) -> Topic:
        """As `get`, for a client that goes on with a topic of which it knows the id ("": it does not). Raises
        `UnknownTopic` for another topic that has been made under that name since."""
        topic = await self.get(name)
        if topic_id not in ("", topic.spec.topic_id):  # the client may have heard of it before this broker did
            topic = await self.renewed(topic)
        if topic_id not in ("", topic.spec.topic_id):
            raise UnknownTopic(f"topic {name!r} was deleted and made again: begin anew to read that one")
        return topic

    async def exists(self, name: str, partition: int, topic_id: str = "") -> bool:
        """Whether there is that partition (of the topic with that id, if one is given), as the coordination service
        says now: also one that this version cannot read. Raises `CoordinationUnavailable`, also if its document says
        nothing."""
        await self.refresh()
        self._check_readable(name)
        present_id, partitions = self._present.get(name, ("", 0))
        return topic_id in ("", present_id) and 0 <= partition < partitions

    async def is_gone(self, topic_id: str) -> bool:
        """Whether there is no topic of that id, as the coordination service says now. Raises `CoordinationUnavailable`,
        also while a document that cannot be read may be its."""
        await self.refresh()
        if any(present_id == topic_id for present_id, _ in self._present.values()):
            return False
        for name in self._unreadable:
            self._check_readable(name)
        return True

    def _check_readable(self, name: str) -> None:
        if name in self._unreadable:
            raise CoordinationUnavailable(
                f"the document of topic {name!r} cannot be read: the broker's log says where it is"
            )

    async def refresh(self, until: str = "") -> None:
        """Read the list of topics and let the shell follow. Raises `CoordinationUnavailable`.

        Callers that come while a read is under way share the next one: the present one may have missed what they look
        for. Who looks for the topic of the id `until` alone is content with the present one, if that has found it.
        """
        wanted = self._begun + 1
        async with self._reading:
            if self._read_last >= wanted or until in self._by_id:
                return
            self._begun += 1
            begun = self._begun
            self._take(await self._coordination.topic_changes(self._version))
            self._read_last = begun

    def _take(self, changes: TopicChanges) -> None:
        # One whose document cannot be read is there: it stays as it was last known, if it was (trap 18).
        absent = (self._present.keys() - changes.present.keys()) if changes.whole else set(changes.gone)
        if changes.version < self._version:
            self._keep(changes, absent - set(changes.unreadable))
        elif not changes.whole:  # somebody has deleted them since
            self._kept = {name: old for name, old in self._kept.items() if name not in absent}
        present = {name: spec for name, spec in changes.present.items() if self._kept.get(name) != spec.topic_id}
        self._kept = {name: old for name, old in self._kept.items() if name not in present}
        absent -= self._kept.keys()
        names = (present.keys() | absent) - set(changes.unreadable)
        self._unreadable = {*changes.unreadable, *(() if changes.whole else self._unreadable - names)}
        before = {name: self._by_name[name] for name in names if name in self._by_name}
        known = {topic.spec.topic_id: topic for topic in before.values()}
        after = {name: topic for name, spec in present.items() if (topic := self._read(spec, known.get(spec.topic_id)))}
        changed: set[str] = set()
        for name in sorted(names):  # topics have one order, however strings are hashed
            if name in present:
                self._present[name] = present[name].topic_id, len(present[name].assignment)
            else:
                self._present.pop(name, None)
            was, now = before.get(name), after.get(name)
            if was is now:
                continue
            if was is not None:
                del self._by_id[was.spec.topic_id], self._by_name[name]
                changed.add(was.spec.topic_id)
            if now is not None:
                self._by_id[now.spec.topic_id] = self._by_name[name] = now
                changed.add(now.spec.topic_id)
        if changed:
            self._sorted = None
        self._version = changes.version
        self._refreshed_at = asyncio.get_running_loop().time()
        self._on_topics(dict(self._by_id), None if changes.whole else changed)

    def _keep(self, changes: TopicChanges, absent: set[str]) -> None:
        """The coordination service was put back to an earlier state. No topic is deleted that this state does not have
        yet, or has under the id of a former one (trap 18): now, or when it is read again."""
        known = self._by_name
        older = {n for n, spec in changes.present.items() if n in known and known[n].spec.topic_id != spec.topic_id}
        if lost := absent | older:
            log.error(
                "the coordination service went back to an earlier state (topic change %d after %d), without topics %s: "
                "they stay as they were while this broker runs, and their files after that. Restore a newer backup; do "
                "not make them again",
                changes.version,
                self._version,
                sorted(lost),
            )
        self._kept |= {name: changes.present[name].topic_id if name in older else "" for name in lost}

    def _read(self, spec: TopicSpec, known: Topic | None) -> Topic | None:
        """The topic, the one that is known if nothing about it has changed."""
        if known is not None and known.spec == spec:
            return known
        try:
            topic = Topic.of(spec)
        except TritonMQError as error:
            if self._told.get(spec.name) != spec:
                self._told[spec.name] = spec
                log.error("topic %s cannot be read by this version: it is left alone: %s", quoted(spec.name), error)  # noqa: TRY400
            return known  # it is there: to leave it out would be to say that it was deleted (trap 18)
        self._told.pop(spec.name, None)
        return topic

    async def edit(self, name: str, change: Callable[[TopicSpec], TopicSpec]) -> Topic:
        """Replace the topic's document by what `change` makes of it, whatever others do to it meanwhile.

        `change` is given the document as it is now, perhaps several times, and must make the same of what it has made
        already: after a lost answer it is asked again. Partitions that it adds begin empty. Raises what `change`
        raises, `InvalidRequest` for a document that grows beyond what the coordination service takes, `UnknownTopic`,
        `CoordinationUnavailable`, or `OutcomeUnknown` when others keep changing the topic.
        """

        async def attempt() -> bool | None:
            found = await self._coordination.read_topic(name)
            if found is None:
                raise UnknownTopic(f"there is no topic {name!r} any more: it was deleted meanwhile")
            version, spec = found
            wanted = change(spec)
            added = wanted.assignment[len(spec.assignment) :]
            if wanted == spec:
                return True
            check_topic_size(wanted, spec)
            outcome, _ = await self._coordination.update_topic(version, wanted, tuple(map(first_state, added)))
            return True if outcome is CasOutcome.DONE else None

        await until_written(attempt, f"topic {name!r}")
        await self.refresh()
        return await self.get(name)

    def following(self, changed: asyncio.Event) -> Periodic:
        """Reads again on every hint, and now and then without one."""
        return Periodic(
            "follow topics", SWEEP_S, self.refresh, hint=changed, unread="the list of topics cannot be read"
        )
