"""Metadata and topics: what any broker answers about all of them, and making and deleting them.

Of partitions held here the replica's own knowledge is told; of others the state node's, read through a short cache that
also serves when the coordination service is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from mq_broker.broker.administration.features import describe_broker
from mq_broker.broker.administration.ownership import check_room, is_counted, owner_of_new
from mq_broker.broker.administration.placement import place
from mq_broker.broker.administration.rebalancing import resized
from mq_broker.broker.administration.topic_changes import (
    begun,
    check_level,
    check_partitions,
    with_columns,
    with_settings,
)
from mq_broker.broker.config import AutoCreate
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topic, Topics, first_state
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.coordination.documents import check_topic_size
from mq_broker.coordination.interface import PARTITIONS_ADDED_AT_ONCE_MAX, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import NodeState
from mq_broker.rpc.callers import asker, client_port
from mq_broker.rpc.calls import Calls
from mq_broker.security.authority import NOBODY_ASKS
from mq_broker.security.quotas import Quotas
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.arrow import RECORD_SCHEMA, schema_from_bytes, schema_to_bytes
from mq_protocol.errors import (
    CoordinationUnavailable,
    CorruptBatch,
    InvalidRequest,
    InvalidSetting,
    OutcomeUnknown,
    TopicExists,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.limits import (
    ANSWER_BYTES_MAX,
    MESSAGE_OVERHEAD_BYTES,
    NAME_BYTES_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    REPLICAS_MAX,
    YIELD_EVERY,
)
from mq_protocol.names import (
    INTERNAL_PREFIX,
    TRANSACTIONS_TOPIC,
    Durability,
    TopicSettings,
    check_new_topic_name,
    check_topic_name,
    did_you_mean,
    parse_settings,
)
from mq_protocol.sql.ddl import check_column_names, check_schema
from mq_protocol.versions import Versions, check_overlap, ours

log = logging.getLogger(__name__)

RECORD_SCHEMA_BYTES: Final = schema_to_bytes(RECORD_SCHEMA)
STATE_CACHE_S: Final = 1.0
READS_AT_ONCE: Final = 64
READY_POLL_S: Final = (0.02, 0.05, 0.1, 0.2)
TOPIC_TOLD_BYTES: Final = 1_000
PARTITION_TOLD_BYTES: Final = 128
"""About what a topic and a partition take in an answer. As objects it is several times as much as on the wire."""
TRANSACTIONS_PARTITIONS: Final = 8
"""Coordinators in a cluster: a decision is a few small entries, so eight spread them over brokers and still open
fast."""
TRANSACTIONS_REPLICAS: Final = 3


AUTO_CREATED_TOPICS_MAX: Final = 1_000
"""With so many topics in the cluster none is made by itself any more: a program that makes up names must not go on for
ever."""


LEADERS_KNOW_S: Final = 2.0


def _moving_to(topic: Topic, number: int) -> tuple[int, ...]:
    return topic.spec.moving[number].target if number in topic.spec.moving else ()


def _may(operation: Operation, topic: str) -> bool:
    """Whether whoever asks may do that with the topic."""
    return asker().may(operation, Kind.TOPIC, topic)


class _Told:
    """Owns the room in one answer about topics. `waiting`: partitions of topics that were taken and are still to be
    described."""

    def __init__(self) -> None:
        self.waiting = 0
        self._topics: list[Topic] = []
        self._bytes = 0

    def takes(self, topic: Topic) -> bool:
        """Whether there is room for one more. There is always room for the first."""
        size = len(topic.spec.schema) + TOPIC_TOLD_BYTES + PARTITION_TOLD_BYTES * topic.partitions
        if self._bytes and self._bytes + size > ANSWER_BYTES_MAX:
            return False
        self._bytes += size
        self._topics.append(topic)
        self.waiting += 1 + topic.partitions
        return True

    def take(self) -> list[Topic]:
        taken, self._topics, self.waiting = self._topics, [], 0
        return taken


class Admin:
    """Owns the cache of other brokers' partitions."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        topics: Topics,
        coordination: CoordinationService,
        calls: Calls,
        topic_name_max: int = NAME_BYTES_MAX,
        auto_create: AutoCreate | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._shell = shell
        self._cluster = cluster
        self._topics = topics
        self._coordination = coordination
        self._calls = calls
        self._topic_name_max = topic_name_max
        self._states: dict[tuple[str, int], tuple[float, NodeState]] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._making_transactions = asyncio.Lock()
        self._auto_create = auto_create
        self._making_topics = asyncio.Lock()
        self.counting = asyncio.Lock()  # the topics of who may only have so many: what two make at once counts as well
        self.quotas = quotas or Quotas()
        self._known_to_leaders: set[str] = set()
        self.why_not_ready: Callable[[], str] = str
        """Why this broker is to be sent no work yet: said once it is known who knows."""

    # ------------------------------------------------------------------ metadata

    async def metadata(self, request: pb.MetadataRequest, deadline: float) -> pb.MetadataResponse:
        """The brokers, and the topics that are named (or all that are not internal), as many as fit one answer: `more`
        says whether some did not. Never fails for an unknown topic, which every one is that the asker may not
        describe."""
        mine = ours()
        theirs = Versions.said(request.protocol, request.protocol_oldest)
        check_overlap(f"broker {self._shell.broker}", mine, "this client", theirs)
        response = pb.MetadataResponse(
            answered_by=self._shell.broker,
            coordination=self._coordination.condition,
            coordination_access=self._coordination.access,
            security_floor=self._cluster.demanding.demands,
            insecure_brokers=sorted(broker for broker, each in self._cluster.brokers.items() if each.insecure),
            level=self._cluster.level,
            protocol=mine.protocol,
            protocol_oldest=mine.protocol_oldest,
            release=mine.release,
            not_ready=self.why_not_ready(),
        )
        for broker in sorted(self._cluster.brokers):
            registration = self._cluster.brokers[broker]
            if registration.address_for(client_port()):  # else whoever asks cannot reach it
                describe_broker(registration, response.brokers.add())
        told = _Told()
        async for name in in_turns(self._asked_for(request)):
            if not _may(Operation.DESCRIBE, name):
                response.unknown_topics.append(name)
                continue
            try:
                topic = await self._named(name, deadline)
            except UnknownTopic:
                made = await self._made_by_itself(request)
                if made is None:
                    response.unknown_topics.append(name)
                    continue
                topic = made
            await self._until_leaders_know(topic, request, deadline)
            if not told.takes(topic):
                response.more = True
                break
            if told.waiting >= YIELD_EVERY:
                await self._tell(told, response)
        await self._tell(told, response)
        return response

    async def _named(self, name: str, deadline: float) -> Topic:
        """The coordinators' topic is made for whoever looks for it, but not for a broker: one that makes it asks the
        others who leads, and would wait for a broker that waits for it. Raises `UnknownTopic`."""
        if name == TRANSACTIONS_TOPIC and asker() is not NOBODY_ASKS:
            return await self.transactions_topic(deadline)
        return await self._topics.get(name)

    async def _made_by_itself(self, request: pb.MetadataRequest) -> Topic | None:
        """The one topic that is asked for, made because somebody is about to use it; None if this broker is not set to
        do that.

        One at a time. Raises what making a topic raises, `InvalidRequest` where the cluster has so many that none is
        made so.
        """
        if self._auto_create is None or not request.auto_create or len(request.topics) != 1:
            return None
        name = request.topics[0]
        if not _may(Operation.CREATE, name):
            return None
        check_new_topic_name(name, self._topic_name_max)
        async with self._making_topics:
            if self._topics.find(name) is None and len(self._topics.all()) >= AUTO_CREATED_TOPICS_MAX:
                raise InvalidRequest(
                    f"topic {name!r} is not made by itself: there are {AUTO_CREATED_TOPICS_MAX} topics already; create "
                    "it, or delete topics that are not needed"
                )
            try:
                return await self._create(name, self._auto_create.partitions, self._auto_create.replicas, b"", {})
            except TopicExists:  # somebody was as quick, here or at another broker
                await self._topics.refresh()  # `get` alone does not read again so soon after `_create` did
                return await self._topics.get(name)

    async def _until_leaders_know(self, topic: Topic, request: pb.MetadataRequest, deadline: float) -> None:
        """Where topics are made by themselves, one may be so new that its leaders have not heard of it: who is told of
        it now would be told by them that there is none. Looked at once a topic; a partition that has no leader is not
        waited for longer."""
        if self._auto_create is None or not request.auto_create or topic.spec.topic_id in self._known_to_leaders:
            return
        with contextlib.suppress(OutcomeUnknown):
            await self._wait_until_led(topic, min(deadline, asyncio.get_running_loop().time() + LEADERS_KNOW_S))
        if len(self._known_to_leaders) > AUTO_CREATED_TOPICS_MAX:
            self._known_to_leaders.clear()
        self._known_to_leaders.add(topic.spec.topic_id)

    def _asked_for(self, request: pb.MetadataRequest) -> list[str]:
        """Names of topics: those asked for, and in their order all that come after the one told last."""
        if not request.all_topics:
            return list(request.topics)
        names = [topic.spec.name for topic in self._topics.all() if topic.spec.name > request.after]
        told = (name for name in names if not name.startswith(INTERNAL_PREFIX) and _may(Operation.DESCRIBE, name))
        return [*told, *request.topics]

    async def _tell(self, told: _Told, response: pb.MetadataResponse) -> None:
        response.topics.extend(await asyncio.gather(*(self.topic_info(topic) for topic in told.take())))

    async def topic_info(self, topic: Topic) -> pb.TopicInfo:
        spec = topic.spec
        info = pb.TopicInfo(
            name=spec.name,
            topic_id=spec.topic_id,
            schema=spec.schema
            or (RECORD_SCHEMA_BYTES if topic.schema is RECORD_SCHEMA else schema_to_bytes(topic.schema)),
            typed=bool(spec.schema),
            settings=spec.settings,
            earlier_columns=spec.earlier,
        )
        # Some at once: nodes that are read together are one question
        for first in range(0, topic.partitions, YIELD_EVERY):
            numbers = range(first, min(first + YIELD_EVERY, topic.partitions))
            here = ((number, self._info_from_here(topic, number)) for number in numbers)
            known = {number: told for number, told in here if told is not None}
            asked = [number for number in numbers if number not in known]
            if asked:  # each is a task, which takes longer than to say what is known
                answers = await asyncio.gather(*(self.partition_info(topic, number) for number in asked))
                known.update(zip(asked, answers, strict=True))
            info.partitions.extend(known[number] for number in numbers)
        return info

    def _info_from_here(self, topic: Topic, number: int) -> pb.PartitionInfo | None:
        """What this broker's own replica says; None if it has none, or one that knows of no leader."""
        partition = self._shell.hosted(topic, number)
        if partition is None:
            return None
        replicas, replica = topic.spec.assignment[number], partition.replica
        leader = replica.leader if replica.leader in replicas and replica.leader in self._cluster.brokers else 0
        if leader == self._shell.broker and not partition.serving:
            leader = 0
        if not leader and not replica.leading:
            return None
        return pb.PartitionInfo(
            partition=number,
            leader=leader,
            leader_epoch=replica.leader_epoch,
            replicas=replicas,
            isr=replica.isr,
            moving_to=_moving_to(topic, number),
            unheard_ms=partition.unheard_ms,
        )

    async def partition_info(self, topic: Topic, number: int) -> pb.PartitionInfo:
        """A leader is named when it is registered, has a replica and, if it is this broker, is ready to serve. One
        without a replica has led before a move, of whose end this broker has heard only half."""
        known = self._info_from_here(topic, number)
        if known is not None:
            return known
        replicas, moving_to = topic.spec.assignment[number], _moving_to(topic, number)
        state = await self.state(topic, number)
        if state is None:
            return pb.PartitionInfo(partition=number, replicas=replicas, moving_to=moving_to)
        named = state.leader
        leads = (
            named is not None and named.broker in replicas and self._cluster.is_live(named.broker, named.incarnation)
        )
        # This broker's own leadership is known above: named here it is one that it has not taken up (yet).
        leader = named.broker if named is not None and leads and named.broker != self._shell.broker else 0
        isr = [broker for broker, _ in state.isr]
        return pb.PartitionInfo(
            partition=number,
            leader=leader,
            leader_epoch=state.leader_epoch,
            replicas=replicas,
            isr=isr,
            moving_to=moving_to,
        )

    async def state(self, topic: Topic, number: int) -> NodeState | None:
        """The state node, at most `STATE_CACHE_S` old while the coordination service answers."""
        key = (topic.spec.topic_id, number)
        now = asyncio.get_running_loop().time()
        read_at, known = self._states.get(key, (float("-inf"), None))
        if known is not None and now - read_at < STATE_CACHE_S:
            return known
        if self._coordination.condition == "suspended":
            return known
        try:
            async with self._reads:
                found = await self._coordination.read_state(*key)
        except CoordinationUnavailable as error:
            log.debug("the node of %s-%d cannot be read: %s", topic.spec.name, number, error)
            return known
        if found is None:
            self._states.pop(key, None)
            return None
        self._states[key] = (now, found[1])
        return found[1]

    def forget(self, topic_ids: Container[str]) -> None:
        """Keep the cache for these topics only."""
        self._states = {key: value for key, value in self._states.items() if key[0] in topic_ids}

    # ------------------------------------------------------------------ topics

    async def create_topic(self, request: pb.CreateTopicRequest, deadline: float) -> pb.CreateTopicResponse:
        """Answers once every partition's leader serves, so that what the client asks next succeeds."""
        self.check_new_name(request.name)
        topic = await self._create(
            request.name, request.partitions, request.replicas, request.schema, dict(request.settings)
        )
        await self._wait_until_led(topic, deadline)
        return pb.CreateTopicResponse(topic=await self.topic_info(topic))

    def check_new_name(self, name: str) -> None:
        """Raises `InvalidTopicName`."""
        check_new_topic_name(name, self._topic_name_max)

    async def _create(
        self, name: str, partitions: int, replicas: int, schema: bytes, settings: Mapping[str, str]
    ) -> Topic:
        schema = await self.checked(partitions, replicas, schema, settings)
        owner = owner_of_new(name)
        async with self.counting if is_counted(owner) else contextlib.nullcontext():
            return await self._create_checked(name, partitions, replicas, schema, settings, owner)

    async def checked(self, partitions: int, replicas: int, schema: bytes, settings: Mapping[str, str]) -> bytes:
        """The schema as it is stored. Raises what is wrong with any of it."""
        if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidSetting(f"partitions={partitions} is out of range: give 1 to {PARTITIONS_PER_TOPIC_MAX}")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise InvalidSetting(f"replicas={replicas} is out of range: give 1 to {REPLICAS_MAX}")
        parsed = parse_settings(settings, replicas)
        self._check_batch_bytes(parsed)
        check_level(settings, self._shell.level)
        if parsed.encryption_key and parsed.durability is not Durability.MEMORY:
            await self._shell.check_key(parsed.encryption_key)
        if schema:
            told = _schema_told(schema)
            check_column_names(told)
            schema = schema_to_bytes(told)
        return schema

    async def _create_checked(
        self, name: str, partitions: int, replicas: int, schema: bytes, settings: Mapping[str, str], owner: str
    ) -> Topic:
        await self._topics.refresh()
        if self._topics.find(name) is not None:
            raise TopicExists(f"topic {name!r} exists already: choose another name, or delete it first")
        check_room(self._topics.all(), self.quotas, owner, new_topics=1, new_partitions=partitions)
        topic_id = uuid.uuid4().hex
        existing = [members for topic in self._topics.all() for members in topic.spec.assignment]
        assignment = place(partitions, replicas, self._cluster.racks, existing, start=int(topic_id[:8], 16))
        states = tuple(map(first_state, assignment))
        spec = TopicSpec(name, topic_id, assignment, schema, dict(settings), owner=owner)
        check_topic_size(spec)
        await self._coordination.create_topic(spec, states)
        log.info(
            "topic %s created: id %s, %d partitions, %d replicas, %s",
            name,
            topic_id,
            partitions,
            replicas,
            dict(settings),
        )
        await self._topics.refresh(until=topic_id)
        return await self._topics.get(name)

    async def make_like(self, source: Topic, name: str, schema: pa.Schema, deadline: float) -> Topic:
        """A topic for what comes from `source`: as many partitions and replicas, and the same durability. The one that
        is there, if somebody was as quick. Returns once its leaders serve; raises what making a topic raises."""
        check_new_topic_name(name, self._topic_name_max)
        kept = ("durability", "min_insync_replicas", "batch_bytes_max")
        settings = {each: source.spec.settings[each] for each in kept if each in source.spec.settings}
        data = schema_to_bytes(schema) if source.spec.schema else b""
        try:
            topic = await self._create(name, source.partitions, source.spec.replicas, data, settings)
        except TopicExists:
            topic = await self._topics.get(name)
        await self._wait_until_led(topic, deadline)
        return topic

    def _check_batch_bytes(self, settings: TopicSettings) -> None:
        """Any broker may come to lead the topic, so the largest batch must fit a message to each. Raises
        `InvalidSetting`."""
        least = min(self._cluster.brokers.values(), key=lambda each: each.message_bytes_max, default=None)
        if least is not None and settings.batch_bytes_max + MESSAGE_OVERHEAD_BYTES > least.message_bytes_max:
            raise InvalidSetting(
                f"batch_bytes_max={settings.batch_bytes_max} is above what broker {least.broker} takes, "
                f"{least.message_bytes_max - MESSAGE_OVERHEAD_BYTES}: give no more, or start every broker with "
                f"--message-bytes-max {settings.batch_bytes_max + MESSAGE_OVERHEAD_BYTES}"
            )

    async def _wait_until_led(self, topic: Topic, deadline: float) -> None:
        """Until each partition's leader says that it serves, with `min_insync_replicas` in sync. Of what is not here
        yet nobody is asked at once: it was made just now, most likely, and nobody leads it."""
        loop = asyncio.get_running_loop()
        attempt = 0
        waiting = set(range(topic.partitions))
        while waiting:
            if attempt:
                await asyncio.sleep(READY_POLL_S[min(attempt, len(READY_POLL_S)) - 1])
            attempt += 1
            if loop.time() > deadline - 0.1:
                raise OutcomeUnknown(
                    f"topic {topic.spec.name!r} was created, but partitions {sorted(waiting)[:10]} have no leader with "
                    "min_insync_replicas yet: see `tritonmq topic describe`"
                )
            by_leader: dict[int, set[int]] = {}
            async for number in in_turns(waiting):
                info = self._info_from_here(topic, number)
                if info is None and attempt == 1:
                    continue
                info = info or await self.partition_info(topic, number)
                by_leader.setdefault(info.leader or topic.spec.assignment[number][0], set()).add(number)
            for leader, numbers in by_leader.items():
                waiting -= await self._led(topic, leader, numbers, deadline)

    async def _led(self, topic: Topic, leader: int, numbers: set[int], deadline: float) -> set[int]:
        """Those of the partitions that broker `leader` says it serves."""
        request = pb.MetadataRequest(topics=[topic.spec.name])
        told: Iterable[pb.PartitionInfo]
        if leader == self._shell.broker:
            told = [info for number in numbers if (info := self._info_from_here(topic, number)) is not None]
        else:
            address = self._cluster.peer_address(leader)
            if address is None:
                return set()
            try:
                answer = await self._calls.ask(address, "Metadata", request, pb.MetadataResponse, deadline)
            except TritonMQError as error:
                log.debug("broker %d does not say what it leads: %s", leader, error)
                return set()
            if not answer.topics:
                return set()
            told = answer.topics[0].partitions
        needed = topic.settings.min_insync_replicas
        return {p.partition for p in told if p.partition in numbers and p.leader == leader and len(p.isr) >= needed}

    async def transactions_topic(self, deadline: float) -> Topic:
        """The coordinators' topic, made by whoever asks first; two who ask at once make one, and both wait until it
        serves."""
        async with self._making_transactions:
            return self._topics.find(TRANSACTIONS_TOPIC) or await self._make_transactions_topic(deadline)

    async def _make_transactions_topic(self, deadline: float) -> Topic:
        replicas = min(TRANSACTIONS_REPLICAS, len(self._cluster.brokers))
        try:
            topic = await self._create(
                TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS, replicas, b"", {"durability": "fsync"}
            )
        except TopicExists:
            await self._topics.refresh()
            topic = await self._topics.get(TRANSACTIONS_TOPIC)
        await self._wait_until_led(topic, deadline)
        return topic

    async def alter_topic(self, request: pb.AlterTopicRequest, deadline: float) -> pb.AlterTopicResponse:
        """Answers once partitions that were added serve; replicas that were asked for are on their way then."""
        check_topic_name(request.name)
        topic = await self._topics.get(request.name)
        if request.schema:  # first: it is what is refused most
            wanted = _schema_told(request.schema)
            topic = await self._topics.edit(request.name, lambda spec: with_columns(spec, wanted))
            log.info("topic %s: its columns are %s now", request.name, ", ".join(topic.schema.names))
        if request.settings:
            check_level((name for name, value in request.settings.items() if value), self._shell.level)
            if "batch_bytes_max" in request.settings:
                self._check_batch_bytes(
                    parse_settings(with_settings(topic.spec, request.settings).settings, topic.spec.replicas)
                )
            topic = await self._topics.edit(request.name, lambda spec: with_settings(spec, request.settings))
            log.info("topic %s: settings are %s now", request.name, topic.spec.settings)
        if request.partitions:
            topic = await self._add_partitions(topic, request.partitions)
            await self._wait_until_led(topic, deadline)
        if request.replicas:
            topic = await self._change_replicas(topic, request.replicas)
        return pb.AlterTopicResponse(topic=await self.topic_info(topic))

    async def _add_partitions(self, topic: Topic, partitions: int) -> Topic:
        check_partitions(topic.spec, partitions)
        new_partitions = partitions - topic.partitions
        check_room(self._topics.all(), self.quotas, topic.spec.owner, new_topics=0, new_partitions=new_partitions)
        existing = [members for known in self._topics.all() for members in known.spec.assignment]
        start = int(topic.spec.topic_id[:8], 16) + topic.partitions
        added = place(
            partitions - topic.partitions, min(map(len, topic.spec.target)), self._cluster.racks, existing, start=start
        )

        def widened(spec: TopicSpec, count: int) -> TopicSpec:
            more = added[len(spec.assignment) - topic.partitions : count - topic.partitions]
            return spec if len(spec.assignment) >= count else replace(spec, assignment=(*spec.assignment, *more))

        for begun_with in range(topic.partitions, partitions, PARTITIONS_ADDED_AT_ONCE_MAX):
            count = min(partitions, begun_with + PARTITIONS_ADDED_AT_ONCE_MAX)
            await self._topics.edit(topic.spec.name, partial(widened, count=count))
        log.info("topic %s: %d partitions now", topic.spec.name, partitions)
        return await self._topics.get(topic.spec.name)

    async def _change_replicas(self, topic: Topic, replicas: int) -> Topic:
        if not 1 <= replicas <= REPLICAS_MAX:
            raise InvalidSetting(f"replicas={replicas} is out of range: give 1 to {REPLICAS_MAX}")
        layout = {
            (known.spec.name, n): members for known in self._topics.all() for n, members in enumerate(known.spec.target)
        }
        changed = resized(replicas, self._cluster.racks, layout, topic.spec.name)
        wanted = {number: members for (_, number), members in changed.items()}
        log.info("topic %s: %d replicas of each partition from now on", topic.spec.name, replicas)
        return await self._topics.edit(topic.spec.name, lambda spec: begun(spec, wanted, self._cluster.brokers))

    async def delete_topic(self, request: pb.DeleteTopicRequest, deadline: float) -> pb.DeleteTopicResponse:
        """Deletes it for good: what it holds goes too."""
        check_topic_name(request.name)
        try:
            await self._coordination.delete_topic(request.name)
        except UnknownTopic as error:
            names = [topic.spec.name for topic in self._topics.all() if _may(Operation.DESCRIBE, topic.spec.name)]
            raise UnknownTopic(f"there is no topic {request.name!r}{did_you_mean(request.name, names)}") from error
        log.info("topic %s deleted", request.name)
        await self._topics.refresh()
        return pb.DeleteTopicResponse()


def _schema_told(told: bytes) -> pa.Schema:
    """As a topic can store it. Raises `InvalidRequest`."""
    try:
        return check_schema(schema_from_bytes(told))
    except CorruptBatch as error:
        raise InvalidRequest(f"the schema is no Arrow schema message: {error}") from error
