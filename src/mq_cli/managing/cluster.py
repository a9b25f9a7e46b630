"""`tritonmq cluster`: who is there, what they lead and hold, spreading it evenly, and emptying a broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from mq_cli.commands import CommandGroup, argument, command_group, flag, option
from mq_cli.connection import CONNECTION, Connection
from mq_cli.managing.moving import MOVES, PLAN, WATCHING, Watching
from mq_cli.output import (
    JSON,
    Column,
    both,
    counted,
    document,
    documents,
    duration_text,
    json_only,
    say,
    show,
    write_json,
    write_line,
    write_rows,
)
from mq_cli.values import DIRECTORY, FILE, Seconds, checking_what_was_typed
from mq_process.patience import Patience
from mq_protocol.access.pem import Files, files_in
from mq_protocol.errors import TritonMQError
from mq_protocol.names import INTERNAL_PREFIX

if TYPE_CHECKING:
    from mq_broker.coordination.credential import Credential
    from mq_broker.coordination.zookeeper_closing import Walked
    from mq_client import Admin, ClusterDescription, PartitionDescription, PartitionMove, TopicDescription
    from mq_client.administration.security_admin import SecurityFloor

_WAIT_LOOK_S = 0.5
_ACCESS = {
    "open": ", open: everybody who reaches ZooKeeper may read and write there (docs/zookeeper.md)",
    "closing": ", partly open: `tritonmq cluster secure-zookeeper` has not ended; do it again",
    "closed": ", closed to all but the brokers",
}
"""What is said of who may read and write in ZooKeeper."""

_RELEASES = (Column("id", "#broker"), Column("release", "release"), Column("level", "#knows level"))
_SHOWN_MAX = 50
"""Partitions not in sync that are listed for people: of a lost broker they may be thousands."""

_CATCHING_UP_MS = 5_000
"""A replica that its leader has heard of within this time lives: it is behind."""


class _OutOfSync(NamedTuple):
    """Where nobody leads no replica is in sync: the ISR says which logs were, and those may be closed."""

    topic: str
    partition: PartitionDescription
    brokers: list[int]


_OUT_OF_SYNC = (
    *both("topic"),
    Column("partition", "#partition", lambda each: each.partition.partition),
    Column("leader", "#leader", lambda each: each.partition.leader or None),
    *json_only("brokers"),
    Column("unheard_ms", value=lambda each: {str(b): each.partition.unheard_ms.get(b) for b in each.brokers}),
)


class _Absent(NamedTuple):
    """A broker that holds replicas and is not registered."""

    id: int
    address: str = "absent"
    rack: str = ""
    release: str = ""
    incarnation: str = ""


class ClusterSummary:
    """Counts what the brokers lead and hold. The brokers' own topics are among `topics`; they are counted apart from
    the users', and with them in all else."""

    def __init__(self, described: ClusterDescription, topics: Sequence[TopicDescription]) -> None:
        partitions = [partition for topic in topics for partition in topic.partitions]
        self._described = described
        own = [topic for topic in topics if topic.name.startswith(INTERNAL_PREFIX)]
        self._topics = len(topics) - len(own)
        self._internal = sum(len(topic.partitions) for topic in own)
        self._partitions = len(partitions) - self._internal
        self._leads = Counter(partition.leader for partition in partitions)
        self._holds = Counter(broker for partition in partitions for broker in partition.replicas)
        self._in_sync = Counter(broker for partition in partitions for broker in _in_sync(partition))
        self._moving = sum(bool(partition.moving_to) for partition in partitions)
        self._absent = sorted(self._holds.keys() - {broker.id for broker in described.brokers})
        self.out_of_sync = [
            _OutOfSync(topic.name, partition, sorted(set(partition.replicas) - _in_sync(partition)))
            for topic in topics
            for partition in topic.partitions
            if not set(partition.replicas) <= _in_sync(partition)
        ]

    def counts(self) -> str:
        own = f" and {self._internal} of the brokers' own" if self._internal else ""
        told = (
            f"{counted(self._topics, 'topic')}, {counted(self._partitions, 'partition')}{own}, "
            f"{self._leads[0]} without a leader, "
            f"{len(self.out_of_sync)} not fully in sync"
        )
        return told + (f", {self._moving} moving" if self._moving else "")

    def security(self) -> list[str]:
        """Lines that say what is demanded of brokers, and which of them are open; none for a cluster on loopback
        addresses of which nothing is demanded."""
        insecure, floor = self._described.insecure_brokers, self._described.security_floor
        told = []
        if insecure:
            which = f"brokers {list(insecure)}" if len(insecure) > 1 else f"broker {insecure[0]}"
            told.append(
                f"INSECURE: other machines reach {which} in plain text. Whoever is on the way reads and alters what is "
                "sent: start each with --certs DIR, and without --also-plaintext (docs/tls.md)"
            )
        if floor or insecure:
            told.append(f"security floor: {', '.join(floor) or 'nothing is demanded of brokers (docs/floor.md)'}")
        return told

    def wrong(self, silent: Sequence[str]) -> list[str]:
        """What a person must look at; nothing if all is well. `silent`: addresses that did not answer."""
        found = [
            f"broker {broker} is absent, and holds {counted(self._holds[broker], 'replica')}" for broker in self._absent
        ]
        found += [f"the broker at {address} does not answer" for address in silent]
        if self._leads[0]:
            found.append(f"{counted(self._leads[0], 'partition')} without a leader")
        if self.out_of_sync:
            found.append(f"{counted(len(self.out_of_sync), 'partition')} not fully in sync")
        if self._described.coordination == "suspended":
            found.append("the broker that answered has no session with ZooKeeper")
        if self._described.coordination_access == "closing":
            found.append("nodes in ZooKeeper may be open: `tritonmq cluster secure-zookeeper` has not ended")
        return found

    def _brokers(self) -> tuple[Column, ...]:
        return (
            Column("id", "#broker"),
            *both("address", "rack", "release"),
            Column("level"),
            Column("incarnation", "#starts"),
            Column("leads", "#leads", lambda broker: self._leads[broker.id]),
            Column("replicas", "#replicas", lambda broker: self._holds[broker.id]),
            Column("in_sync", "#in sync", lambda broker: self._in_sync[broker.id]),
        )

    def write(self, *, as_json: bool) -> None:
        if as_json:
            write_json(self.document())
            return
        described = self._described
        write_rows([*described.brokers, *map(_Absent, self._absent)], self._brokers())
        click.echo()
        write_line(f"coordination: {described.coordination}{_ACCESS.get(described.coordination_access, '')}")
        write_line(f"level of features: {described.level}{_level_advice(described)}")
        for line in self.security():
            write_line(line)
        write_line(self.counts())
        if self.out_of_sync:
            click.echo()
            absent = Column("", "not in sync", lambda each: absences(each.partition, each.brokers, self._absent))
            write_rows(self.out_of_sync[:_SHOWN_MAX], (*_OUT_OF_SYNC, absent))
            if len(self.out_of_sync) > _SHOWN_MAX:
                say(f"and {len(self.out_of_sync) - _SHOWN_MAX} more: --json names all")

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        described = self._described
        return {
            "coordination": described.coordination,
            "coordination_access": described.coordination_access or None,
            "level": described.level,
            "security_floor": list(described.security_floor),
            "insecure": bool(described.insecure_brokers),
            "insecure_brokers": list(described.insecure_brokers),
            "brokers": documents(described.brokers, self._brokers()),
            "absent_brokers": self._absent,
            "topics": self._topics,
            "partitions": self._partitions,
            "internal_partitions": self._internal,
            "partitions_without_leader": self._leads[0],
            "partitions_not_fully_in_sync": len(self.out_of_sync),
            "partitions_moving": self._moving,
            "not_in_sync": documents(self.out_of_sync, _OUT_OF_SYNC),
        }


def _in_sync(partition: PartitionDescription) -> set[int]:
    return set(partition.isr) if partition.leader else set()


def absences(partition: PartitionDescription, brokers: list[int], absent: Collection[int] = ()) -> str:
    """The brokers, and since when their leader has not heard of them; one that it hears of is catching up, unless it is
    absent.

    A leader counts from when it began to lead: it may have led for a moment only.
    """
    told = []
    for broker in brokers:
        unheard_ms = partition.unheard_ms.get(broker)
        if unheard_ms is None:
            told.append(f"{broker}")
        elif unheard_ms < _CATCHING_UP_MS and broker in absent:
            told.append(f"{broker} (absent)")
        elif unheard_ms < _CATCHING_UP_MS:
            told.append(f"{broker} (catching up)")
        else:
            told.append(f"{broker} (not heard of for {duration_text(unheard_ms)})")
    return ", ".join(told)


@command_group()
def cluster() -> None:
    """Show the brokers, balance replicas and leaders, drain a broker."""


@cluster.command("log-level", short_help="Have a broker log more, or less, for a while.")
def log_level(
    admin: Admin,
    broker: int = argument(type=click.IntRange(1)),
    level: str = argument(type=click.Choice(["debug", "info", "warning", "error"])),
    logger: str = option("A part of it, e.g. mq_broker.rpc.wire.links.", default="mq_broker"),
    seconds: float = option("", "--for", type=Seconds(min=1, max=86_400), default=600.0, metavar="SECONDS"),
) -> None:
    """Have BROKER log from LEVEL on. It goes back by itself."""
    admin.set_log_level(broker, level, logger=logger, seconds=int(seconds))
    say(f"broker {broker} logs {logger} from {level} on for {seconds:g} s")


_LEVELS = (
    Column("logger", "logger", itemgetter(0)),
    Column("level", "from", lambda each: each[1][0]),
    Column("seconds", "#seconds left", lambda each: each[1][1]),
)


@cluster.command("log-levels", columns=_LEVELS)
def log_levels(admin: Admin, broker: int = argument(type=click.IntRange(1))) -> Sequence[tuple[str, tuple[str, int]]]:
    """What BROKER logs otherwise than it was started to."""
    return list(admin.log_levels(broker).items())


_FLOOR = json_only("demands", "can_demand")
_DEMANDS: Final = ("tls", "authorize", "zk_auth")


@cluster.group(cls=CommandGroup, short_help="What the cluster demands of each broker.")
def security() -> None:
    """The security floor: what the cluster demands of each broker. One that does not offer it does not start.

    `tls`: no port is in plain text. `authorize`: rights are judged. `zk_auth`: the broker has a credential for
    ZooKeeper, and the cluster's nodes there are closed to others.
    """


@security.command("show")
def show_floor(admin: Admin, as_json: bool = JSON) -> None:
    """Show what is demanded, and what each broker offers."""
    found = admin.security_floor()
    if as_json:
        brokers = [{"id": broker, "offers": list(offers)} for broker, offers in found.offers.items()]
        write_json(document(found, _FLOOR) | {"brokers": brokers, "absent_brokers": list(found.absent)})
        return
    _write_offers(found)
    click.echo()
    write_line(f"demanded: {_listed(found.demands)}")
    if found.can_demand:
        write_line(
            f"every broker that is registered offers {_listed(found.can_demand)}: `tritonmq cluster security raise` "
            "demands it"
        )
    if found.absent:
        write_line(f"brokers {list(found.absent)} hold replicas and are not registered: nobody knows what they offer")


@security.command("raise")
def raise_(
    admin: Admin,
    demands: tuple[str, ...] = argument("[tls|authorize|zk_auth]...", nargs=-1),
    force: bool = flag("Although brokers that hold replicas are not registered."),
) -> int:
    """Demand more of every broker: what is named, or all that every broker offers.

    It is refused unless every broker that is registered offers it. From then on a broker that does not offer it does
    not start, and stops if it runs. Only `lower` takes that back.

    Exit status 3: nothing was named, and there is nothing more that every broker offers.
    """
    named = demands or admin.security_floor().can_demand
    found = admin.raise_security_floor(*named, force=force) if named else admin.security_floor()
    _say_change(found)
    if named:
        return 0
    say("nothing more is offered by every broker:")
    _write_offers(found)
    return 3


@security.command()
def lower(
    demands: tuple[str, ...] = argument("tls|authorize|zk_auth...", nargs=-1, required=True),
    yes: bool = flag("Really do it."),
    connection: Connection = CONNECTION,
) -> int:
    """Demand less: brokers may be started that do not offer what is named."""
    if not yes:
        raise click.UsageError(
            f"one broker that is started without {_listed(demands)} may then open the cluster: say --yes if you mean it"
        )
    with connection.admin() as admin:
        _say_change(admin.lower_security_floor(*demands))
    return 0


def _say_change(found: SecurityFloor) -> None:
    if found.before == found.demands:
        write_line(f"demanded as before: {_listed(found.demands)}")
    else:
        write_line(f"demanded before: {_listed(found.before)}; now: {_listed(found.demands)}")


def _write_offers(found: SecurityFloor) -> None:
    columns = [Column("", each, lambda offers, each=each: each in offers[1]) for each in _DEMANDS]  # type: ignore[misc]
    write_rows(found.offers.items(), (Column("", "#broker", itemgetter(0)), *columns))


def _listed(demands: tuple[str, ...]) -> str:
    return ", ".join(demands) or "nothing"


@cluster.command(short_help="Close the cluster's nodes in ZooKeeper to all but the brokers.")
def secure_zookeeper(
    zookeeper: str = option("HOST:PORT,… of the cluster's ZooKeeper.", required=True, metavar="HOSTS"),
    zookeeper_auth: Path = option(
        "The file with USER:PASSWORD that every broker was started with.",
        type=FILE,
        required=True,
        metavar="FILE",
    ),
    zookeeper_certs: Path | None = option(
        "Speak TLS with ZooKeeper, with ca.crt, broker.crt and broker.key of this directory.",
        type=DIRECTORY,
        metavar="DIR",
    ),
    check: bool = flag("Only look at every node. Exit status 1: some are open."),
) -> int:
    """Close the cluster's nodes in ZooKeeper to all but the brokers.

    For a cluster that was begun without --zookeeper-auth. Every broker must have been started again with the option.
    The cluster goes on meanwhile. If the command is broken off, the cluster goes on too: give the command again.
    """
    from mq_broker.coordination.credential import Credential

    logging.getLogger("mq_broker").addHandler(logging.NullHandler())  # what is wrong the error says
    with checking_what_was_typed():
        credential = Credential.read(zookeeper_auth)
    tls = None if zookeeper_certs is None else files_in(zookeeper_certs)
    return asyncio.run(_close(zookeeper, credential, tls, check=check))


async def _close(hosts: str, credential: Credential, tls: Files | None, *, check: bool) -> int:
    from mq_broker.coordination.zookeeper_closing import Closing

    async with Closing(hosts, credential, tls=tls) as closing:
        if check:
            found = await closing.check()
            write_line(f"{counted(found.nodes, 'node')}, {found.opened} open{_such_as(found)}")
            return 1 if found.opened else 0
        done = await closing.close(lambda sofar: say(f"{counted(sofar.opened, 'node')} closed so far"))
    write_line(f"{counted(done.nodes, 'node')}, {done.opened} closed now: only the brokers may read and write them")
    return 0


def _such_as(found: Walked) -> str:
    return f", such as {found.example}" if found.opened else ""


@cluster.command()
def status(admin: Admin, check: bool = flag("Exit with 1 if something is wrong."), as_json: bool = JSON) -> int:
    """The brokers that are registered, what each leads and holds, and what is missing.

    Brokers that keep partitions closed, because they lack a key, are told in any case. With --check, what is wrong is
    said, and the exit status is 1: such a broker, one that is absent or does not answer, a partition without a leader
    or not fully in sync, a lost session with ZooKeeper.
    """
    from mq_client.shown.looks import kept_closed

    described = admin.describe_cluster()
    observed = admin.observe("partitions")
    topics = admin.describe_topics(observed, internal=True)
    if observed.silent:
        say(f"no answer from {', '.join(observed.silent)}: what only they know is missing here")
    summary = ClusterSummary(described, topics)
    summary.write(as_json=as_json)
    closed = [f"{told}: {cure}" for told, cure in kept_closed(observed.brokers)]
    wrong = closed + (summary.wrong(observed.silent) if check else [])
    for each in wrong:
        say(f"wrong: {each}")
    return 1 if check and wrong else 0


@cluster.command()
def wait(
    count: int = option("So many must live.", "--brokers", type=click.IntRange(1), default=1),
    in_sync: bool = flag("Every partition must have a leader and all its replicas in sync."),
    wait_s: float = option("How long to wait.", "--for", type=Seconds(min=0), default=300.0, metavar="SECONDS"),
    connection: Connection = CONNECTION,
) -> int:
    """Wait until the cluster is well, also for brokers that do not listen yet.

    What is missing is said every few seconds. Exit status 1: it is so to the end.
    """
    patience, deadline = Patience(say), time.monotonic() + wait_s
    with connection.admin(must_listen=False) as admin:
        while True:
            missing = _nobody_listens(connection) or _missing(admin, count, in_sync=in_sync)
            if not missing:
                return 0
            if time.monotonic() >= deadline:
                for each in missing:
                    say(f"after {wait_s:g} s: {each}")
                return 1
            patience.waits_for("; ".join(missing))
            time.sleep(min(_WAIT_LOOK_S, max(0.0, deadline - time.monotonic())))


def _nobody_listens(connection: Connection) -> list[str]:
    """Why no broker can be asked yet; empty if one can."""
    try:
        connection.check_somebody_listens()
    except click.ClickException as error:
        return error.message.splitlines()[:1]
    return []


def _missing(admin: Admin, brokers: int, *, in_sync: bool) -> list[str]:
    from mq_client.shown.looks import kept_closed

    try:
        described = admin.describe_cluster()
        found = [] if len(described.brokers) >= brokers else [f"{len(described.brokers)} of {brokers} brokers live"]
        if in_sync:
            observed = admin.observe("partitions")
            found += [told for told, _ in kept_closed(observed.brokers)]
            found += ClusterSummary(described, admin.describe_topics(observed, internal=True)).wrong(observed.silent)
    except TritonMQError as error:
        return [str(error)]
    return found


def _level_advice(described: ClusterDescription) -> str:
    """What is to be done about a level that could be higher, or that not all brokers know."""
    known = {broker.level for broker in described.brokers}
    if known and min(known) > described.level:
        return f"; every broker knows level {min(known)}: `tritonmq cluster upgrade` raises it"
    if known and max(known) > described.level:
        return f"; some brokers know level {max(known)}, and not all: see `tritonmq cluster upgrade --plan`"
    return ""


@cluster.command()
def upgrade(
    admin: Admin,
    plan: bool = flag("Only show what would be done, and which brokers stand in the way."),
    force: bool = flag("Although brokers that hold replicas are not registered."),
    as_json: bool = JSON,
) -> int:
    """Raise the cluster's level of features, once every broker runs the new release.

    Until then brokers write nothing that the last release cannot read, and each of them can be started with the last
    release again. Afterwards that is over: brokers that do not know the level take no part any more.

    Exit status 3: not every broker knows a higher level.
    """
    before = admin.upgrade_cluster(plan=True).level
    found = admin.upgrade_cluster(plan=plan, force=force)
    raised = found.level > before
    if as_json:
        levels = {"level": found.level, "target": found.target, "raised": raised}
        write_json(levels | {"brokers": documents(found.brokers, _RELEASES), "absent_brokers": list(found.absent)})
    else:
        write_rows(found.brokers, _RELEASES)
        click.echo()
        if found.absent:
            write_line(f"brokers {list(found.absent)} hold replicas and are not registered: nobody knows their release")
        if raised:
            write_line(f"the cluster was at level {before} and is at level {found.level} now")
        elif found.target > found.level:
            write_line(f"the cluster is at level {found.level} and can be raised to level {found.target}")
        else:
            write_line(f"the cluster is at level {found.level}, the highest that every broker knows")
    newest = max((each.level for each in found.brokers), default=found.level)
    return 3 if newest > max(found.target, found.level) else 0


@cluster.command(columns=MOVES)
def moves(admin: Admin) -> Sequence[PartitionMove]:
    """The partitions that are on their way to other brokers now."""
    return admin.moves()


@cluster.command()
def balance(
    admin: Admin,
    plan: bool = flag("Only show what would move."),
    watching: Watching = WATCHING,
    as_json: bool = JSON,
) -> int:
    """Spread replicas and leaders evenly over the live brokers, those just added included, and over their racks.

    What is even already stays where it is. The coordinators' topic gets three replicas as soon as there are brokers for
    them.
    """
    planned = admin.plan_balance()
    if plan or as_json:
        show(planned, PLAN, as_json=as_json)
    if plan:
        return 0
    if not planned:
        say("nothing to move: replicas and leaders are spread evenly")
        return 0
    if not watching.start(admin, planned):
        return 1
    if not watching.no_wait:
        say(f"balanced: {counted(len(planned), 'partition')} moved or led by another broker now")
    return 0


def _check_known(admin: Admin, broker: int) -> None:
    """Raise for a broker that neither lives nor holds anything: more likely a slip than one that was drained before."""
    live = [found.id for found in admin.describe_cluster().brokers]
    if broker not in live and not admin.needed_by(broker):
        raise click.ClickException(
            f"no broker {broker} lives, and none of that id holds anything: there {'is' if len(live) == 1 else 'are'} "
            f"{', '.join(map(str, live))}"
        )


@cluster.command()
def drain(
    admin: Admin,
    broker: int = argument(type=click.IntRange(1)),
    plan: bool = flag("Only show what would move."),
    watching: Watching = WATCHING,
    as_json: bool = JSON,
) -> int:
    """Move everything off BROKER, so that it can be stopped for good. It may be dead already.

    A topic that is created meanwhile may be given to it again: drain it once more then.
    """
    _check_known(admin, broker)
    planned = admin.plan_drain(broker)
    if plan or as_json:
        show(planned, PLAN, as_json=as_json)
    if plan:
        return 0
    if planned and not watching.start(admin, planned):
        return 1
    if watching.no_wait:
        return 0
    if not watching.to_the_end(lambda: admin.needed_by(broker), max(1, len(planned))):
        return 1
    say(f"broker {broker} holds nothing any more: it can be stopped")
    return 0
