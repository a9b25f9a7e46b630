"""What a request about transactions may say: names, ids and manifests, checked before anything else looks at them.

Also the name under which a query is listed. Whoever knows a key can write in the query's name, so listings do not tell
it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from mq_broker.core.entries import TransactionKey
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import MANIFEST_BYTES_MAX, MICRO_BATCH_ID_MAX
from mq_protocol.names import INTERNAL_PREFIX, check_id
from mq_protocol.queues.work_keys import attempt_of, is_of_queue

_UUID_BYTES: Final = 16
_LISTED_DIGITS: Final = 16


def key_of(key: pb.TransactionKey) -> TransactionKey:
    """Raises `InvalidRequest` for a key without a query id (a made-up key would deduplicate strangers), and for an
    endless one."""
    if not key.query_id:
        raise InvalidRequest(
            "the transaction key has no query id: the sink runs in a streaming query, or gives txnAppId"
        )
    check_id("query id", key.query_id)
    check_id("sink", key.sink)
    return TransactionKey(key.query_id, key.sink)


def key_to_wire(key: TransactionKey) -> pb.TransactionKey:
    return pb.TransactionKey(query_id=key.query_id, sink=key.sink)


def check_micro_batch_id(batch_id: int) -> None:
    """Raises `InvalidRequest` for one that no query reaches: none could be decided after it."""
    if not 0 <= batch_id <= MICRO_BATCH_ID_MAX:
        raise InvalidRequest(
            f"micro-batch ids (txnVersion) go from 0 to 2^62 = {MICRO_BATCH_ID_MAX}; this one is {batch_id}"
        )


def check_attempt(run_id: str) -> None:
    """Raises `InvalidRequest` for a run of which a queue group's leader could never say that it is over: what is staged
    under it would stay."""
    if attempt_of(run_id) is None:
        raise InvalidRequest(
            f"run id {run_id[:100]!r} is no attempt of a queue group: lease:<epoch>.<entry>.<step>, or epoch:<epoch> "
            "of a leader's own"
        )


def check_publish_id(key: TransactionKey, batch_id: int) -> None:
    """As `check_micro_batch_id`; a queue group's number begins with the leader's epoch, and may be higher. Raises
    `InvalidRequest`."""
    if batch_id < 0 or not is_of_queue(key.query_id):
        check_micro_batch_id(batch_id)


def uuids_of(request: pb.PublishRequest | pb.DiscardRequest | pb.AreStagedRequest) -> tuple[bytes, ...]:
    """The batches named. Raises `InvalidRequest` for what is no UUID, and for more than one entry holds."""
    if any(len(uuid) != _UUID_BYTES for uuid in request.uuids):
        raise InvalidRequest("staged batches are named by UUIDs of 16 bytes")
    if request.ByteSize() > MANIFEST_BYTES_MAX:
        raise InvalidRequest(f"{len(request.uuids)} batches are more than one entry holds: name fewer at once")
    return tuple(request.uuids)


def check_manifest(request: pb.DecideRequest) -> None:
    """Raises `InvalidRequest` for a decision that contradicts itself or is too large."""
    check_micro_batch_id(request.batch_id)
    check_id("run id", request.run_id)
    if request.ByteSize() > MANIFEST_BYTES_MAX:
        raise InvalidRequest(
            f"the manifest has {request.ByteSize()} bytes, at most {MANIFEST_BYTES_MAX} are allowed: write fewer, "
            "larger batches"
        )
    for line in request.manifest:
        if not line.topic or line.topic.startswith(INTERNAL_PREFIX):
            raise InvalidRequest(f"a manifest cannot name topic {line.topic!r}")
        if any(len(uuid) != _UUID_BYTES for uuid in line.uuids):
            raise InvalidRequest("a manifest names batches by UUIDs of 16 bytes")
    rows = sum(line.row_count for line in request.manifest)
    if rows != request.row_count:
        raise InvalidRequest(f"the manifest's lines have {rows} rows, the decision claims {request.row_count}")


def listed_name(query_id: str) -> str:
    """The query as listings name it: 16 hexadecimal digits, of which its id cannot be told."""
    return hashlib.sha256(query_id.encode("utf-8", "surrogatepass")).hexdigest()[:_LISTED_DIGITS]


def is_meant(key: TransactionKey, query: str) -> bool:
    """Whether `query` means the key: its listed name, its query id, or either with ":" and the sink. Empty means every
    key."""
    return not query or any(query in (name, f"{name}:{key.sink}") for name in (key.query_id, listed_name(key.query_id)))
