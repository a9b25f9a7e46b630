"""Which versions of TritonMQ can work together, and what they may write.

Three numbers, each raised by hand:

- `PROTOCOL`: what this release speaks on the wire. It also speaks every protocol from `PROTOCOL_OLDEST` on. Two ends
  work together if their ranges overlap. It is raised when the other end must know of a change.
- `LEVEL`: the highest level of features that this release knows. The cluster's own level is in the coordination
  service. An operator raises it (`tritonmq cluster upgrade`) once every broker knows the next one. Until then leaders
  write nothing of it, so that brokers of the last release can read everything, and can be started again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from mq_protocol.errors import IncompatibleVersion

PROTOCOL: Final = 1
PROTOCOL_OLDEST: Final = 1
LEVEL: Final = 1

FIRST: Final = 1
"""Protocol and level of whoever says none, which no release does."""

_RELEASE_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Versions:
    """What one end says of itself. `level`: the highest that it knows."""

    protocol: int = FIRST
    protocol_oldest: int = FIRST
    release: str = ""
    level: int = FIRST

    @classmethod
    def said(cls, protocol: int, protocol_oldest: int, release: str = "", level: int = 0) -> Versions:
        """What was read from a message or a document, where anything may stand."""
        newest = max(protocol, FIRST)
        return cls(
            newest, min(max(protocol_oldest, FIRST), newest), release[:_RELEASE_CHARACTERS_MAX], max(level, FIRST)
        )

    def __str__(self) -> str:
        spoken = (
            str(self.protocol)
            if self.protocol == self.protocol_oldest
            else f"{self.protocol_oldest} to {self.protocol}"
        )
        release = ascii(self.release)[1:-1]
        return f"release {release}, protocol {spoken}" if release else f"protocol {spoken}"

    def overlaps(self, other: Versions) -> bool:
        """Whether there is a protocol that both speak."""
        return self.protocol_oldest <= other.protocol and other.protocol_oldest <= self.protocol


@cache
def ours() -> Versions:
    """This program's. Takes a tenth of a second the first time, as it asks for the installed package."""
    try:
        release = version("tritonmq")
    except PackageNotFoundError:
        release = ""
    return Versions(PROTOCOL, PROTOCOL_OLDEST, release, LEVEL)


def check_overlap(here: str, mine: Versions, there: str, theirs: Versions) -> None:
    """Raises `IncompatibleVersion`, which names both and says which of them to upgrade. `here`, `there`: what they are
    called."""
    if not mine.overlaps(theirs):
        older = here if mine.protocol < theirs.protocol_oldest else there
        raise IncompatibleVersion(
            f"{here} ({mine}) and {there} ({theirs}) have no protocol in common: upgrade {older} to a release that the "
            "other one still speaks with"
        )
