"""The data key of a journal's next segment, wrapped ahead: who holds the keys may be away when that segment begins.

While there is none, the last segment grows beyond its size, and nobody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from mq_broker.measured import ALARMS
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import DataKey
from mq_protocol.errors import StorageFailed

AGAIN_S: Final = 5.0

_logger = logging.getLogger(__name__)


class KeyAhead:
    """Owns the next data key. Made in a thread, which waits for the first key; the event loop's from then on.

    `latest` is the newest data key that there is, in use or not.
    """

    def __init__(self, keys: Keyring, place: Place, name: str) -> None:
        """Raises `KeyAbsent`."""
        self._keys = keys
        self._place = place
        self._name = name
        self.latest = keys.make(place, name)
        self._next: DataKey | None = self.latest
        self._wrapping: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self._next is not None

    def take(self) -> DataKey:
        """For a segment that begins. Another is made from now on."""
        key, self._next = self._next, None
        assert key is not None, "a segment begins without a key"
        if self._keys.at_hand:
            with contextlib.suppress(StorageFailed):  # then as if they were far away
                self._next = self.latest = self._keys.make(self._place, self._name)
        if self._next is None:
            self._wrapping = asyncio.get_running_loop().create_task(self._wrap())
        return key

    def give_back(self, key: DataKey) -> None:
        """The segment that it was for is gone: it may seal another one."""
        if self._next is None:
            self._next = key

    def close(self) -> None:
        if self._wrapping is not None:
            self._wrapping.cancel()

    async def _wrap(self) -> None:
        told = False
        while self._next is None:
            try:
                made = await asyncio.to_thread(self._keys.make, self._place, self._name)
            except StorageFailed as error:
                if not told:
                    ALARMS.add("keys_away")
                    _logger.warning(
                        "the next segment of partition %d of topic id %s has no key yet, and the present one grows: %s",
                        self._place.partition,
                        self._place.topic_id,
                        error,
                    )
                told = True
                await asyncio.sleep(AGAIN_S)
                continue
            if self._next is None:
                self._next = self.latest = made
