"""Which users and certificates a broker has seen since it started: who revokes one is told whether there is such a
one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

from mq_protocol.names import nearest

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
    """Owns the last names, and the last serials with whose they are."""

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
