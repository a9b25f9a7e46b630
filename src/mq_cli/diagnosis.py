"""What `tritonmq doctor` makes of what it found: lines of ok, note and wrong, each wrong one with what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from mq_cli.output import bytes_text, counted, duration_text
from mq_protocol.names import parse_duration

if TYPE_CHECKING:
    from mq_client import ClusterObservation, PartitionMove, TopicDescription, TransactionDescription

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


def of_forks(value: str | None) -> Line:
    """`value`: of GRPC_ENABLE_FORK_SUPPORT."""
    if value is not None and value.lower() in ("1", "true", "yes", "on", "t", "y"):
        told = "GRPC_ENABLE_FORK_SUPPORT is on: PySpark may fail with JAVA_GATEWAY_EXITED"
        return _wrong(told, "unset GRPC_ENABLE_FORK_SUPPORT")
    return Line("ok", "gRPC leaves children of this process alone")


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
    from mq_client.looks import kept_closed  # not with this module: mq_client sets a variable that doctor looks at

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
    from mq_client.looks import kept_closed

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
