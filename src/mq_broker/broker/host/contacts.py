"""The heartbeat of a pair of brokers, which stands for those of all their partitions that are at rest.

Each broker beats once a second on each link (rpc/wire/links.py). A beat says that the sender's loop runs, and that what
it sent on this link was written to it. Three things follow together with what a leader promises, namely to say so when
it stops leading (partition.py):

- a leader that was heard since the contact began leads still;
- what was sent since then has arrived or is on its way;
- a follower need not ask, and a leader need not speak, until something happens.

A contact belongs to one link, and so to one life of the other broker's process. It begins with the first beat on that
link, and ends with the link. It begins anew with a beat that says that something was dropped. A broker that has not
beaten for `BEAT_PATIENCE_MS` is treated as one whose link broke.
"""

from __future__ import annotations

from typing import Final

BEAT_PATIENCE_MS: Final = 20_000
"""Twenty beats: longer than a loop is held up that opens thousands of partitions. A link that carries none is made
anew."""


_NEVER_MS: Final = -(1 << 62)


class Contacts:
    """Owns since when each other broker has been in contact without a break. Pure: times are milliseconds, as
    arguments."""

    def __init__(self, now_ms: int, patience_ms: int = BEAT_PATIENCE_MS) -> None:
        self._since: dict[int, int] = {}
        self._heard: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._looked_ms = now_ms
        self._patience_ms = patience_ms

    def since(self, broker: int) -> int | None:
        """None: it is not in contact."""
        return self._since.get(broker)

    def beat(self, broker: int, now_ms: int, *, dropped: bool) -> None:
        """It has beaten. `dropped`: something that it sent before was lost."""
        if dropped or broker not in self._since:
            self._since[broker] = now_ms
        self._heard[broker] = self._last[broker] = now_ms

    def last_beat_ms(self, broker: int) -> int:
        """When it last beat, in contact or not any more; long ago if it never has."""
        return self._last.get(broker, _NEVER_MS)

    def ended(self, broker: int) -> None:
        """The link to it is down."""
        self._since.pop(broker, None)
        self._heard.pop(broker, None)

    def silent(self, now_ms: int) -> list[int]:
        """Those that have not beaten for too long. To be asked often: after a pause in the asking it is this broker
        that slept, and everybody has the whole time again."""
        slept = now_ms - self._looked_ms > self._patience_ms // 2
        self._looked_ms = now_ms
        if slept:
            self._heard = dict.fromkeys(self._heard, now_ms)
        return [broker for broker, heard_ms in self._heard.items() if now_ms - heard_ms > self._patience_ms]
