"""`tritonmq doctor`: looks at this machine and at the cluster, and says what is wrong and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from mq_cli import diagnosis
from mq_cli.connection import Connection, connection_options, milliseconds
from mq_cli.diagnosis import Line
from mq_cli.output import checking_what_was_typed, json_option, say, write, write_json
from mq_protocol.errors import TritonMQError

if TYPE_CHECKING:
    from mq_client import Admin

T = TypeVar("T")

_ASK_S: Final = 20.0
_SYNCS: Final = 50
_SYNCS_S: Final = 5.0


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Measure this data directory too. A file without a name is written there, and gone afterwards.",
)
@click.option("--here", is_flag=True, help="Look at this machine only, and ask no broker.")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.zip",
    help="Write all that a bug report needs into this file. It holds no records and no secrets.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The end of this log of a broker is to be in the bundle. May be given several times.",
)
@json_option
@connection_options
def doctor(
    data: Path | None,
    here: bool,
    bundle: Path | None,
    logs: tuple[Path, ...],
    as_json: bool,
    connection: Connection,
) -> int:
    """Look at this machine and at the cluster. What is wrong is said with what to do, and the exit status is 1 then."""
    if logs and bundle is None:
        raise click.UsageError("--log is for what --bundle writes: give --bundle FILE.zip too")
    lines, seen = list(_of_this_machine(data)), dict[str, Any]()
    if not here:
        lines += _of_the_cluster(connection, _origin(), seen)
    told = [{"kind": line.kind, "what": line.what, "cure": line.cure} for line in lines]
    if bundle is not None:
        from mq_cli.bundle import write_bundle
        from mq_cli.config import rows_of

        write_bundle(bundle, told, seen, rows_of(), logs)
        say(f"{bundle} names topics, groups and addresses, and holds no records: look at it before you pass it on")
    if as_json:
        write_json(told)
    else:
        for line in lines:
            write(f"{line.kind:5}  {line.what}" + (f"\n       -> {line.cure}" if line.cure else ""))
    wrong = sum(line.kind == "wrong" for line in lines)
    say("nothing is wrong" if not wrong else f"{wrong} of {len(lines)} are wrong")
    return 1 if wrong else 0


def _of_this_machine(data: Path | None) -> Iterator[Line]:
    here = sys.version_info[:2]
    yield diagnosis.of_python(here, importlib.metadata.version("tritonmq"))
    java = _java()
    yield diagnosis.of_java(java, _java_version(java) if java is not None else None)
    named = os.environ.get("PYSPARK_PYTHON", "")
    yield diagnosis.of_pyspark(_pyspark(), here, _python_version(named) if named else None, named)
    yield diagnosis.of_forks(_as_it_was.get("GRPC_ENABLE_FORK_SUPPORT"))
    yield diagnosis.of_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if data is not None:
        try:
            usage = shutil.disk_usage(data)
            yield from diagnosis.of_disk(str(data), _fsync_s(data), usage.free, usage.total)
        except OSError as error:
            cure = "give --data a directory that the broker's user may write to"
            yield Line("wrong", f"{data} cannot be written ({error})", cure)


_as_it_was: Final = dict(os.environ)
"""Before mq_client is imported, which sets a variable for gRPC."""


def _origin() -> str:
    """Who named the addresses of brokers; empty if nobody did."""
    match click.get_current_context().get_parameter_source("bootstrap"):
        case ParameterSource.COMMANDLINE:
            return "--bootstrap"
        case ParameterSource.ENVIRONMENT:
            return "TRITONMQ_BOOTSTRAP"
        case ParameterSource.DEFAULT_MAP:
            return "client.bootstrap in the settings file"
        case _:
            return ""


def _of_the_cluster(connection: Connection, origin: str, seen: dict[str, Any]) -> list[Line]:
    """`seen` gets what brokers say of themselves."""
    from mq_client import Admin
    from mq_client.cluster.forwarding import given_way
    from mq_client.cluster.tunnels import fault_of_all

    with checking_what_was_typed():
        addresses, (via, forward) = connection.addresses, given_way(connection.via or "", bool(connection.forward))
    if via and (blamed := fault_of_all(addresses, via)):
        return [Line("wrong", f"no broker was asked: {blamed}", "then run this again")]
    reasons = {address: _why_unreachable(address, via) for address in addresses}
    cluster_ids, ask_ms = dict[str, str](), milliseconds(min(connection.timeout_s, _ASK_S))
    failed = ""
    for address, reason in reasons.items():
        if reason is None:
            try:
                with Admin(**replace(connection, bootstrap=address).for_client(), timeout_ms=ask_ms) as admin:
                    cluster_ids[address] = admin.observe("broker").cluster_id
            except TritonMQError as error:
                failed = str(error)
    lines = list(diagnosis.of_addresses(reasons, cluster_ids, origin))
    if not cluster_ids:
        return [*lines, *([Line("note", f"it was said: {failed}")] if failed else [])]
    answering = replace(connection, bootstrap=next(iter(cluster_ids)))
    try:
        with Admin(**answering.for_client(), timeout_ms=milliseconds(connection.timeout_s)) as admin:
            lines += _of_all_brokers(admin, seen, via, forward=forward)
    except TritonMQError as error:
        lines.append(Line("wrong", f"the cluster could not be asked: {error}", "see `tritonmq cluster status`"))
    return lines


def _why_unreachable(address: str, via: str, *, forward: bool = False) -> str | None:
    """Of a broker, from here; None if somebody listens there, or may. `forward`: others pass on what is for it."""
    from mq_client.cluster.listening import why_unreachable
    from mq_client.cluster.tunnels import fault

    if forward:
        return "it has not answered the broker that passes on"
    if via:
        found = fault(address, via)
        return None if found is None else found.text
    return why_unreachable(address)


def _of_all_brokers(admin: Admin, seen: dict[str, Any], via: str, *, forward: bool) -> list[Line]:
    observed = admin.observe("partitions")
    now_us = time.time_ns() // 1000
    reasons = {address: _why_unreachable(address, via, forward=forward) for address in observed.silent}
    topics = admin.describe_topics(observed, internal=True)
    seen |= {"observation": observed, "topics": topics}
    denied: list[Line] = []
    moves = _if_allowed(admin.moves, "partitions on the move", denied)
    transactions = _if_allowed(admin.transactions, "transactions", denied)
    return [*diagnosis.of_cluster(observed, reasons, topics, moves, transactions, now_us), *denied]


def _if_allowed(ask: Callable[[], list[T]], what: str, denied: list[Line]) -> list[T]:
    """What an administrator may ask. Whoever may not is told so, beside all else."""
    from mq_client import PermissionDenied

    try:
        return ask()
    except PermissionDenied as error:
        denied.append(Line("note", f"{what} were not looked at: {error}"))
        return []


# ------------------------------------------------------------------ what is here


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home) / "bin" / "java").exists():
        return str(java)
    return shutil.which("java")


def _java_version(java: str) -> int | None:
    found = re.search(r'version "(?:1\.)?([0-9]+)', _said_by(java, "-version"))
    return int(found[1]) if found else None


def _python_version(python: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"Python ([0-9]+)\.([0-9]+).*\s*", _said_by(python, "--version"))
    return (int(found[1]), int(found[2])) if found else None


def _said_by(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _pyspark() -> str | None:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _fsync_s(path: Path) -> float:
    """The median of some durable writes of 4 KiB. Raises `OSError`."""
    took: list[float] = []
    deadline = time.monotonic() + _SYNCS_S
    with tempfile.TemporaryFile(dir=path) as file:
        while len(took) < _SYNCS and (not took or time.monotonic() < deadline):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 4096 * len(took))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)
