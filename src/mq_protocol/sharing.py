"""Which member of a group reads which partition: brokers go by it without a coordinator, and tools show it."""

from __future__ import annotations

from collections.abc import Collection


def member_of_partition(members: Collection[str], partition: int) -> str:
    """The member that is to have the partition: number `partition mod n` of the n members in order of id. There must be
    one."""
    ids = sorted(members)
    return ids[partition % len(ids)]
