"""Whether an address refuses connections. A refusal is an answer; silence or an unknown host is none."""

from __future__ import annotations

import math
import socket
from typing import Final

REFUSED_S: Final = 2.0
"""For so long is asked again while all addresses refuse: a broker that is being restarted may be back by then."""

PATIENT: Final = math.inf
"""In the place of `REFUSED_S`: a refusal is no reason to give up early. For Spark's tasks, which begin
at any moment and must outlast the restart of a broker."""

_CONNECT_S: Final = 0.5


def refuses(address: str) -> bool:
    """Whether a connection to `HOST:PORT` is refused now. A host may have several addresses: one refuses, and none is
    silent. Takes half a second for each at most, once the host is found."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S, all_errors=True):
            return False
    except ExceptionGroup as failed:
        refused = any(isinstance(error, ConnectionRefusedError) for error in failed.exceptions)
        return refused and not any(isinstance(error, TimeoutError) for error in failed.exceptions)
    except OSError:
        return False
