"""Dead letters that another broker stages here, in a partition that this broker leads."""

from __future__ import annotations

import asyncio
from typing import Final

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.runtime.places import Places
from mq_broker.broker.transactions.requests import check_attempt, key_of
from mq_broker.core.entries import NO_UUID, UUID_BYTES, Stage
from mq_broker.core.messages import Refused, Result
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import check_untrusted
from mq_protocol.errors import InvalidRequest, SchemaMismatch
from mq_protocol.names import check_id, check_topic_name
from mq_protocol.queues.work_keys import is_of_queue

CHECKS_AT_ONCE: Final = 1


class Staging:
    """Owns the thread in which batches are checked."""

    def __init__(self, shell: Shell, topics: Topics) -> None:
        self._shell = shell
        self._topics = topics
        self._checks = Places(CHECKS_AT_ONCE, "check-letters")

    async def stage(self, request: pb.StageRequest, deadline: float) -> pb.StageResponse:
        """Idempotent by the UUID. Answered once it is committed."""
        key = key_of(request.key)
        if not is_of_queue(key.query_id):
            raise InvalidRequest(f"query id {key.query_id[:100]!r} is no queue group's")
        check_topic_name(request.topic)
        check_id("run id", request.run_id)
        check_attempt(request.run_id)
        if len(request.uuid) != UUID_BYTES or request.uuid == NO_UUID:
            raise InvalidRequest(f"a batch needs a UUID of 16 bytes, not all zero; this one has {len(request.uuid)}")
        topic = await self._topics.meant(request.topic, request.topic_id)
        if request.schema_fingerprint not in topic.versions:
            topic = await self._topics.renewed(topic)
        schema = topic.versions.get(request.schema_fingerprint)
        if schema is None:
            raise SchemaMismatch(f"the letters were not encoded with the schema of topic {request.topic}")
        partition = self._shell.leader(topic, request.partition)
        payload = memoryview(request.payload)
        settings = topic.settings

        def check() -> int:
            return check_untrusted(
                payload,
                schema,
                batch_bytes_max=settings.batch_bytes_max,
                decoded_bytes_max=settings.batch_decoded_bytes_max,
                record_count=request.record_count,
            )

        decoded_bytes = await self._checks.run("letters", check)
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        partition.propose(
            Stage(key, 0, request.run_id),
            lambda result: None if answered.done() else answered.set_result(result),
            deadline,
            uuid=request.uuid,
            record_count=request.record_count,
            payload=payload,
            decoded_bytes=decoded_bytes,
        )
        result = await answered
        if isinstance(result, Refused):
            raise result.error
        return pb.StageResponse()

    def close(self) -> None:
        self._checks.close()
