"""The UUIDs that applications give to records and tables."""

from __future__ import annotations

import uuid as uuids
import zlib

from mq_client.errors import InvalidRequest


def partition_of_uuid(uuid: bytes, partitions: int) -> int:
    """The same in every process and release. Not the hash of keys, which takes ten times as long for what is seldom
    seen twice."""
    return zlib.crc32(uuid) % partitions


def uuid_bytes(uuid: uuids.UUID | bytes | str) -> bytes:
    match uuid:
        case uuids.UUID():
            found = uuid.bytes
        case bytes() if len(uuid) == 16:
            found = uuid
        case str():
            try:
                found = uuids.UUID(uuid).bytes
            except ValueError:
                raise InvalidRequest(f"uuid={uuid!r} is no UUID: give uuid.uuid4()") from None
        case _:
            raise InvalidRequest("uuid is no UUID: give a uuid.UUID, 16 bytes or its text")
    if found == bytes(16):
        raise InvalidRequest("uuid is all zeros, which means none: give uuid.uuid4()")
    return found


def piece_uuid(uuid: bytes, index: int, count: int, rows: int) -> bytes:
    """A table's own UUID if it is one batch; else one for each that depends on the split, so that another split is not
    mistaken."""
    return uuid if count == 1 else uuids.uuid5(uuids.UUID(bytes=uuid), f"{index}/{count}/{rows}").bytes
