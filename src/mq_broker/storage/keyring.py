"""The keys of a broker: makes data keys for segments, and opens those that lie on the disk.

Asking a provider blocks: call it in threads.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

from mq_broker.storage.codec.frame import Place
from mq_broker.storage.key_provider import DEFAULT, DoesNotUnwrap, KeyProvider, NoSuchKey, aead, provider_of
from mq_broker.storage.sealed import DATA_KEY_BYTES, DataKey, KeyAbsent, Slot, WrongKey, context_of
from mq_protocol.names import quoted

_KNOWN_MAX: Final = 4_096
"""Data keys that are kept open, so that a segment that is opened again asks nobody."""


class Keyring:
    """Owns the data keys that were opened lately. Any thread. `at_hand`: the provider answers at once, so that the
    event loop may ask it too."""

    def __init__(self, reference: str, provider: KeyProvider | None = None) -> None:
        """Raises `InvalidSetting`, see `provider_of`."""
        self.reference = reference
        self.provider = provider or provider_of(reference)
        self.at_hand = bool(getattr(self.provider, "at_hand", False))
        self._guard = threading.Lock()
        self._known: OrderedDict[tuple[Place, str, bytes], DataKey] = OrderedDict()

    def current(self, name: str) -> str:
        """The id of the newest key of that name; empty is the default. Raises `KeyAbsent`."""
        name = name or DEFAULT
        try:
            return self.provider.current(name)
        except Exception as error:
            raise KeyAbsent(
                f"the key called {quoted(name)} cannot be had from {self.reference} ({error}): nothing is written "
                "unsealed in its place",
                name,
            ) from error

    def lacks(self, name: str) -> bool:
        """Whether it is known that there is no key of that name. A provider that does not answer does not say so."""
        try:
            self.provider.current(name)
        except NoSuchKey:
            return True
        except Exception:  # noqa: BLE001 - whatever else a provider raises: it is away
            return False
        return False

    def make(self, place: Place, name: str) -> DataKey:
        """A new data key, wrapped by the newest key of that name. Raises `KeyAbsent`."""
        key_id = self.current(name)
        data_key = os.urandom(DATA_KEY_BYTES)
        return DataKey(place, Slot(key_id, self.wrap(place, key_id, data_key)), aead()(data_key))

    def wrap(self, place: Place, key_id: str, data_key: bytes) -> bytes:
        """Raises `KeyAbsent`."""
        try:
            return self.provider.wrap(key_id, data_key, context_of(place))
        except Exception as error:
            raise KeyAbsent(
                f"{self.reference} wraps nothing with key {quoted(key_id)} ({error}): make it reachable", key_id
            ) from error

    def unwrap(self, place: Place, slot: Slot) -> bytes:
        """The data key. Raises `KeyAbsent` and `WrongKey`."""
        what = f"partition {place.partition} of topic id {place.topic_id} is sealed with key {quoted(slot.key_id)}"
        try:
            data_key = self.provider.unwrap(slot.key_id, slot.wrapped, context_of(place))
        except DoesNotUnwrap as error:
            raise WrongKey(
                f"{what}, and it is the wrong key: {error}. The partition stays closed on this broker, and nothing of "
                "it was changed. Put back the right key",
                slot.key_id,
            ) from error
        except Exception as error:
            again = "" if isinstance(error, NoSuchKey) else "; it is asked again"
            raise KeyAbsent(
                f"{what}, which cannot be had from {self.reference} ({error}){again}. The partition waits, and nothing "
                "of it was changed",
                slot.key_id,
            ) from error
        if len(data_key) != DATA_KEY_BYTES:
            raise WrongKey(f"{what}, which unwraps to {len(data_key)} bytes: no data key", slot.key_id)
        return data_key

    def open(self, place: Place, slot: Slot) -> DataKey:
        """Raises `KeyAbsent` and `WrongKey`."""
        known = (place, slot.key_id, slot.wrapped)
        with self._guard:
            if known in self._known:
                self._known.move_to_end(known)
                return self._known[known]
        key = DataKey(place, slot, aead()(self.unwrap(place, slot)))
        with self._guard:
            self._known[known] = key
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return key


def opened_with(keys: Keyring | None, place: Place, slot: Slot) -> DataKey:
    """As `Keyring.open`, for who may have been given no keys. Raises `KeyAbsent` and `WrongKey`."""
    if keys is None:
        raise KeyAbsent(
            f"partition {place.partition} of topic id {place.topic_id} is sealed with key {quoted(slot.key_id)}, and "
            "no keys were given: give --encrypt KEYREF, e.g. file:/etc/tritonmq/keys.json. Nothing of it was changed",
            slot.key_id,
        )
    return keys.open(place, slot)
