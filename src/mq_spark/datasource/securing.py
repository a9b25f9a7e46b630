"""Where a machine of Spark's has the files that a secured connection needs.

A relative path is looked for among the files that Spark has brought (`spark.files`, `spark-submit --files`), and below
the working directory (`--archives certs.zip#certs`). What the driver's environment says counts where no option is
given, and is sent to the workers as a path. Their own environment does not count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkFiles

from mq_client.cluster.client import given_forward
from mq_client.security import CERTS_VARIABLE, TOKEN_FILE_VARIABLE, USER_VARIABLE, Security
from mq_protocol.access.pem import CA_FILE
from mq_protocol.errors import InvalidSetting
from mq_spark.planning.option_table import FORWARD
from mq_spark.planning.security_options import CERTS, SECURITY, TOKEN_LOCATION, USER, SecurityOptions

_OF_STREAMS: Final = "streaming_job"


def with_environment(options: Mapping[str, str]) -> dict[str, str]:
    """The options, and what the driver's environment says if none of them is about certificates or tokens; likewise
    whether brokers pass on. Raises `InvalidSetting`."""
    written = {name.lower() for name in options}
    if FORWARD not in written and given_forward(None):
        options = {**options, FORWARD: "true"}
    certs = os.environ.get(CERTS_VARIABLE)
    if not certs or any(name.lower() in written for name in SECURITY):
        return dict(options)
    token_file = os.environ.get(TOKEN_FILE_VARIABLE)
    if token_file:
        return {**options, CERTS: str(Path(certs).absolute()), TOKEN_LOCATION: str(Path(token_file).absolute())}
    user = os.environ.get(USER_VARIABLE)
    return {**options, CERTS: str(Path(certs).absolute()), **({USER: user} if user else {})}


def on_this_machine(options: SecurityOptions | None) -> Security | None:
    """The files, as paths of this machine. Raises `InvalidSetting` naming the places where they are not."""
    if options is None:
        return None
    if options.token_file or options.token is not None:
        ca = _directory(options.certs) / CA_FILE if options.certs else _file(options.ca)
        if options.token is not None:
            return Security(ca=ca, token=options.token)
        return Security(ca=ca, token_file=_file(options.token_file))
    if options.certs:
        return Security(_directory(options.certs), options.user or None)
    return Security(ca=_file(options.ca), certificate=_file(options.certificate), key=_file(options.key))


def _directory(given: str) -> Path:
    """The one that holds `ca.crt`. Files that Spark brings one by one lie side by side in its own."""
    found = [path for path in (*_places(given), *_brought()) if (path / CA_FILE).exists()]
    if not found:
        raise _nowhere(CERTS, given, [*_places(given), *_brought()])
    return found[0]


def _file(given: str) -> Path:
    places = [*_places(given), *(root / Path(given).name for root in _brought())]
    found = [path for path in places if path.exists()]
    if not found:
        raise _nowhere("the file", given, places)
    return found[0]


def _places(given: str) -> list[Path]:
    path = Path(given)
    return [path] if path.is_absolute() else [*(root / path for root in _brought()), Path.cwd() / path]


def _brought() -> list[Path]:
    """Where Spark puts what it brings. Only a worker can say so without asking Java. To the driver's processes for
    streams it names a folder of their own in there, which is not made: what it brought is in the one above."""
    root = SparkFiles._root_directory  # noqa: SLF001 - getRootDirectory would start Java where there is none
    if not root:
        return []
    return [Path(root), Path(root).parent] if Path(root).name == _OF_STREAMS else [Path(root)]


def _nowhere(what: str, given: str, places: list[Path]) -> InvalidSetting:
    looked = ", ".join(dict.fromkeys(map(str, places)))
    return InvalidSetting(
        f"{what} {given!r} is not on this machine (looked at {looked}): give an absolute path that every machine has, "
        "or bring the files with spark-submit --files or --archives"
    )
