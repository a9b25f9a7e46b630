"""What the counter of topic changes says: which topics the last changes were, so that nobody reads ten thousand for
one.

The counter is a node of ZooKeeper whose version grows by one with every change; its data are lines `number name`, the
newest last, the number being the version that the change made. Whoever changes a topic reads it, adds a line and writes
it back in the transaction of the change, mostly without insisting that nobody else has done so in between. If somebody
has, the newest number is not the version: then the note is not believed, by readers nor by the next writer, who begins
a new one. So a note that is believed is true, whatever raced; and one that is not costs a reading of all topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq_protocol.errors import InvalidTopicName
from mq_protocol.names import check_topic_name

LINES_MAX: Final = 100
"""How far behind a reader may be and still read only what changed."""

_DIGITS_MAX: Final = 10
"""Of a node's version, which is an int32."""


def with_change(note: bytes, version: int, name: str) -> bytes:
    """The note to write with a change of topic `name`, where the node has this note and version now."""
    lines = note.splitlines()[1 - LINES_MAX :] if _newest(note) == version and _changes(note) else []
    return b"\n".join([*lines, f"{version + 1} {name}".encode()])


def with_changes(note: bytes, version: int, names: Sequence[str]) -> bytes:
    """The same of several topics, of which each is a change: the node's version is to grow by as many."""
    for step, name in enumerate(names):
        note = with_change(note, version + step, name)
    return note


def since(note: bytes, version: int, known: int) -> list[str] | None:
    """The topics changed after version `known`, in order of name; None if the note does not say."""
    if known == version:
        return []
    if known > version or _newest(note) != version:
        return None
    changes = _changes(note)
    if not changes or changes[0][0] > known + 1:
        return None
    return sorted({name for number, name in changes if number > known})


def _changes(note: bytes) -> list[tuple[int, str]]:
    """The lines; none if one of them is not what is written here: then all topics are read. Names become parts of
    paths."""
    changes: list[tuple[int, str]] = []
    for line in note.split(b"\n"):
        number, _, name = line.partition(b" ")
        try:
            check_topic_name(name.decode(), internal=True)
        except (InvalidTopicName, UnicodeDecodeError):
            return []
        if not _is_number(number):
            return []
        changes.append((int(number), name.decode()))
    return changes


def _newest(note: bytes) -> int:
    """The number of the newest line; -1 without one."""
    number, _, name = note.rpartition(b"\n")[2].partition(b" ")
    return int(number) if _is_number(number) and name else -1


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _DIGITS_MAX
