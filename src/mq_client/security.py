"""With which certificate or token a client speaks, and which authorities it believes.

    Producer(brokers, security=Security(certs="certs", user="etl"))

Without `security` the environment counts: TRITONMQ_CERTS, TRITONMQ_USER and TRITONMQ_TOKEN_FILE. Without those a client
speaks plain text, which brokers take on loopback addresses. What is kept and sent on, to Spark's workers too, are
paths: a key or a token is read where it is used. A token that is given itself is shown nowhere (`Secret`).
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mq_client.errors import InvalidSetting
from mq_protocol.access.pem import CA_FILE, CLIENT_NAME, Files
from mq_protocol.access.secrets import TOKEN_BYTES_MAX, check_token, is_no_path
from mq_protocol.access.secrets import Secret as Secret
from mq_protocol.names import did_you_mean, user_named

CERTS_VARIABLE: Final = "TRITONMQ_CERTS"
USER_VARIABLE: Final = "TRITONMQ_USER"
TOKEN_FILE_VARIABLE: Final = "TRITONMQ_TOKEN_FILE"  # noqa: S105 - no secret

_WHITE_SPACE_MAX: Final = 64
"""Around a token in a file."""


@dataclass(frozen=True, slots=True)
class Security:
    """`certs`: a directory with `ca.crt` and `client.<user>.crt` and `.key`, as `tritonmq cert create-client` makes
    them. `user` is `etl`, or `User:etl` as rules have it. Without `user` it is `client.crt`, or the only client there
    is. Instead of `certs` each file can be named: `ca`, `certificate` and `key`, in PEM. Files are read again when they
    are replaced.

    `token` or `token_file` instead of a certificate: of `certs` only `ca.crt` is used then, or `ca` names it. A token
    is sent over TLS alone.

    Raises `InvalidSetting` if it says too little or too much. Whether the files are there shows when they are used.
    """

    certs: str | os.PathLike[str] | None = None
    user: str | None = None
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    token: str | Secret | None = None
    token_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        self._check_token()
        if self.user is not None:
            object.__setattr__(self, "user", user_named(self.user))
        named = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        for name, value in {"certs": self.certs, "token_file": self.token_file, **named}.items():
            if value is not None:
                if not os.fspath(value):
                    raise InvalidSetting(f"{name} is empty: give a path, or leave it out")
                if is_no_path(os.fsdecode(value)):
                    raise InvalidSetting(f"{name} is no path: write the text into a file, and give its path")
                object.__setattr__(self, name, os.fspath(value))  # so that equal paths are equal, however written
        missing = [name for name, value in named.items() if value is None]
        if self.certs is not None:
            if len(missing) < len(named):
                raise InvalidSetting("certs names a directory with all files: leave out ca, certificate and key")
        elif self.has_token:
            if self.ca is None:
                raise InvalidSetting("with a token, ca= names the authorities that are believed, or certs= has ca.crt")
        elif missing:
            raise InvalidSetting(f"{' and '.join(missing)} of a secured connection is missing: name it, or give certs=")
        elif self.user is not None:
            raise InvalidSetting("user chooses among the certificates in certs: leave it out, or give certs=")

    def _check_token(self) -> None:
        """Makes a secret of a token. Raises `InvalidSetting`, which does not show it."""
        if self.token is not None and not isinstance(self.token, Secret):
            if not isinstance(self.token, str):
                raise InvalidSetting("token is no text: give the token itself, or token_file")
            object.__setattr__(self, "token", Secret(self.token))
        if self.token is not None and self.token_file is not None:
            raise InvalidSetting("token and token_file are given: leave one out")
        if isinstance(self.token, Secret):
            object.__setattr__(self, "token", Secret(check_token(self.token.reveal())))
        if self.has_token:
            for name in ("user", "certificate", "key"):
                if getattr(self, name) is not None:
                    raise InvalidSetting(f"{name} belongs to a certificate, and a token is given: leave one out")

    @property
    def has_token(self) -> bool:
        """Whether it speaks with a token, and shows no certificate."""
        return self.token is not None or self.token_file is not None

    def authorities(self) -> Path:
        """The file of those that are believed."""
        return Path(self.ca) if self.ca is not None else Path(os.fspath(self.certs or "")) / CA_FILE

    def read_token(self) -> Secret:
        """As it is now. Raises `InvalidSetting`, which does not show it."""
        if isinstance(self.token, Secret):
            return self.token
        path = Path(os.fspath(self.token_file or ""))
        try:
            fd = os.open(
                path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            )  # a pipe without a writer would wait for ever
            with os.fdopen(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise InvalidSetting("it is no ordinary file, and is read again later: write the token into a file")
                data = file.read(TOKEN_BYTES_MAX + _WHITE_SPACE_MAX)
            return Secret(check_token(data.decode("ascii")))
        except OSError as error:
            raise InvalidSetting(f"the token file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise InvalidSetting(f"the token file {path} holds no text: give a file with a token alone") from None
        except InvalidSetting as error:
            raise InvalidSetting(f"token file {path}: {error}") from None

    def files(self) -> Files:
        """Where they are, of a client with a certificate. Raises `InvalidSetting` if the directory does not say which
        are meant."""
        if self.certs is None:
            assert self.ca is not None
            assert self.certificate is not None
            assert self.key is not None
            return Files(Path(self.ca), Path(self.certificate), Path(self.key))
        directory = Path(self.certs)
        if not directory.is_dir():
            raise InvalidSetting(f"there is no directory {directory}: correct --certs, {CERTS_VARIABLE} or certs=")
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
    certs, token_file = os.environ.get(CERTS_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
    if token_file:
        if not certs:
            raise InvalidSetting(
                f"a file with a token is given (--token-file or {TOKEN_FILE_VARIABLE}), and no certificates: a token "
                f"is sent over TLS alone, so give a directory with the cluster's ca.crt (--certs or {CERTS_VARIABLE})"
            )
        return Security(certs, token_file=token_file)
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
        f"{USER_VARIABLE}, Security(user=) or Spark's option user"
    )


def _clients(directory: Path) -> list[str]:
    return sorted(
        path.name.removeprefix(f"{CLIENT_NAME}.").removesuffix(".crt")
        for path in directory.glob(f"{CLIENT_NAME}.*.crt")
    )
