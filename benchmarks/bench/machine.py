"""What it ran on: a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import ssl
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

PACKAGES: Final = ("pyarrow", "grpcio", "protobuf", "pyspark", "kazoo")


def machine(directory: Path) -> dict[str, str]:
    """Facts in the order to show them. `directory`: where the brokers keep their data."""
    facts = {
        "cores": f"{os.cpu_count()}, {_cpu_model()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB",
        "load before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory),
        "Python": platform.python_version(),
        "OpenSSL of Python": ssl.OPENSSL_VERSION,
        "Java": _java(),
        **{package: metadata.version(package) for package in PACKAGES},
        "ZooKeeper": _zookeeper(),
    }
    return {name: value for name, value in facts.items() if value}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(directory: Path) -> str:
    """Of the longest mount point above the directory."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    place = directory.resolve()
    above = [(mount[1], mount[2]) for mount in mounts if place.is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else ""


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stderr.splitlines()[0] if said.stderr else ""


def _zookeeper() -> str:
    """The version that pyspark carries, which is the one that is started."""
    files = metadata.files("pyspark") or []
    names = [file.name for file in files if file.name.startswith("zookeeper-") and "jute" not in file.name]
    return names[0].removeprefix("zookeeper-").removesuffix(".jar") if names else ""
