"""Certificates for tests: a cluster's authority, and certificates that are wrong in one way each."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from mq_client import Security
from mq_dev.certificates import Authority, Pair, Span, client_file, write_broker, write_client
from mq_protocol.access.pem import CA_FILE, authorities_context, context, read

HOST = "127.0.0.1"


def span(start_days: float, end_days: float) -> Span:
    now = datetime.datetime.now(datetime.UTC)
    return Span(now + datetime.timedelta(days=start_days), now + datetime.timedelta(days=end_days))


EXPIRED = span(-2, -1)
NOT_YET = span(1, 2)


class Certs:
    """Owns a directory with an authority, certificates of brokers for 127.0.0.1, and those of users."""

    def __init__(self, directory: Path, *brokers: int, hosts: tuple[str, ...] = (HOST,)) -> None:
        self.path = directory
        self.key_path = directory.with_name(f"{directory.name}.ca.key")
        self.authority = Authority.create(directory, self.key_path)
        for broker in brokers:
            write_broker(self.authority, directory, broker, hosts)

    def user(self, name: str = "etl") -> Security:
        if not (self.path / f"{client_file(name)}.crt").exists():
            write_client(self.authority, self.path, name)
        return Security(self.path, name)

    def security_of(self, pair: Pair, name: str, trusting: Path | None = None) -> Security:
        """Speaks with that pair, and believes this authority, or the one of `trusting`."""
        directory = self.path.with_name(f"{self.path.name}.{name}")
        certificate, key = pair.write(directory, name)
        return Security(ca=(trusting or self.path) / CA_FILE, certificate=certificate, key=key)

    def tls(self, security: Security | None = None) -> ssl.SSLContext:
        """Of a client that shows that certificate, or none."""
        return authorities_context(self.ca) if security is None else context(read(security.files()), server=False)

    @property
    def ca(self) -> bytes:
        return (self.path / CA_FILE).read_bytes()
