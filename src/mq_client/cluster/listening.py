"""Whether somebody listens at an address. A refused connection is an answer; silence is none."""

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
_REFUSED: Final = "connection refused"
_EAI_NODATA: Final = getattr(socket, "EAI_NODATA", socket.EAI_NONAME)


def refuses(address: str) -> bool:
    """Whether a connection to `HOST:PORT` is refused now. An unknown host does not count: it may be known later."""
    return why_unreachable(address) == _REFUSED


def why_unreachable(address: str) -> str | None:
    """Why nobody can be reached at `HOST:PORT` for sure, in a few words; None if somebody listens there, or may.

    A host may have several addresses: one that is silent may be far away or busy. Takes half a second for each at most,
    once the host is found.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S, all_errors=True):
            return None
    except ExceptionGroup as failed:
        errors = failed.exceptions
        if any(isinstance(error, TimeoutError) for error in errors):
            return None
        if any(isinstance(error, ConnectionRefusedError) for error in errors):
            return _REFUSED
        return _words(errors[0])
    except socket.gaierror as error:
        unknown = error.errno in (socket.EAI_NONAME, _EAI_NODATA)
        return "no such host" if unknown else f"host not found ({error.strerror})"
    except OSError as error:
        return _words(error)


def _words(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
