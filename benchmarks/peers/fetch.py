"""Gets the other brokers' servers as Debian packages, and their Python clients by pip.

Packages are downloaded by `apt-get download` and unpacked by `dpkg-deb` into the user's cache, which takes no rights
and changes nothing else on the machine; once, what is there stays. Which mirror is asked is apt's own affair. A server
that cannot be had is left out, and KAFKA.md says so.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tritonmq-benchmarks"
FETCH_TIMEOUT_S: Final = 600.0
_MARK: Final = "fetched"
_ERLANG: Final = (
    *(
        "asn1",
        "base",
        "crypto",
        "eldap",
        "ftp",
        "inets",
        "mnesia",
        "os-mon",
        "parsetools",
        "public-key",
        "runtime-tools",
        "snmp",
    ),
    *("ssl", "syntax-tools", "tftp", "tools", "xmerl"),
)
PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "NATS JetStream": ("nats-server",),
    "RabbitMQ": ("rabbitmq-server", *(f"erlang-{name}" for name in _ERLANG)),
    "Redis": ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"),
}
"""What each server needs beyond a small Debian system."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where each server was unpacked, why one was not, and the Python that has the clients."""

    python: Path
    roots: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def versions(self) -> dict[str, str]:
        return {peer: (root / _MARK).read_text().splitlines()[-1] for peer, root in self.roots.items()}


def fetch(watch: Callable[[str], None] = lambda _what: None) -> Fetched:
    """Raises `click.ClickException` if the clients cannot be had."""
    fetched = Fetched(_python(watch))
    for peer, packages in PACKAGES.items():
        try:
            fetched.roots[peer] = _unpacked(peer, packages, watch)
        except (OSError, subprocess.SubprocessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) and error.stderr else str(error)
            fetched.missing[peer] = said.strip().splitlines()[-1] if said.strip() else repr(error)
            watch(f"{peer} cannot be had: {fetched.missing[peer]}")
    return fetched


def _unpacked(peer: str, packages: Sequence[str], watch: Callable[[str], None]) -> Path:
    root = CACHE / packages[0]
    wanted = " ".join(packages)
    mark = root / _MARK
    if mark.is_file() and mark.read_text().splitlines()[0] == wanted:
        return root
    watch(f"fetching {peer}")
    shutil.rmtree(root, ignore_errors=True)
    downloads = root / "packages"
    downloads.mkdir(parents=True)
    _run(["apt-get", "-q", "download", *packages], downloads)
    version = "?"
    for package in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(root)], downloads)
        if package.name.startswith(f"{packages[0]}_"):
            version = re.sub(r"^\d+%3a", "", package.name.split("_")[1])
    shutil.rmtree(downloads)
    for script in root.glob("usr/lib/erlang/bin/erl"):  # it knows only where it would have been installed
        script.write_text(script.read_text().replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={root}/usr/lib/erlang"))
    mark.write_text(f"{wanted}\n{version}")
    return root


def _python(watch: Callable[[str], None]) -> Path:
    source, folder = HERE / "requirements.txt", CACHE / "python"
    python, mark = folder / "bin" / "python", folder / _MARK
    wanted = hashlib.sha256(source.read_bytes()).hexdigest()
    if mark.is_file() and mark.read_text() == wanted:
        return python
    watch("fetching the other brokers' Python clients")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        _run([str(python), "-m", "pip", "install", "-q", "-r", str(source)], folder.parent)
    except subprocess.CalledProcessError as error:
        raise click.ClickException(
            f"the other brokers' Python clients cannot be had: {error.stderr[-2_000:]}"
        ) from error
    mark.write_text(wanted)
    return python


def _run(arguments: Sequence[str], directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        arguments, cwd=directory, env=environment, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=True
    )
