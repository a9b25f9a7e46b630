"""What gRPC is given of a client's certificate, and when it has to be given another: once the files were replaced.

Channels are keyed by the generation that is told here, since a channel keeps what it was made with.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final, NamedTuple

import grpc

from mq_client.errors import InvalidSetting
from mq_client.security import Security
from mq_protocol.pem import Pem, context, open_to_others, read

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""So often it is looked whether files were replaced, and no more often: channels are asked for with each request."""


class Credentials(NamedTuple):
    """`generation` 0 is plain text."""

    generation: int
    channel: grpc.ChannelCredentials | None


PLAIN: Final = Credentials(0, None)


class _Kept:
    """Owns what is in force for one `Security`."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._seen: object = None
        self._pem: Pem | None = None
        self._told = ""
        self._looked_at = -LOOK_S
        self._now = Credentials(0, None)

    def current(self) -> Credentials:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            try:
                self._look()
            except InvalidSetting as error:
                if self._pem is None:
                    raise
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning("the new certificate is not taken, the former is used further: %s", error)
            self._looked_at = now
        return self._now

    def _look(self) -> None:
        files = self._security.files()
        found = files, files.generation()
        if found == self._seen:
            return
        pem = read(files)
        context(pem, server=False)  # refuses a pair that does not match, as while two files are being replaced
        if pem != self._pem:
            if self._pem is None and (fault := open_to_others(files.key)):
                log.warning("%s", fault)  # not refused: Spark's files come to its workers open to others
            self._pem = pem
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
            self._now = Credentials(self._now.generation + 1, credentials)
        self._seen, self._told = found, ""


_lock = threading.Lock()
_kept: dict[Security, _Kept] = {}


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have, and gRPC's objects are of no use there."""
    global _lock
    _lock = threading.Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_after_fork)


def current(security: Security | None) -> Credentials:
    """What a channel that is made now is to have. Raises `InvalidSetting` if the files are of no use and never were
    of any."""
    if security is None:
        return PLAIN
    with _lock:
        kept = _kept.get(security)
        if kept is None:
            kept = _kept[security] = _Kept(security)
        return kept.current()
