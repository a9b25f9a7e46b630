"""Variables of the environment that mean nothing, and are most likely misspelt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from mq_protocol.names import nearest

PREFIX: Final = "TRITONMQ_"

_OF_CLIENTS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "BOOTSTRAP",
        "TIMEOUT_S",
        "CERTS",
        "USER",
        "TOKEN_FILE",
        "VIA",
        "FORWARD",
        "PROXY_LISTEN",
        "CONFIG",
        "PROFILE",
        "FAILPOINTS",
    )
)
_GIVEN: Final = frozenset(
    f"{PREFIX}{name}" for name in ("TOPIC", "PARTITION", "OFFSET", "DELIVERIES", "FAILURES", "KEY", "LOCK_TOKEN")
)
"""What `tritonmq work` and `tritonmq lock` give to the commands that they run."""

_OF_OTHERS: Final = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_|$)|^TRITONMQ_TEST_")
"""Of tests, and of Kubernetes, which gives every container the addresses of services, by the services' names."""


def misspelt(given: Iterable[str]) -> list[tuple[str, str]]:
    """Variables that mean nothing, each with the one that was most likely meant. One that is near to none is somebody
    else's."""
    known = _OF_CLIENTS | _GIVEN
    unknown = [name for name in given if name.startswith(PREFIX) and name not in known and not _OF_OTHERS.search(name)]
    if not unknown:
        return []
    from mq_cli.settings_file import keys  # which imports all options of brokers

    known |= {key.environment for section in keys().values() for key in section.values() if key.environment}
    words = sorted(name.removeprefix(PREFIX) for name in known - _GIVEN)
    near = [(name, nearest(name.removeprefix(PREFIX), words)) for name in sorted(unknown) if name not in known]
    return [(name, PREFIX + meant) for name, meant in near if meant is not None]
