"""The credential by which brokers are known to ZooKeeper: a user's name and a password, in a file that is theirs alone.

It is sent as ZooKeeper's scheme `digest`. ZooKeeper keeps no list of users: whoever names a user and a password has
that identity, and a node's access list says which identities may do what. So a wrong password is not refused when a
session begins. It is refused at the first node.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kazoo.security import ACL, make_digest_acl

from mq_protocol.access.pem import open_to_others
from mq_protocol.errors import InvalidSetting

FILE_BYTES_MAX: Final = 1_024
USER: Final = "tritonmq"
"""The user's name in a credential that is made here."""

_PASSWORD_BYTES: Final = 32
_LINE: Final = re.compile(r"(?P<user>[!-9;-~]{1,255}):(?P<password>[!-~]{1,512})")
_WORLD: Final = "world"


@dataclass(frozen=True, slots=True)
class Credential:
    """`path`: of its file, for people. A password is in no `repr`."""

    user: str
    password: str = field(repr=False)
    path: str = ""

    @classmethod
    def read(cls, path: Path) -> Credential:
        """Of a file with one line, `USER:PASSWORD`, in printable ASCII. Raises `InvalidSetting`, which says what to do
        and nothing of the password."""
        if not path.exists() and _LINE.fullmatch(str(path)):  # it may be the credential itself, which no log is to show
            raise InvalidSetting(
                "--zookeeper-auth names no file that is there: write USER:PASSWORD into a file, and give its path"
            )
        try:
            if fault := open_to_others(path):
                raise InvalidSetting(fault)
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidSetting(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
        found = _LINE.fullmatch(data.decode("ascii", "replace").rstrip("\r\n"))
        if found is None:
            raise InvalidSetting(
                f"{path} is no credential for ZooKeeper: write one line, USER:PASSWORD, without spaces and in ASCII"
            )
        return cls(found["user"], found["password"], str(path))

    @classmethod
    def make(cls, path: Path) -> Credential:
        """The one in that file; made by chance if there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        if not path.exists():
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(f"{USER}:{secrets.token_hex(_PASSWORD_BYTES)}\n")
            beside.replace(path)
        return cls.read(path)

    @property
    def line(self) -> bytes:
        """What a file of it holds."""
        return f"{self.user}:{self.password}\n".encode("ascii")

    @property
    def auth(self) -> tuple[str, str]:
        """As kazoo takes it."""
        return "digest", f"{self.user}:{self.password}"

    @property
    def acl(self) -> list[ACL]:
        """The access list of a node that is closed: everything for this identity, nothing for anybody else. The
        identity is named, and not "who makes it": over TLS a session has the one of its certificate as well."""
        return [make_digest_acl(self.user, self.password, all=True)]

    def closes(self, acls: list[ACL]) -> bool:
        """Whether a node with that access list is this identity's, and not everybody's."""
        return self.acl[0] in acls and not open_to_all(acls)


def open_to_all(acls: list[ACL]) -> bool:
    """Whether everybody who reaches ZooKeeper may do something with a node of that access list."""
    return any(acl.id.scheme == _WORLD and acl.perms for acl in acls)
