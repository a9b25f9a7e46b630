"""`tritonmq doctor`: looks at this machine and at the cluster, and says what is wrong and what to do about it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.core import ParameterSource

from mq_cli.commands import command, flag, option
from mq_cli.connection import CONNECTION, Connection, milliseconds
from mq_cli.output import JSON, bytes_text, counted, duration_text, say, write, write_json
from mq_cli.values import DIRECTORY_THERE, FILE, FILE_THERE, checking_what_was_typed
from mq_protocol.errors import TritonMQError
from mq_protocol.names import parse_duration

if TYPE_CHECKING:
    from mq_client import Admin, ClusterObservation, PartitionMove, TopicDescription, TransactionDescription

T = TypeVar("T")

_ASK_S: Final = 20.0
_SYNCS: Final = 50
_SYNCS_S: Final = 5.0

PYTHON_OLDEST: Final = (3, 11)
JAVA_OLDEST: Final = 17
PYSPARK_OLDEST: Final = (4, 2)
OPEN_FILES_LEAST: Final = 4_096
FSYNC_SLOW_S: Final = 0.02
ROOM_LEAST: Final = 0.1
CLOCK_S_MAX: Final = 1.0
STAGED_OLD_S: Final = 3_600.0
LOSES_SOON: Final = 0.8
"""A group that is this much of the retention behind will lose records."""

_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Line:
    """`cure`: what to do, of what is wrong."""

    kind: Literal["ok", "note", "wrong"]
    what: str
    cure: str = ""


def _wrong(what: str, cure: str) -> Line:
    return Line("wrong", what, cure)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


# ------------------------------------------------------------------ this machine


def of_python(version: tuple[int, int], release: str) -> Line:
    told = f"tritonmq {release}, Python {version[0]}.{version[1]}"
    if version < PYTHON_OLDEST:
        return _wrong(told, "install Python 3.11 or newer")
    return Line("ok", told)


def of_java(path: str | None, version: int | None) -> Line:
    """`path`: of the program, None if there is none. `version`: None if it could not be asked."""
    need = "PySpark, and brokers with --zookeeper embedded, need Java 17 or newer"
    if path is None:
        return Line("note", f"there is no Java in JAVA_HOME or on the PATH: {need}")
    if version is None or version < JAVA_OLDEST:
        told = "of no version that can be told" if version is None else f"Java {version}"
        return _wrong(f"{path} is {told}; {need}", "install Java 17, and let JAVA_HOME name it")
    return Line("ok", f"Java {version} ({path})")


def of_pyspark(version: str | None, here: tuple[int, int], workers: tuple[int, int] | None, named: str) -> Line:
    """`workers`: the Python that `PYSPARK_PYTHON` names, as `named`; None if it cannot be started."""
    if version is None:
        return Line("note", 'PySpark is not installed; for Spark: pip install ".[spark]" in a clone')
    first = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if first < PYSPARK_OLDEST:
        return _wrong(f"PySpark {version}", 'install PySpark 4.2 or newer: pip install ".[spark]" in a clone')
    if named and workers is None:
        return _wrong(f"PYSPARK_PYTHON={named} cannot be started", "name the Python in which tritonmq is installed")
    if workers is not None and workers != here:
        told = f"PYSPARK_PYTHON={named} is Python {workers[0]}.{workers[1]}, and this one is {here[0]}.{here[1]}"
        return _wrong(told, "give Spark's driver and its workers the same Python: set PYSPARK_PYTHON")
    return Line("ok", f"PySpark {version}")


def of_open_files(soft: int) -> Line:
    if soft < OPEN_FILES_LEAST:
        told = f"a process may have {soft:,} files open; a broker needs some for each partition and client"
        return _wrong(told, "ulimit -n 65536, or LimitNOFILE=65536 in the unit")
    return Line("ok", f"a process may have {soft:,} files open")


def of_disk(path: str, fsync_s: float, free: int, size: int) -> Iterator[Line]:
    """`fsync_s`: the median of what writing 4 KiB durably took."""
    told = f"writing 4 KiB durably in {path} takes {1000 * fsync_s:.1f} ms"
    if fsync_s > FSYNC_SLOW_S:
        yield _wrong(told, "use a faster disk for --data, or topics with durability=os")
    else:
        yield Line("ok", told)
    room = f"{bytes_text(free)} of {bytes_text(size)} are free in {path}"
    if free < ROOM_LEAST * size:
        yield _wrong(room, "make room, or set retention_ms or retention_bytes of the topics")
    else:
        yield Line("ok", room)


# ------------------------------------------------------------------ the cluster


def of_addresses(
    reasons: Mapping[str, str | None], cluster_ids: Mapping[str, str], origin: str = "--bootstrap"
) -> Iterator[Line]:
    """`origin`: who named the addresses; empty if nobody did, and they are the default. `reasons`: why nobody can be
    reached there; None if somebody listens. `cluster_ids`: of those that answered."""
    for address, reason in reasons.items():
        if reason is not None and not origin:
            cure = "give --bootstrap or TRITONMQ_BOOTSTRAP, start a cluster with `tritonmq dev`, or give --here"
            yield _wrong(f"no broker was named, and at the usual address {address} there is none: {reason}", cure)
        elif reason is not None:
            cure = f"start that broker, or take the address out of {origin}"
            yield _wrong(f"{address} of {origin}: {reason}", cure)
        elif address not in cluster_ids:
            cure = "see whether that is a broker's address for clients, and whether it needs --certs"
            whose = f" of {origin}" if origin else ""
            yield _wrong(f"{address}{whose}: what listens there does not answer as a broker", cure)
        else:
            yield Line("ok", f"{address} answers")
    if len(set(cluster_ids.values())) > 1:
        told = "; ".join(f"{address} is of {cluster}" for address, cluster in cluster_ids.items())
        yield _wrong(f"{origin} names brokers of several clusters: {told}", "name brokers of one cluster")


def of_cluster(
    observed: ClusterObservation,
    reasons: Mapping[str, str | None],
    topics: Sequence[TopicDescription],
    moves: Sequence[PartitionMove],
    transactions: Sequence[TransactionDescription],
    now_us: int,
) -> Iterator[Line]:
    """`reasons`: of the addresses that brokers advertise, why they cannot be reached from here."""
    yield from _of_brokers(observed, reasons, now_us)
    yield from _of_partitions(observed, topics)
    if moves:
        stuck = [f"{move.topic}-{move.partition}" for move in moves]
        yield Line("note", f"{counted(len(moves), 'partition')} on the move ({_some(stuck)}): `tritonmq cluster moves`")
    yield from _of_groups(observed, topics)
    yield from _of_staged(transactions, now_us)


def _of_brokers(observed: ClusterObservation, reasons: Mapping[str, str | None], now_us: int) -> Iterator[Line]:
    from mq_client.shown.looks import (
        kept_closed,  # not with this module: mq_client sets a variable that doctor looks at
    )

    for address in observed.silent:
        reason = reasons.get(address)
        if reason is None:
            cure = "see that broker's log, and whether it hangs (SIGUSR2 makes it write what it does)"
            yield _wrong(f"the broker at {address} does not answer", cure)
        else:
            told = f"a broker advertises {address}, which cannot be reached from here: {reason}"
            yield _wrong(told, "give that broker --advertise with an address that clients reach, or open the port")
    for told, cure in kept_closed(observed.brokers):
        yield _wrong(told, cure)
    for broker in observed.brokers:
        if broker.coordination == "suspended":
            cure = "see whether ZooKeeper runs, and whether that broker reaches it"
            yield _wrong(f"broker {broker.id} has no session with ZooKeeper", cure)
        if broker.state != "serving":
            yield Line("note", f"broker {broker.id} is {broker.state}")
        apart_s = abs(broker.now_us - now_us) / 1e6
        if apart_s > CLOCK_S_MAX:
            told = f"the clock of broker {broker.id} is {apart_s:.1f} s from the one here"
            yield _wrong(told, "let both machines keep the time by NTP")
    versions = {broker.version for broker in observed.brokers}
    if len(versions) > 1:
        yield Line("note", f"brokers run several versions: {', '.join(sorted(versions))}; end the upgrade")
    if observed.brokers:
        yield Line("ok", f"{counted(len(observed.brokers), 'broker')} of cluster {observed.cluster_id} answer")


def _of_partitions(observed: ClusterObservation, topics: Sequence[TopicDescription]) -> Iterator[Line]:
    from mq_client.shown.looks import kept_closed

    live = {broker.id for broker in observed.brokers}
    all_of = [(f"{topic.name}-{each.partition}", topic, each) for topic in topics for each in topic.partitions]
    leaderless = [name for name, _, each in all_of if each.leader == 0]
    if leaderless:
        cure = "start the brokers that hold them; if they are lost, see `tritonmq partition recover`"
        if any(kept_closed(observed.brokers)):  # which are there, and would be lost by a recovery
            cure = "their records may be in what brokers keep closed: mend that first, as said above, then look again"
        yield _wrong(f"{counted(len(leaderless), 'partition')} without a leader: {_some(leaderless)}", cure)
    behind = [name for name, _, each in all_of if each.leader and not set(each.replicas) <= set(each.isr)]
    if behind:
        absent = sorted({broker for _, _, each in all_of for broker in each.replicas} - live)
        who = f" (absent: {', '.join(map(str, absent))})" if absent else ""
        cure = "start the absent brokers, or `tritonmq cluster drain N`" if absent else "wait, then see the logs"
        yield _wrong(f"{counted(len(behind), 'partition')} not fully in sync{who}: {_some(behind)}", cure)
    if not leaderless and not behind:
        yield Line("ok", f"{counted(len(all_of), 'partition')}: each has a leader, and all replicas in sync")


def _of_groups(observed: ClusterObservation, topics: Sequence[TopicDescription]) -> Iterator[Line]:
    kept = {topic.name: _retention_ms(topic) for topic in topics}
    for group in observed.groups:
        retention_ms = kept.get(group.topic, 0)
        if retention_ms > 0 and group.lag and group.lag_us / 1000 > LOSES_SOON * retention_ms:
            told = (
                f"group {group.group} is {duration_text(group.lag_us // 1000)} behind in {group.topic}, which keeps "
                f"{duration_text(retention_ms)}: it will lose records"
            )
            yield _wrong(told, f"start its consumers, or `tritonmq topic alter {group.topic} --set retention_ms=…`")


def _retention_ms(topic: TopicDescription) -> int:
    """0 for ever."""
    try:
        return parse_duration(topic.settings.get("retention_ms", ""))
    except ValueError:
        return 0


def _of_staged(transactions: Sequence[TransactionDescription], now_us: int) -> Iterator[Line]:
    for each in transactions:
        if each.batches and each.since_us and now_us - each.since_us > STAGED_OLD_S * 1e6:
            age = duration_text((now_us - each.since_us) // 1000)
            told = f"query {each.query} staged what it has not decided on for {age} ({bytes_text(each.bytes)})"
            yield _wrong(told, f"start that query again, or `tritonmq transaction abort {each.key}` if it is dead")


@command()
def doctor(
    data: Path | None = option(
        "Measure this data directory too. A file without a name is written there, and gone afterwards.",
        type=DIRECTORY_THERE,
        metavar="DIR",
    ),
    here: bool = flag("Look at this machine only, and ask no broker."),
    bundle: Path | None = option(
        "Write all that a bug report needs into this file. It holds no records and no secrets.",
        type=FILE,
        metavar="FILE.zip",
    ),
    logs: tuple[Path, ...] = option(
        "The end of this log of a broker is to be in the bundle. May be given several times.",
        "--log",
        multiple=True,
        type=FILE_THERE,
        metavar="FILE",
    ),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> int:
    """Look at this machine and at the cluster. What is wrong is said with what to do, and the exit status is 1 then."""
    if logs and bundle is None:
        raise click.UsageError("--log is for what --bundle writes: give --bundle FILE.zip too")
    lines, seen = list(_of_this_machine(data)), dict[str, Any]()
    if not here:
        lines += _of_the_cluster(connection, _origin(), seen)
    told = [{"kind": line.kind, "what": line.what, "cure": line.cure} for line in lines]
    if bundle is not None:
        from mq_cli.config import rows_of

        settings = rows_of(environment={**os.environ, **connection.environment()})
        write_bundle(bundle, told, seen, settings, logs)
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
    yield of_python(here, importlib.metadata.version("tritonmq"))
    java = _java()
    yield of_java(java, _java_version(java) if java is not None else None)
    named = os.environ.get("PYSPARK_PYTHON", "")
    yield of_pyspark(_pyspark(), here, _python_version(named) if named else None, named)
    yield of_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if data is not None:
        try:
            usage = shutil.disk_usage(data)
            yield from of_disk(str(data), _fsync_s(data), usage.free, usage.total)
        except OSError as error:
            cure = "give --data a directory that the broker's user may write to"
            yield Line("wrong", f"{data} cannot be written ({error})", cure)


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
    from mq_client.cluster.listening import why_unreachable

    with checking_what_was_typed():
        addresses = connection.addresses
    reasons = {address: why_unreachable(address) for address in addresses}
    cluster_ids, ask_ms = dict[str, str](), milliseconds(min(connection.timeout_s, _ASK_S))
    failed = ""
    for address, reason in reasons.items():
        if reason is None:
            try:
                with Admin(**replace(connection, bootstrap=address).for_client(), timeout_ms=ask_ms) as admin:
                    cluster_ids[address] = admin.observe("broker").cluster_id
            except TritonMQError as error:
                failed = str(error)
    lines = list(of_addresses(reasons, cluster_ids, origin))
    if not cluster_ids:
        return [*lines, *([Line("note", f"it was said: {failed}")] if failed else [])]
    answering = replace(connection, bootstrap=next(iter(cluster_ids)))
    try:
        with Admin(**answering.for_client(), timeout_ms=milliseconds(connection.timeout_s)) as admin:
            lines += _of_all_brokers(admin, seen, forward=bool(connection.forward))
    except TritonMQError as error:
        lines.append(Line("wrong", f"the cluster could not be asked: {error}", "see `tritonmq cluster status`"))
    return lines


def _of_all_brokers(admin: Admin, seen: dict[str, Any], *, forward: bool) -> list[Line]:
    from mq_client.cluster.listening import why_unreachable

    observed = admin.observe("partitions")
    now_us = time.time_ns() // 1000
    passed_on = "it has not answered the broker that passes on"
    reasons = {address: passed_on if forward else why_unreachable(address) for address in observed.silent}
    topics = admin.describe_topics(observed, internal=True)
    seen |= {"observation": observed, "topics": topics}
    denied: list[Line] = []
    moves = _if_allowed(admin.moves, "partitions on the move", denied)
    transactions = _if_allowed(admin.transactions, "transactions", denied)
    return [*of_cluster(observed, reasons, topics, moves, transactions, now_us), *denied]


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


# ------------------------------------------------------------------ the bundle


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
