"""The certificate of a broker: what its ports show, what it dials with, and how both are replaced while it runs.

Owns the pair in force. Files are looked at every ten seconds, and at once on SIGHUP. A pair that is of no use is told
in the log, and the former stays in force. A new one counts from the next handshake on; what is open goes on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mq_broker.security.names import Principal, of_certificate
from mq_protocol.access.pem import Pem, Shown, context, examine, files_of_broker, open_to_others, read
from mq_protocol.errors import InvalidSetting, NotAuthenticated

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
WARN_DAYS: Final = 30
_DAY_S: Final = 86_400.0


class Certificates:
    """Owns what is in force, for one broker. Raises `InvalidSetting` for files of no use, before anything is served."""

    def __init__(self, directory: Path, broker: int, now: Callable[[], float] = time.time) -> None:
        self._broker = broker
        self._files = files_of_broker(directory, broker)
        self._now = now
        self.hint = asyncio.Event()
        """Set when somebody has asked for a look."""

        self._seen = self._files.generation()
        self._told = ""
        self._warned_at = -_DAY_S
        self.generation = 0
        """Grows with each pair: what was dialled with an earlier one is dialled anew."""

        self._take(*self._load())

    def _take(self, pem: Pem, shown: Shown) -> None:
        self.pem, self.shown = pem, shown
        self._contexts = context(pem, server=True), context(pem, server=False)
        self._contexts[0].verify_mode = ssl.CERT_OPTIONAL
        self.generation += 1

    def _load(self) -> tuple[Pem, Shown]:
        if fault := open_to_others(self._files.key):
            raise InvalidSetting(fault)
        pem = read(self._files)
        try:
            shown = examine(pem, server=True)
            owner = of_certificate(shown.uris, shown.common_name)
        except (InvalidSetting, NotAuthenticated) as error:
            raise InvalidSetting(f"{self._files.certificate}: {error}") from error
        if owner != Principal("Broker", str(self._broker)):
            raise InvalidSetting(
                f"{self._files.certificate} is the certificate of {owner}, not of broker {self._broker}: make one with "
                f"`tritonmq cert create-broker --id {self._broker} --host ...`"
            )
        return pem, shown

    # ------------------------------------------------------------------ what is done with it

    def server_context(self) -> ssl.SSLContext:
        """For a port that leaves it to whoever connects whether it shows a certificate."""
        return self._contexts[0]

    def client_context(self) -> ssl.SSLContext:
        """For a connection to another broker."""
        return self._contexts[1]

    # ------------------------------------------------------------------ replacing it

    def look_now(self) -> None:
        """To be called on SIGHUP."""
        self._seen = ()
        self.hint.set()

    async def look(self) -> None:
        """Take what is new, and warn of what ends soon."""
        await self._take_newer()
        self._warn()

    async def _take_newer(self) -> None:
        try:
            found = self._files.generation()
            if found == self._seen:
                return
            pem, shown = await asyncio.to_thread(self._load)
        except InvalidSetting as error:
            self._refuse(str(error))
            return
        self._seen, self._told = found, ""
        if pem != self.pem:
            self._take(pem, shown)
            self._warned_at = -_DAY_S
            log.warning("the certificate was replaced: serial %s, valid until %s", shown.serial, _date(shown.not_after))

    def _refuse(self, fault: str) -> None:
        if fault != self._told:
            self._told = fault
            log.error("the new certificate is not taken, the former stays in force: %s", fault)

    def _warn(self) -> None:
        now, left_s = self._now(), self.shown.not_after - self._now()
        if left_s < WARN_DAYS * _DAY_S and now - self._warned_at >= _DAY_S:
            self._warned_at = now
            how = f"expires on {_date(self.shown.not_after)}" if left_s > 0 else "HAS EXPIRED"
            log.error("the certificate %s %s: `tritonmq cert renew` makes another", self._files.certificate, how)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
