"""Snapshots on their way here, part by part. What one link can have this broker keep is bounded, and gone with the
link.

A broker sends one snapshot after another, each from its first part to its last (`rpc/wire/links.py`). So of each link
one is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.limits import SNAPSHOT_BYTES_MAX, SNAPSHOT_PART_BYTES, SNAPSHOT_UUID_BYTES


@dataclass(slots=True)
class _Link:
    """`parts` of the one that is arriving; `decoding`: bytes of those that have arrived and are being read."""

    parts: list[pb.SnapshotPart] = field(default_factory=list)
    decoding: int = 0


def bytes_max(dedup_uuids_max: int) -> int:
    """How large a snapshot may be, of a partition that remembers so many UUIDs."""
    return SNAPSHOT_BYTES_MAX + SNAPSHOT_UUID_BYTES * dedup_uuids_max


class ArrivingSnapshots:
    """Owns the parts that have arrived, by the broker that sends them."""

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}

    def take(self, part: pb.SnapshotPart, size_max: int) -> list[pb.SnapshotPart]:
        """All parts, if this was the last one; call `done` when they are no longer needed. Empty if more are to come.

        What does not follow is dropped, with what came before it: the leader sends it all again. So is what finds no
        room beside snapshots of the same link that are still being read. Raises `PeerRefused` for parts that no broker
        sends.
        """
        if not part.part < part.parts or not 0 < len(part.data) <= SNAPSHOT_PART_BYTES:
            raise PeerRefused(f"snapshot part {part.part} of {part.parts}, of {len(part.data)} bytes", pb.PEER_NONSENSE)
        if (part.parts - 1) * SNAPSHOT_PART_BYTES > size_max:
            raise PeerRefused(f"a snapshot of {part.parts} parts, where {size_max} bytes are allowed", pb.PEER_NONSENSE)
        link = self._links.setdefault(part.leader, _Link())
        if part.part != len(link.parts) or (link.parts and _sending(link.parts[0]) != _sending(part)):
            link.parts.clear()
            if part.part:
                return []
        if link.decoding and link.decoding + sum(len(each.data) for each in link.parts) + len(part.data) > size_max:
            link.parts.clear()
            return []
        link.parts.append(part)
        if len(link.parts) < part.parts:
            return []
        parts, link.parts = link.parts, []
        link.decoding += _size(parts)
        return parts

    def done(self, parts: list[pb.SnapshotPart]) -> None:
        """They were read."""
        self._links[parts[0].leader].decoding -= _size(parts)

    def forget(self, broker: int) -> None:
        """The link to that broker has ended: what has not arrived whole never will."""
        link = self._links.get(broker)
        if link is not None:
            link.parts = []

    @property
    def bytes_kept(self) -> int:
        """Of all links together."""
        return sum(link.decoding + _size(link.parts) for link in self._links.values())


def _size(parts: list[pb.SnapshotPart]) -> int:
    return sum(len(part.data) for part in parts)


def _sending(part: pb.SnapshotPart) -> tuple[str, int, int, int, int]:
    return part.topic_id, part.partition, part.leader_epoch, part.sequence, part.parts
