"""The kinds of ports that serve clients: each client is told of its own kind alone, since it cannot use another."""

from __future__ import annotations

from enum import StrEnum


class ClientPort(StrEnum):
    PLAIN = "plain"
    TLS = "tls"
    """Whoever connects shows a certificate."""
    TOKEN = "token"  # noqa: S105 - no secret
    """The broker alone shows a certificate, and each call carries a token."""
