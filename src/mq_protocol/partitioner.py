"""Which partition a key belongs to: the hash of Kafka's default partitioner (murmur2), so keys land where Kafka's users
expect.

Not here: how records without a key are spread (the producer's business).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mq_protocol.arrow import numbers_of
from mq_protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF

_VECTOR_KEY_BYTES_MAX = 256
"""Longer keys are hashed one by one: the vectorised form makes a pass over the column for every four bytes of its
longest key."""


def murmur2(key: bytes) -> int:
    """Austin Appleby's MurmurHash2, 32 bits, with the seed that Kafka gives it; unsigned."""
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = (h * _MULTIPLIER & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition, `0 .. partitions - 1`, of a key; the same in every process and release."""
    assert partitions > 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def coordinator_partition(query_id: str, sink: str, partitions: int) -> int:
    """The partition of the coordinators' topic that decides for a query's writes to a sink."""
    return partition_for_key(f"{query_id}\0{sink}".encode(), partitions)


def partitions_for_keys(keys: pa.Array, partitions: int) -> NDArray[np.int32]:
    """The partition of each key of a column, `-1` where the key is null.

    Strings are hashed as UTF-8, `int` and `long` as big-endian, as Kafka's serializers write them. Raises
    `InvalidRequest` for a column of any other type.
    """
    assert partitions > 0
    column = key_bytes(keys)
    hashes = np.empty(len(column), dtype=np.uint32)
    all_offsets = np.frombuffer(column.buffers()[1], dtype=np.int32, count=column.offset + len(column) + 1)
    offsets = all_offsets[column.offset :].astype(np.int64)
    lengths = np.diff(offsets)
    data = np.frombuffer(column.buffers()[2] or b"", dtype=np.uint8)
    short = np.flatnonzero(lengths <= _VECTOR_KEY_BYTES_MAX)
    hashes[short] = _murmur2_columns(data, offsets[:-1][short], lengths[short])
    for row in np.flatnonzero(lengths > _VECTOR_KEY_BYTES_MAX):
        hashes[row] = murmur2(data[offsets[row] : offsets[row + 1]].tobytes())
    chosen = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    if column.null_count:
        chosen[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return chosen


def key_bytes(keys: pa.Array) -> pa.Array:
    """The keys of a column as the bytes that are hashed. Raises `InvalidRequest` for a type that is not one of
    those."""
    kind = keys.type
    if pa.types.is_int32(kind) or pa.types.is_int64(kind):
        width = kind.bit_width // 8
        big_endian = numbers_of(keys.fill_null(0) if keys.null_count else keys).byteswap().tobytes()
        fixed = pa.Array.from_buffers(pa.binary(width), len(keys), [None, pa.py_buffer(big_endian)]).cast(pa.binary())
        return pc.if_else(keys.is_valid(), fixed, None) if keys.null_count else fixed
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return keys if len(keys) else pa.array([b""], pa.binary()).slice(0, 0)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_fixed_size_binary(kind):
        return key_bytes(keys.cast(pa.binary()))
    raise InvalidRequest(
        f"a key column of type {kind} cannot be hashed to a partition: use string, binary, int or long"
    )


def _murmur2_columns(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """`murmur2` of every `data[start : start + length]` at once. uint32 arithmetic wraps, which is what the hash
    wants."""
    multiplier = np.uint32(_MULTIPLIER)
    h = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for word in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > word)
        at = starts[rows] + 4 * word
        k = _little_endian(data, at, 4) * multiplier
        k = (k ^ (k >> np.uint32(24))) * multiplier
        h[rows] = h[rows] * multiplier ^ k
    for rest in (1, 2, 3):
        rows = np.flatnonzero((lengths & 3) == rest)
        if len(rows):
            h[rows] = (h[rows] ^ _little_endian(data, starts[rows] + 4 * words[rows], rest)) * multiplier
    h = (h ^ (h >> np.uint32(13))) * multiplier
    return h ^ (h >> np.uint32(15))


def _little_endian(data: NDArray[np.uint8], at: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
    value = data[at].astype(np.uint32)
    for byte in range(1, count):
        value |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return value


def member_of_partition(members: Collection[str], partition: int) -> str:
    """The member that is to have the partition: number `partition mod n` of the n members in order of id. There must be
    one."""
    ids = sorted(members)
    return ids[partition % len(ids)]
