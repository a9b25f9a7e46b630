"""What a broker's process asks of gRPC's core, by its environment: all before anything imports gRPC."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Final

VERBOSITY: Final = "GRPC_VERBOSITY"

CIPHER_SUITES: Final = "GRPC_SSL_CIPHER_SUITES"
"""Those of TLS 1.2 alone: the suites of 1.3 are fixed."""

NOT_TO_BE_HAD: Final = "PSK-AES128-CBC-SHA"
"""It needs a key that both ends know before. There is none."""

EXPERIMENTS: Final = "GRPC_EXPERIMENTS"
WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"

FIRST_VERSION, LAST_VERSION = (1, 80), (1, 85)
"""Of gRPC, between which it was seen to have the choice. A later one that has not would complain about the names."""


def write_nothing() -> None:
    """Have its core write no lines of its own to standard error, which look like nothing else that a broker says.
    Unless the environment says a level."""
    os.environ.setdefault(VERBOSITY, "NONE")


def refuse_older_tls() -> None:
    """Have it take part in no TLS before 1.3, unless the environment names suites. It has no setting for that in
    Python: it speaks 1.2 as well, so a handshake by it ends well and each call is refused. But 1.2 needs a suite of
    ciphers that both ends have."""
    os.environ.setdefault(CIPHER_SUITES, NOT_TO_BE_HAD)


def wait_without_event_engine() -> bool:
    """Have it wait for its sockets itself.

    From 1.80 on its core waits on threads of its own (its "EventEngine") in Python too, and hands every event on to the
    thread that waits for it. The way before, in which that thread waits for the socket itself, is a wake-up less for
    each message: a fifth less processor time for small ones, a quarter for 1 MiB (benchmarks/NOTES.md). It can still be
    chosen, as long as gRPC calls it an experiment; it chooses once, when it is imported.

    False if nothing was done: it is imported already, it is another version, or the environment says what it is to try.
    """
    if EXPERIMENTS in os.environ or "grpc" in sys.modules or not FIRST_VERSION <= _installed_version() <= LAST_VERSION:
        return False
    os.environ[EXPERIMENTS] = WITHOUT_EVENT_ENGINE
    return True


def _installed_version() -> tuple[int, int]:
    """Of gRPC, read from its file: to import it would be too late, and package metadata take 80 ms to ask."""
    spec = importlib.util.find_spec("grpc")
    if spec is None or spec.origin is None:
        return 0, 0
    try:
        found = re.search(r"(\d+)\.(\d+)", Path(spec.origin).with_name("_grpcio_metadata.py").read_text())
    except OSError:
        return 0, 0
    return (int(found[1]), int(found[2])) if found else (0, 0)
