"""Which versions of TLS gRPC's core takes part in. It has no setting for it in Python: it speaks 1.2 as well, so a
handshake by it ends well and each call is refused. But 1.2 needs a suite of ciphers that both ends have."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "GRPC_SSL_CIPHER_SUITES"
"""Those of TLS 1.2 alone: the suites of 1.3 are fixed."""

NOT_TO_BE_HAD: Final = "PSK-AES128-CBC-SHA"
"""It needs a key that both ends know before. There is none."""


def refuse_older_tls() -> None:
    """Unless the environment names suites. To be called before anything imports gRPC."""
    os.environ.setdefault(VARIABLE, NOT_TO_BE_HAD)
