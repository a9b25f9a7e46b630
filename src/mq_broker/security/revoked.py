"""Who and what is revoked: users by name, and certificates by serial number. Pure.

Kept in the coordination service as one document, `{"names": […], "serials": […]}`. It is read whole or not at all.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from mq_broker.security.names import ANONYMOUS, Principal, kind_of_kept
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, TritonMQError, shortened
from mq_protocol.names import nearest, quoted

DOCUMENT: Final = "revoked"
ENTRIES_MAX: Final = 10_000
"""So many serials fit the document. Of long names fewer do, and then the coordination service's part refuses it."""

_SERIAL: Final = re.compile(r"[1-9a-f][0-9a-f]{0,39}")
_ERROR_BYTES_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Revoked:
    """`names`: as `str` of a principal gives them. `serials`: as `serial_of` gives them (names.py)."""

    names: frozenset[str] = frozenset()
    serials: frozenset[str] = frozenset()

    def has(self, name: str, serial: str) -> bool:
        """Whether somebody of that name, with a certificate of that serial, is revoked."""
        return name in self.names or (bool(serial) and serial in self.serials)

    @property
    def entries(self) -> list[str]:
        """All in order, names first."""
        return [*sorted(self.names), *sorted(self.serials)]

    def changed(self, add: Iterable[str], remove: Iterable[str]) -> Revoked:
        """With some entries less, then some more. Raises `InvalidRequest` for too many."""
        entries = (set(self.entries) - set(remove)) | set(add)
        if len(entries) > ENTRIES_MAX:
            raise InvalidRequest(
                f"more than {ENTRIES_MAX} names and serials cannot be revoked: take away those whose certificates have "
                "ended (tritonmq cert revoke --undo)"
            )
        names = frozenset(entry for entry in entries if ":" in entry)
        return Revoked(names, frozenset(entries) - names)


def entry_of(text: str) -> str:
    """`User:NAME`, or a serial in hexadecimal as `tritonmq cert show` and OpenSSL tell it. Raises `InvalidRequest`."""
    if text.startswith(("User:", "Broker:", "Group:")):
        if kind_of_kept(text) != "User":
            raise InvalidRequest(
                f"{text} is no user: a user is revoked by name. A broker that is not to be trusted any more needs "
                "another authority (docs/tls.md)"
            )
        if text == str(ANONYMOUS):
            raise InvalidRequest(f"{text} has no certificate: deny it something by a rule (tritonmq acl deny)")
        return text
    serial = text.replace(":", "").lower().removeprefix("0x").lstrip("0")
    if not _SERIAL.fullmatch(serial):
        raise InvalidRequest(
            f"{quoted(text)} is neither User:NAME nor a certificate's serial: `tritonmq cert show` tells serials"
        )
    return serial


def new_entry_of(text: str) -> str:
    """The same of what is to be revoked. Raises `InvalidRequest` as well for a name that nobody can have."""
    entry = entry_of(text)
    if ":" in entry:
        Principal.parse(entry)
    return entry


def load(data: bytes) -> Revoked:
    """Raises `CoordinationUnavailable`, which says what is wrong with the document."""
    try:
        document = json.loads(data)
        if document.keys() != {"names", "serials"}:
            raise ValueError("it has other keys than `names` and `serials`")
        names, serials = (tuple(document[key]) for key in ("names", "serials"))
        if any(entry_of(name) != name or ":" not in name for name in names):
            raise ValueError("a name is no user's")
        if not all(_SERIAL.fullmatch(serial) for serial in serials):
            raise ValueError("a serial is no hexadecimal number")
        return Revoked(frozenset(names), frozenset(serials))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TritonMQError) as error:
        raise CoordinationUnavailable(
            f"the security document {DOCUMENT} is not one that this version knows "
            f"({shortened(repr(error), _ERROR_BYTES_MAX)}): put back what was there, or start a release that knows it"
        ) from error


def dump(revoked: Revoked) -> bytes:
    document = {"names": sorted(revoked.names), "serials": sorted(revoked.serials)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


SEEN_MAX: Final = 10_000
"""Users, and certificates, the last ones."""

LONGER_MAX: Final = 3
"""Serials that begin alike of which one is told."""


class Known(NamedTuple):
    """What is known of a name or a serial. `whose`: the user of it; empty if it was not seen. `longer`: serials that
    begin so and were seen. `near`: a name that was most likely meant; empty for none."""

    whose: str = ""
    longer: tuple[str, ...] = ()
    near: str = ""


class Seen:
    """Which users and certificates a broker has seen since it started: who revokes one is told whether there is such a
    one. Owns the last names, and the last serials with whose they are."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._serials: OrderedDict[str, str] = OrderedDict()

    def note(self, name: str, serial: str) -> None:
        """Somebody has come, with that certificate if `serial` is not empty."""
        if name not in self._names:
            self._names[name] = None
            if len(self._names) > SEEN_MAX:
                self._names.popitem(last=False)
        if serial and serial not in self._serials:
            self._serials[serial] = name
            if len(self._serials) > SEEN_MAX:
                self._serials.popitem(last=False)

    def known(self, entry: str, named: Collection[str]) -> Known:
        """Of a name or a serial. `named`: names that rules and such have."""
        if ":" in entry:
            if entry in self._names or entry in named:
                return Known(entry)
            return Known(near=nearest(entry, sorted({*self._names, *named})) or "")
        if entry in self._serials:
            return Known(self._serials[entry])
        longer = [serial for serial in self._serials if serial.startswith(entry)]
        return Known(longer=tuple(longer[:LONGER_MAX]))
