"""Queue groups are declared, changed and deleted in their topic's document, by any broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.queues.letters.making import check_fits
from mq_broker.broker.queues.policy.declared import Declared, unknown_queue
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.broker.transactions.begun_groups import BegunGroups
from mq_broker.broker.transactions.owners import name_of
from mq_broker.coordination.interface import QueueSpec, TopicSpec
from mq_broker.rpc.callers import asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.arrow import schema_from_bytes
from mq_protocol.errors import InvalidRequest, InvalidSetting, TooManyGroups, UnknownTopic
from mq_protocol.limits import ANSWER_BYTES_MAX, OFFSET_MAX, QUEUE_GROUPS_PER_PARTITION_MAX
from mq_protocol.names import check_group_name, check_new_group_name, check_topic_name, quoted
from mq_protocol.queues.columns import bound_filter, check_order
from mq_protocol.queues.settings import QUEUE_SETTINGS, DeadLetter, parse_queue_settings, usual_dead_letter

log = logging.getLogger(__name__)


class Declaring:
    """Owns nothing: the groups are in the topics' documents."""

    def __init__(self, topics: Topics, declared: Declared, begun: BegunGroups) -> None:
        self._topics = topics
        self._declared = declared
        self._begun = begun

    async def alter_queue(self, request: pb.AlterQueueRequest, _deadline: float) -> pb.AlterQueueResponse:
        """Declare, change or delete a queue group. Leaders begin and end it in their partitions soon afterwards.

        A declaration of a group that is there is done, unless it names a setting that the group does not have.
        """
        topic, group = request.topic, request.group
        check_topic_name(topic)
        check_group_name(group)
        known = await self._topics.get(topic)
        settings = dict(request.settings)
        if request.change == pb.QUEUE_DECLARE:
            check_new_group_name(group)
            _check_names(topic, settings)
            self._declared.check_reads_nothing(topic, group)
            start_us = _start_us(request)
            owner = name_of(asker())
            if group not in known.spec.queues:
                await self._check_dead_letter(known, settings)
                await self._begun.check(asker(), owner, group, topic)
            made: list[bool] = []

            def declare(spec: TopicSpec) -> TopicSpec:
                made.append(group not in spec.queues)
                return with_queue(spec, group, settings, start_us, owner)

            edited = await self._topics.edit(topic, declare)
            answer = pb.AlterQueueResponse(queue=queue_told(topic, group, edited.spec.queues[group]), made=made[-1])
            log.info("topic %s: queue group %s is declared", topic, quoted(group))
            return answer
        if request.change == pb.QUEUE_ALTER:
            if "dead_letter" in settings:
                await self._check_dead_letter(known, settings)
            edited = await self._topics.edit(topic, lambda spec: with_queue_settings(spec, group, settings))
            log.info("topic %s: queue group %s has the settings %s now", topic, quoted(group), settings)
            return pb.AlterQueueResponse(queue=queue_told(topic, group, edited.spec.queues[group]))
        if request.change == pb.QUEUE_DELETE:
            queues = (await self._topics.renewed(known)).spec.queues
            ended = queues.get(group)
            if ended is None:
                raise unknown_queue(topic, group, queues)
            await self._topics.edit(topic, lambda spec: without_queue(spec, group, ended.life))
            log.info("topic %s: queue group %s is deleted", topic, quoted(group))
            return pb.AlterQueueResponse(queue=queue_told(topic, group, ended))
        raise InvalidRequest(f"change {request.change} of a queue group is not known to this broker: upgrade it")

    async def _check_dead_letter(self, source: Topic, settings: Mapping[str, str]) -> None:
        """Raises `SchemaMismatch` for a topic that is there and cannot take the dead letters. One that is not there is
        made when it is first needed."""
        name = settings.get("dead_letter") or usual_dead_letter(source.spec.name)
        target = parse_queue_settings({"dead_letter": name}, source.spec.name, partly=True).dead_letter
        if isinstance(target, DeadLetter):
            return
        try:
            there = await self._topics.get(target)
        except UnknownTopic:
            return
        check_fits(source.schema, there.schema, target)

    async def queues(self, request: pb.QueuesRequest, _deadline: float) -> pb.QueuesResponse:
        """The queue groups of a topic, or of all, by topic and group; as many as fit one answer. Only those are told of
        which the asker may describe both."""
        may = asker().may
        response = pb.QueuesResponse()
        topics = [await self._topics.get(request.topic)] if request.topic else self._topics.all()
        size = 0
        async for topic in in_turns(topics):
            name = topic.spec.name
            if name < request.after_topic or not topic.spec.queues or not may(Operation.DESCRIBE, Kind.TOPIC, name):
                continue
            for group, queue in sorted(topic.spec.queues.items()):
                if (name, group) <= (request.after_topic, request.after_group):
                    continue
                if not may(Operation.DESCRIBE, Kind.GROUP, group):
                    continue
                if size >= ANSWER_BYTES_MAX:
                    response.more = True
                    return response
                told = queue_told(name, group, queue)
                size += told.ByteSize()
                response.queues.append(told)
        return response


def queue_told(topic: str, group: str, queue: QueueSpec) -> pb.QueueInfo:
    """With the place to which its dead letters go, also where that is the usual one."""
    settings = {"dead_letter": usual_dead_letter(topic), **queue.settings}
    return pb.QueueInfo(topic=topic, group=group, life=queue.life, settings=settings)


# ---------------------------------------------------------------- what the document becomes. Pure.


def with_queue(spec: TopicSpec, group: str, settings: Mapping[str, str], start_us: int, owner: str = "") -> TopicSpec:
    """Raises `TooManyGroups`, `InvalidSetting`, and `InvalidRequest` if the group is there with other settings."""
    known = spec.queues.get(group)
    if known is not None:
        wanted = parse_queue_settings(_given({**known.settings, **settings}), spec.name)
        if settings and wanted != parse_queue_settings(known.settings, spec.name):
            raise InvalidRequest(
                f"queue group {group!r} of topic {spec.name} is declared already, with other settings: `tritonmq queue "
                f"alter {spec.name} {group}` changes them"
            )
        return spec
    if len(spec.queues) >= QUEUE_GROUPS_PER_PARTITION_MAX:
        raise TooManyGroups(
            f"topic {spec.name} has {len(spec.queues)} queue groups, as many as it may have: delete unused ones"
        )
    _check_whole(spec, _given(settings))
    life = spec.queue_lives + 1
    queue = QueueSpec(life, start_us, _given(settings), owner=owner)
    return replace(spec, queues={**spec.queues, group: queue}, queue_lives=life)


def with_queue_settings(spec: TopicSpec, group: str, settings: Mapping[str, str]) -> TopicSpec:
    """An empty value is the default again. Raises `UnknownQueue` and `InvalidSetting`."""
    known = spec.queues.get(group)
    if known is None:
        raise unknown_queue(spec.name, group, spec.queues)
    if not settings:
        raise InvalidSetting(f"no setting of queue group {group!r} is given: name one, such as lease_ms=60s")
    _check_names(spec.name, settings)
    changed = _given({**known.settings, **settings})
    _check_whole(spec, changed)
    return replace(spec, queues={**spec.queues, group: replace(known, settings=changed)})


def without_queue(spec: TopicSpec, group: str, life: int) -> TopicSpec:
    """Only that life of the group ends: it may have been declared anew since."""
    known = spec.queues.get(group)
    if known is None or known.life != life:
        return spec
    return replace(spec, queues={name: queue for name, queue in spec.queues.items() if name != group})


def _given(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value}


def _check_names(topic: str, settings: Mapping[str, str]) -> None:
    """An empty value stands for the default. Raises `InvalidSetting`."""
    usual = {name: setting.default for name, setting in QUEUE_SETTINGS.items()}
    usual["dead_letter"] = usual_dead_letter(topic)
    parse_queue_settings({name: value or usual.get(name, "") for name, value in settings.items()}, topic, partly=True)


def _check_whole(spec: TopicSpec, settings: Mapping[str, str]) -> None:
    """Raises `InvalidSetting` for settings that do not fit together, or not the topic's columns."""
    parsed, schema = parse_queue_settings(settings, spec.name), schema_from_bytes(spec.schema)
    check_order(parsed, schema, spec.name)
    if parsed.filter:
        bound_filter(parsed.filter, schema)


def _start_us(request: pb.AlterQueueRequest) -> int:
    """`latest` is the time of the declaration, so that every partition begins at the same one."""
    match request.WhichOneof("start"):
        case "latest":
            return time.time_ns() // 1000 if request.latest else 0
        case "timestamp_us":
            if not 0 <= request.timestamp_us <= OFFSET_MAX:
                raise InvalidRequest(f"timestamp_us={request.timestamp_us} is no time: give microseconds since 1970")
            return request.timestamp_us
        case _:
            return 0
