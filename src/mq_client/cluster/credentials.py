"""With which certificate or token a client speaks now, and when it has to speak with another: once the files were
replaced.

Connections are keyed by the generation that is told here, since a connection keeps what it was made with.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from mq_client.errors import InvalidSetting, NotAuthenticated, TritonMQError, Unreachable
from mq_client.security import Security
from mq_protocol.access.pem import authorities_context, context, generation_of, open_to_others, read, read_authorities
from mq_protocol.access.secrets import Secret

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""So often it is looked whether files were replaced, and no more often: this is asked with each request."""


class Credentials(NamedTuple):
    """`generation` 0 is plain text, without `tls`. `token`: shown by each call."""

    generation: int
    tls: ssl.SSLContext | None = None
    token: Secret | None = None


PLAIN: Final = Credentials(0)


class _Kept:
    """Owns what is in force for one `Security`."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._seen: object = None
        self._known: object = None  # what was taken last
        self._told = ""
        self._looked_at = -LOOK_S
        self._now = PLAIN

    def current(self) -> Credentials:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            try:
                self._look()
            except InvalidSetting as error:
                if self._known is None:
                    raise
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning("the new certificate or token is not taken, the former is used further: %s", error)
            self._looked_at = now
        return self._now

    def look_now(self) -> int:
        """The generation, once it was looked whether the files were replaced."""
        self._looked_at = -LOOK_S
        return self.current().generation

    def _look(self) -> None:
        if self._security.has_token:
            self._look_at_token()
        else:
            self._look_at_certificate()

    def _look_at_token(self) -> None:
        """Read each time: a file system may keep the time of one that is replaced within a second."""
        path = self._security.authorities()
        found = generation_of(path), self._security.read_token()
        if found == self._seen:
            return
        ca = read_authorities(path)
        tls, token = authorities_context(ca), found[1]
        if self._known is None and (file := self._security.token_file) and (fault := open_to_others(Path(file))):
            log.warning("%s", fault)
        self._known, self._now = (ca, token), Credentials(self._now.generation + 1, tls, token)
        self._seen, self._told = found, ""

    def _look_at_certificate(self) -> None:
        files = self._security.files()
        found = files, files.generation()
        if found == self._seen:
            return
        pem = read(files)
        tls = context(pem, server=False)  # refuses a pair that does not match, as while two files are being replaced
        if pem != self._known:
            if self._known is None and (fault := open_to_others(files.key)):
                log.warning("%s", fault)  # not refused: Spark's files come to its workers open to others
            self._known = pem
            self._now = Credentials(self._now.generation + 1, tls)
        self._seen, self._told = found, ""


_lock = threading.Lock()
_kept: dict[Security, _Kept] = {}


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def current(security: Security | None) -> Credentials:
    """What a connection that is made now is to have. Raises `InvalidSetting` if the files are of no use and never were
    of any."""
    if security is None:
        return PLAIN
    with _lock:
        kept = _kept.get(security)
        if kept is None:
            kept = _kept[security] = _Kept(security)
        return kept.current()


def as_told(refused: NotAuthenticated, security: Security | None, generation: int) -> TritonMQError:
    """What it means that a broker has refused a call so, as another error. One that was refused with a token which was
    replaced meanwhile may be made again. Of others a broker says no more to a stranger, and the client knows what it
    has shown."""
    if security is None or not security.has_token:
        return NotAuthenticated(str(refused))
    if _was_replaced(security, generation):
        return Unreachable("a broker has refused the former token: ask again with the new one")
    if str(refused) != NotAuthenticated.NO_MORE:
        return NotAuthenticated(str(refused))
    which = f"the token in {security.token_file}" if security.token_file is not None else "the token"
    return NotAuthenticated(
        f"{refused}: {which} is wrong, expired or revoked. An administrator sees by `tritonmq token list` which tokens "
        "there are, and the broker's audit.log says why this one was refused"
    )


def _was_replaced(security: Security, generation: int) -> bool:
    """Whether there is another token by now than that of the generation. Looks at the file."""
    if security.token_file is None:
        return False
    with _lock:
        kept = _kept.get(security)
        return kept is not None and kept.look_now() != generation
