"""By which kind of port a client came: it is told of that kind alone, since it cannot use another."""

from __future__ import annotations

from typing import NamedTuple


class ClientPort(NamedTuple):
    """`tls`: over TLS. `token`: by a token, without a certificate. `grpc`: by gRPC, which has ports of its own."""

    tls: bool = False
    token: bool = False
    grpc: bool = False
