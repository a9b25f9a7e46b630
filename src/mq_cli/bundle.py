"""What a bug report needs, in one file: what the doctor said, versions, settings, what brokers say of themselves, the
ends of logs. No records, and no secrets: what looks like one is taken out of every file."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

LOG_BYTES_MAX: Final = 1 << 20
"""Of the end of each log."""

LEFT_OUT: Final = "[left out: a secret]"
_PACKAGES: Final = ("tritonmq", "grpcio", "protobuf", "pyarrow", "numpy", "pyspark", "kazoo", "uvicorn", "cryptography")
_KEY_BEGIN: Final = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"
_KEY_END: Final = r"-----END [A-Z0-9 ]*PRIVATE KEY-----"
_SECRETS: Final = (
    re.compile(rf"{_KEY_BEGIN}.*?(?:{_KEY_END}|\Z)", re.DOTALL),
    re.compile(rf"\A(?:(?!{_KEY_BEGIN}).)*?{_KEY_END}", re.DOTALL),  # one that began before what is read of a log
    re.compile(r"tmq_[0-9A-Za-z]+_[0-9A-Za-z_-]{16,}"),
    re.compile(r"(?i)(?:(?<=bearer )|(?<=basic ))[0-9a-z._~+/=-]{8,}"),
    re.compile(r"\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]*)*"),  # a JWT begins as {" does in base64
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),  # who asks, in an address: user:password, or a token alone
    re.compile(r"(?i)\bdigest[ :,]+'?[^\s:]+:[^\s']+"),  # a credential for ZooKeeper
    re.compile(r"(?<!sha256):[0-9a-f]{64}\b"),  # the same, as `cert` makes it: USER:PASSWORD
)
_NAMED: Final = re.compile(
    r"""(?ix) ( (?: password | passwd | passphrase | pwd | secret | token | credentials? | cookie | authorization
                | (?: api | access | private | account ) [_.-]? key | zookeeper [._-] auth )
              (?: \\* ["'] )? \s* (?: [=:] | -> | => ) \s* )
        ( (?P<quote> \\* ["'] ) [^\r\n]*? (?: (?P=quote) | (?=[\r\n]) | \Z ) | [^\r\n"']+ )""",
)
"""What is named as one, and its value: in quotes, or to the end of the line, since a password may have spaces."""


def redacted(text: str) -> str:
    """The text without what looks like a token, a private key, or the value of a password or secret."""
    for pattern in _SECRETS:
        text = pattern.sub(LEFT_OUT, text)
    return _NAMED.sub(lambda found: f"{found[1]}{found['quote'] or ''}{LEFT_OUT}{found['quote'] or ''}", text)


def write_bundle(
    path: Path, lines: Sequence[Mapping[str, Any]], seen: Mapping[str, Any], settings: Any, logs: Sequence[Path]
) -> None:
    """`lines`: the doctor's. `seen`: what brokers said, by the name of the file it goes to. Raises
    `click.UsageError` for a file that is there, or cannot be written, and for a log that cannot be read."""
    files: dict[str, str] = {
        "doctor.json": _json(list(lines)),
        "versions.json": _json(_versions()),
        "settings.json": _json(settings),
        **{f"{name}.json": _json(value) for name, value in seen.items()},
    }
    for number, log in enumerate(logs, 1):
        files[f"log-{number}-{log.name}"] = _end_of(log)
    try:
        with path.open("xb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in files.items():
                bundle.writestr(name, redacted(text))
    except FileExistsError:
        raise click.UsageError(f"{path} is there already: give --bundle another name") from None
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written ({error}): give --bundle another name") from error


def _versions() -> dict[str, str]:
    found = {"python": sys.version, "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _json(value: Any) -> str:
    def plain(other: object) -> object:
        if dataclasses.is_dataclass(other) and not isinstance(other, type):
            return {field.name: getattr(other, field.name) for field in dataclasses.fields(other)}
        return dict(other) if isinstance(other, Mapping) else str(other)

    return json.dumps(value, indent=1, default=plain, ensure_ascii=False) + "\n"


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES_MAX))
            return file.read(LOG_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise click.UsageError(f"{log} cannot be read ({error}): leave it out of --log") from error
