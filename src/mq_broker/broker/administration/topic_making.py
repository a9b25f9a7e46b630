"""Topics made many at once: what each of them needs is checked by itself, and asked of the coordination service and of
the leaders for all together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from mq_broker.broker.administration.ownership import OwnedRoom, is_counted, owner_of_new
from mq_broker.broker.administration.placement import Placing
from mq_broker.broker.administration.topics import READY_POLL_S, Admin
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topic, Topics, first_state
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.coordination.documents import check_topic_size
from mq_broker.coordination.interface import NewTopic, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.calls import Calls
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OutcomeUnknown, TopicExists, TritonMQError
from mq_protocol.limits import PARTITIONS_PER_TOPIC_MAX
from mq_protocol.wire.error_messages import to_wire

log = logging.getLogger(__name__)

AT_ONCE: Final = 50
"""So many are made before the first of them are looked at by other brokers, and others who make topics have a turn."""

ANSWER_S: Final = 0.5
"""What is left for the answer of the time that the client gave."""


class _Wanted(NamedTuple):
    """One topic that can be made. `at`: where it was asked for."""

    at: int
    request: pb.CreateTopicRequest
    schema: bytes


class TopicMaking:
    """Owns nothing but the way in which topics are made: they are the coordination service's."""

    def __init__(
        self,
        admin: Admin,
        shell: Shell,
        cluster: Cluster,
        topics: Topics,
        coordination: CoordinationService,
        calls: Calls,
    ) -> None:
        self._admin = admin
        self._shell = shell
        self._cluster = cluster
        self._topics = topics
        self._coordination = coordination
        self._calls = calls

    async def create_topics(self, request: pb.CreateTopicsRequest, deadline: float) -> pb.CreateTopicsResponse:
        """Answers once the partitions of all that were made are led, or can no longer be waited for."""
        partitions = sum(max(0, each.partitions) for each in request.topics)
        if partitions > PARTITIONS_PER_TOPIC_MAX:
            raise InvalidRequest(
                f"{partitions} partitions in one request are too many: ask for fewer topics at once, with "
                f"{PARTITIONS_PER_TOPIC_MAX} partitions together at most"
            )
        errors: dict[int, TritonMQError] = {}
        wanted: list[_Wanted] = []
        at = 0
        async for each in in_turns(request.topics):
            try:
                settings = dict(each.settings)
                self._admin.check_new_name(each.name)
                stored = await self._admin.checked(each.partitions, each.replicas, each.schema, settings)
                wanted.append(_Wanted(at, each, stored))
            except TritonMQError as error:
                errors[at] = error
            at += 1
        made: dict[int, Topic] = {}
        for first in range(0, len(wanted), AT_ONCE):
            await self._make(wanted[first : first + AT_ONCE], made, errors)
        names = {topic.spec.name: at for at, topic in made.items()}
        for name, late in (await self._wait_until_led(list(made.values()), deadline - ANSWER_S)).items():
            errors[names[name]] = late
        response = pb.CreateTopicsResponse()
        for at, each in enumerate(request.topics):
            answer = response.topics.add(name=each.name)
            if at in errors:
                answer.error.CopyFrom(to_wire(errors[at]))
        return response

    # ------------------------------------------------------------------ making

    async def _make(self, wanted: Sequence[_Wanted], made: dict[int, Topic], errors: dict[int, TritonMQError]) -> None:
        owner = owner_of_new(wanted[0].request.name)
        counting = self._admin.counting if is_counted(owner) else contextlib.nullcontext()
        async with counting:
            try:
                await self._topics.refresh()
                drafts = await self._drafts(wanted, owner, errors)
                answers = await self._coordination.create_topics([draft for _, draft in drafts])
            except TritonMQError as error:  # nothing is known of any of them
                errors.update((each.at, error) for each in wanted if each.at not in errors)
                return
        there: list[tuple[int, TopicSpec]] = []
        for (at, (spec, _)), refused in zip(drafts, answers, strict=True):
            if refused is None:
                there.append((at, spec))
            else:
                errors[at] = refused
        log.info("%d topics created: %s", len(there), ", ".join(spec.name for _, spec in there))
        try:
            await self._topics.refresh()
        except TritonMQError as error:
            log.warning("topics that were made just now are not read yet: %s", error)
        for at, spec in there:
            topic = self._topics.with_id(spec.topic_id)
            if topic is None:
                errors[at] = OutcomeUnknown(f"topic {spec.name!r} was made, and this broker does not see it yet")
            else:
                made[at] = topic

    async def _drafts(
        self, wanted: Sequence[_Wanted], owner: str, errors: dict[int, TritonMQError]
    ) -> list[tuple[int, NewTopic]]:
        """Those that nothing is in the way of, each placed as if those before it were there."""
        room = OwnedRoom(self._topics.all(), self._admin.quotas, owner)
        there = (members for topic in self._topics.all() for members in topic.spec.assignment)
        placing = Placing(self._cluster.racks, there)
        drafts: list[tuple[int, NewTopic]] = []
        async for at, request, schema in in_turns(wanted):
            name, topic_id = request.name, uuid.uuid4().hex
            try:
                if self._topics.find(name) is not None:
                    raise TopicExists(f"topic {name!r} exists already: choose another name, or delete it first")
                assignment = placing.place(request.partitions, request.replicas, start=int(topic_id[:8], 16))
                spec = TopicSpec(name, topic_id, assignment, schema, dict(request.settings), owner=owner)
                check_topic_size(spec)
                room.take(1, request.partitions)  # last: what is refused takes no room from those behind it
            except TritonMQError as error:
                errors[at] = error
                continue
            drafts.append((at, (spec, tuple(map(first_state, assignment)))))
        return drafts

    # ------------------------------------------------------------------ until they are led

    async def _wait_until_led(self, topics: Sequence[Topic], deadline: float) -> dict[str, TritonMQError]:
        """As `Admin` waits for one topic: each leader is asked for all that it may lead. What is not led in time."""
        clock = asyncio.get_running_loop().time
        waiting = {topic.spec.name: (topic, set(range(topic.partitions))) for topic in topics}
        leaders = {
            (topic.spec.name, n): members[0] for topic in topics for n, members in enumerate(topic.spec.assignment)
        }
        attempt = 0
        while waiting:
            if clock() >= deadline:
                break
            await asyncio.sleep(min(READY_POLL_S[min(attempt, len(READY_POLL_S) - 1)], deadline - clock()))
            attempt += 1
            by_leader: dict[int, dict[str, Topic]] = {}
            for topic, numbers in waiting.values():
                for number in numbers:
                    by_leader.setdefault(leaders[topic.spec.name, number], {})[topic.spec.name] = topic
            for leader, named in by_leader.items():
                async for info in in_turns(await self._told_by(leader, named, deadline)):
                    if info.name in waiting:
                        self._hear(leader, info, *waiting[info.name], leaders)
                        if not waiting[info.name][1]:
                            del waiting[info.name]
        return {
            name: OutcomeUnknown(
                f"topic {name!r} was created, but partitions {sorted(numbers)[:10]} have no leader with "
                "min_insync_replicas yet: see `tritonmq topic describe`"
            )
            for name, (_, numbers) in waiting.items()
        }

    @staticmethod
    def _hear(
        leader: int, info: pb.TopicInfo, topic: Topic, numbers: set[int], leaders: dict[tuple[str, int], int]
    ) -> None:
        """What a broker says of a topic: what it leads is waited for no more, who else may lead is asked next."""
        if info.topic_id != topic.spec.topic_id:
            return
        for told in info.partitions:
            if told.leader == leader and len(told.isr) >= topic.settings.min_insync_replicas:
                numbers.discard(told.partition)
            elif told.partition in numbers and told.leader in topic.spec.assignment[told.partition]:
                leaders[info.name, told.partition] = told.leader

    async def _told_by(self, leader: int, named: Mapping[str, Topic], deadline: float) -> Collection[pb.TopicInfo]:
        if leader == self._shell.broker:
            return [await self._admin.topic_info(topic) for topic in named.values()]
        address = self._cluster.peer_address(leader)
        if address is None:
            return []
        request = pb.MetadataRequest(topics=list(named))
        try:
            return (await self._calls.ask(address, "Metadata", request, pb.MetadataResponse, deadline)).topics
        except TritonMQError as error:
            log.debug("broker %d does not say what it leads: %s", leader, error)
            return []
