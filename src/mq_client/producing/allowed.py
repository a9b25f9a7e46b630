"""Which settings of a producer are allowed, and what their names stand for. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mq_client.cluster.deadline import a_number
from mq_client.errors import InvalidSetting
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import did_you_mean

BATCH_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 64 << 20
RETRIES: Final = 2**31 - 1

ACKS: Final = {"all": pb.ALL, "leader": pb.LEADER, "none": pb.NONE}
COMPRESSIONS: Final = {"none": None, "lz4": "lz4", "zstd": "zstd", "gzip": "zstd", "zlib": "zstd", "snappy": "lz4"}
"""Arrow's buffers know lz4 and zstd alone, and every reader of Arrow knows those. The other names stand for the nearest
of the two: zstd makes 1 MB of JSON smaller than gzip in a quarter of the time, lz4 as small as snappy in a sixth."""


def check_names(acks: str, compression: str | None) -> None:
    """Raises `InvalidSetting` with the nearest right name, as the other checks raise it with the bounds."""
    _check_known("acks", acks, ACKS)
    if compression is not None:
        _check_known("compression", compression, COMPRESSIONS)


def check_room(batch_bytes_max: int, buffer_bytes_max: int) -> None:
    if not 1 <= batch_bytes_max <= limits.BATCH_BYTES_CEILING:
        raise InvalidSetting(
            f"batch_bytes_max={batch_bytes_max} is out of range: give 1 to {limits.BATCH_BYTES_CEILING}"
        )
    if buffer_bytes_max < batch_bytes_max:
        raise InvalidSetting(
            f"buffer_bytes_max={buffer_bytes_max} is below batch_bytes_max={batch_bytes_max}: raise it"
        )


def _check_known(setting: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        hint = did_you_mean(str(given), known)
        raise InvalidSetting(f"{setting}={given!r} is not known{hint} (it is one of {', '.join(known)})")


def check_sending(retries: int, max_in_flight: int, linger_ms: float) -> None:
    if retries < 0:
        raise InvalidSetting(f"retries={retries} is negative: 0 means to try once")
    if max_in_flight < 1:
        raise InvalidSetting(f"max_in_flight={max_in_flight} must be at least 1")
    if a_number("linger_ms", linger_ms) < 0:
        raise InvalidSetting(f"linger_ms={linger_ms} is negative: 0 means to send at once")
