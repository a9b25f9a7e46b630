"""With which certificate a client speaks, and which authorities it believes.

    Producer(brokers, security=Security(certs="certs", user="etl"))

Without `security` the environment counts: TRITONMQ_CERTS and TRITONMQ_USER. Without those a client speaks plain text,
which brokers take on loopback addresses. What is kept and sent on, to Spark's workers too, are paths: a key is read
where it is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mq_client.errors import InvalidSetting
from mq_protocol.names import did_you_mean
from mq_protocol.pem import CA_FILE, CLIENT_NAME, Files

CERTS_VARIABLE: Final = "TRITONMQ_CERTS"
USER_VARIABLE: Final = "TRITONMQ_USER"


@dataclass(frozen=True, slots=True)
class Security:
    """`certs`: a directory with `ca.crt` and `client.<user>.crt` and `.key`, as `tritonmq cert create-client` makes
    them. Without `user` it is `client.crt`, or the only client there is. Instead of `certs` each file can be named:
    `ca`, `certificate` and `key`, in PEM. Files are read again when they are replaced.

    Raises `InvalidSetting` if it says too little or too much. Whether the files are there shows when they are used.
    """

    certs: str | os.PathLike[str] | None = None
    user: str | None = None
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        named = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        for name, value in {"certs": self.certs, **named}.items():
            if value is not None:
                if not os.fspath(value):
                    raise InvalidSetting(f"{name} is empty: give a path, or leave it out")
                object.__setattr__(self, name, os.fspath(value))  # so that equal paths are equal, however written
        missing = [name for name, value in named.items() if value is None]
        if self.certs is not None:
            if len(missing) < len(named):
                raise InvalidSetting("certs names a directory with all files: leave out ca, certificate and key")
        elif missing:
            raise InvalidSetting(f"{' and '.join(missing)} of a secured connection is missing: name it, or give certs=")
        elif self.user is not None:
            raise InvalidSetting("user chooses among the certificates in certs: leave it out, or give certs=")

    def files(self) -> Files:
        """Where they are. Raises `InvalidSetting` if the directory does not say which are meant."""
        if self.certs is None:
            assert self.ca is not None
            assert self.certificate is not None
            assert self.key is not None
            return Files(Path(self.ca), Path(self.certificate), Path(self.key))
        directory = Path(self.certs)
        stem = f"{CLIENT_NAME}.{self.user}" if self.user is not None else _only_client(directory)
        certificate = directory / f"{stem}.crt"
        if self.user is not None and not certificate.exists():
            near = (
                did_you_mean(self.user, _clients(directory)) or f": `tritonmq cert create-client {self.user}` makes it"
            )
            raise InvalidSetting(f"{directory} has no certificate of user {self.user!r}{near}")
        return Files(directory / CA_FILE, certificate, directory / f"{stem}.key")


def given(security: Security | None) -> Security | None:
    """That, or what the environment says; None if neither says anything."""
    if security is not None:
        if not isinstance(security, Security):
            raise InvalidSetting(f"security is a {type(security).__name__}: give Security(certs=...)")
        return security
    certs = os.environ.get(CERTS_VARIABLE)
    return Security(certs, os.environ.get(USER_VARIABLE) or None) if certs else None


def _only_client(directory: Path) -> str:
    if (directory / f"{CLIENT_NAME}.crt").exists():
        return CLIENT_NAME
    users = _clients(directory)
    if len(users) == 1:
        return f"{CLIENT_NAME}.{users[0]}"
    if not users:
        raise InvalidSetting(f"{directory} has no client's certificate: `tritonmq cert create-client NAME` makes one")
    raise InvalidSetting(
        f"{directory} has the certificates of several users ({', '.join(users[:5])}): choose one by --user, "
        f"{USER_VARIABLE} or Security(user=)"
    )


def _clients(directory: Path) -> list[str]:
    return sorted(
        path.name.removeprefix(f"{CLIENT_NAME}.").removesuffix(".crt")
        for path in directory.glob(f"{CLIENT_NAME}.*.crt")
    )
