"""What the counter of topic changes says: which topics the last changes were, so that nobody reads ten thousand for one.

The counter is a node of ZooKeeper whose version grows by one with every change; its data are lines `number name`, the newest
last, the number being the version that the change made. Whoever changes a topic reads it, adds a line and writes it back in the
transaction of the change, mostly without insisting that nobody else has done so in between. If somebody has, the newest number
is not the version: then the note is not believed, by readers nor by the next writer, who begins a new one. So a note that is
believed is true, whatever raced; and one that is not costs a reading of all topics.
"""

from __future__ import annotations

from typing import Final

LINES_MAX: Final = 100
"""How far behind a reader may be and still read only what changed."""


def with_change(note: bytes, version: int, name: str) -> bytes:
    """The note to write with a change of topic `name`, where the node has this note and version now."""
    lines = note.splitlines()[1 - LINES_MAX :] if _newest(note) == version else []
    return b"\n".join([*lines, f"{version + 1} {name}".encode()])


def since(note: bytes, version: int, known: int) -> list[str] | None:
    """The topics changed after version `known`, in order of name; None if the note does not say."""
    if known == version:
        return []
    if known > version or _newest(note) != version:
        return None
    changes = [line.decode().partition(" ") for line in note.splitlines()]
    if int(changes[0][0]) > known + 1:
        return None
    return sorted({name for number, _, name in changes if int(number) > known})


def _newest(note: bytes) -> int:
    """The number of the newest line; -1 without one."""
    number, _, name = note.rpartition(b"\n")[2].partition(b" ")
    return int(number) if number.isdigit() and name else -1
