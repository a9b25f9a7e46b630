"""Answers that come in parts, each asked for behind the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from mq_client.errors import InternalError

ALL_BYTES_MAX: Final = 256 << 20
"""Of all parts together: many times what the largest cluster has."""


class Part(Protocol):
    """What a broker tells at once. `more`: there is more behind it."""

    @property
    def more(self) -> bool: ...

    def ByteSize(self) -> int: ...  # noqa: N802 - as protobuf has it


class Parts:
    """Owns how much was told so far: a broker that never comes to an end must not fill the memory of who asks."""

    def __init__(self) -> None:
        self._bytes = 0

    def more(self, part: Part, told: Sequence[object]) -> bool:
        """Whether to ask for what comes behind `told`, which this part has. Raises `InternalError` for one that has
        nothing, or if it is too much in all."""
        self._bytes += part.ByteSize()
        if not part.more:
            return False
        if not told or self._bytes > ALL_BYTES_MAX:
            raise InternalError(
                f"a broker has told {self._bytes} bytes and says that there is more, behind a part of {len(told)}: see "
                "its log"
            )
        return True
