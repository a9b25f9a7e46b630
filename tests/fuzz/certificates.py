"""Files in PEM, altered: certificates, keys and authorities, as a user may have them. OpenSSL reads them."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Final

from mq_protocol.access.pem import Files, Pem, examine, read
from mq_protocol.errors import InvalidSetting
from tests.fuzz.altering import altered
from tests.fuzz.telling import check_told
from tests.securing import EXPIRED, Certs

_ROOM: Final = tempfile.TemporaryDirectory()
_SEPARATOR: Final = b"\x00"


def _whole() -> list[Pem]:
    certs = Certs(Path(_ROOM.name) / "certs", 1)
    files = [
        Files(certs.path / "ca.crt", certs.path / "broker.1" / "broker.crt", certs.path / "broker.1" / "broker.key"),
        certs.user("etl").files(),
        certs.security_of(certs.authority.client("etl", span=EXPIRED), "expired").files(),
    ]
    return [read(each) for each in files]


_WHOLE: Final = _whole()


def generate(chance: random.Random) -> bytes:
    parts = [getattr(chance.choice(_WHOLE), name) for name in ("ca", "certificate", "key")]
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        at = chance.randrange(3)
        match chance.randrange(4):
            case 0:
                parts[at] = chance.choice(parts)
            case 1:
                parts[at] += chance.choice(parts)
            case _:
                parts[at] = altered(parts[at], chance, 3).replace(_SEPARATOR, b"")
    return _SEPARATOR.join(parts)


def check(data: bytes) -> bool:
    parts = data.split(_SEPARATOR)
    if len(parts) != 3:
        return False
    files = Files(*(Path(_ROOM.name) / name for name in ("ca", "certificate", "key")))
    for path, part in zip(files.all, parts, strict=True):
        path.write_bytes(part)
    try:
        shown = examine(read(files), server=False)
    except InvalidSetting as error:
        check_told(error)
        return False
    assert shown.not_before < shown.not_after
    assert int(shown.serial, 16) > 0
    return True
