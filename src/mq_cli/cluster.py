"""`tritonmq cluster`: who is there, what they lead and hold, spreading it evenly, and emptying a broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, answer_options, connection_options
from mq_cli.moving import MOVES, PLAN, not_over, start_and_watch, wait_options, watch
from mq_cli.output import (
    Column,
    Seconds,
    cell,
    checking_what_was_typed,
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
    write_table,
)
from mq_process.patience import Patience
from mq_protocol.names import INTERNAL_PREFIX
from mq_protocol.pem import Files, files_in

if TYPE_CHECKING:
    from mq_broker.coordination.credential import Credential
    from mq_broker.coordination.zookeeper_closing import Walked
    from mq_client import Admin, ClusterDescription, PartitionDescription, TopicDescription
    from mq_client.security_admin import SecurityFloor

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


class ClusterSummary:
    """Counts what the brokers lead and hold. `out_of_sync`: topic, partition, and the replicas that are not in sync.
    Where nobody leads none is: the ISR says which logs were, and those may be closed. The brokers' own topics are
    among `topics`; they are counted apart from the users', and with them in all else."""

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
            (topic.name, partition, sorted(set(partition.replicas) - _in_sync(partition)))
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

    def brokers(self) -> tuple[list[str], list[tuple[object, ...]]]:
        """Columns and rows: the registered brokers, then those that hold replicas and are absent."""
        rows: list[tuple[object, ...]] = [
            (broker.id, broker.address, broker.rack, broker.release, broker.incarnation, *self._share(broker.id))
            for broker in self._described.brokers
        ]
        rows += [(broker, "absent", "", "", "", *self._share(broker)) for broker in self._absent]
        return ["#broker", "address", "rack", "release", "#starts", "#leads", "#replicas", "#in sync"], rows

    def _share(self, broker: int) -> tuple[int, int, int]:
        return self._leads[broker], self._holds[broker], self._in_sync[broker]

    def not_in_sync(self, shown_max: int) -> tuple[list[str], list[tuple[object, ...]]]:
        """Columns and rows of the first `shown_max` partitions that are not fully in sync."""
        rows: list[tuple[object, ...]] = [
            (name, partition.partition, partition.leader or "none", absences(partition, brokers, self._absent))
            for name, partition, brokers in self.out_of_sync[:shown_max]
        ]
        return ["topic", "#partition", "#leader", "not in sync"], rows

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "coordination": self._described.coordination,
            "coordination_access": self._described.coordination_access or None,
            "level": self._described.level,
            "security_floor": list(self._described.security_floor),
            "insecure": bool(self._described.insecure_brokers),
            "insecure_brokers": list(self._described.insecure_brokers),
            "brokers": [
                document(broker, json_only("id", "address", "rack", "release", "level", "incarnation"))
                | dict(zip(("leads", "replicas", "in_sync"), self._share(broker.id), strict=True))
                for broker in self._described.brokers
            ],
            "absent_brokers": self._absent,
            "topics": self._topics,
            "partitions": self._partitions,
            "internal_partitions": self._internal,
            "partitions_without_leader": self._leads[0],
            "partitions_not_fully_in_sync": len(self.out_of_sync),
            "partitions_moving": self._moving,
            "not_in_sync": [
                {
                    "topic": name,
                    "partition": partition.partition,
                    "leader": partition.leader or None,
                    "brokers": brokers,
                    "unheard_ms": {str(broker): partition.unheard_ms.get(broker) for broker in brokers},
                }
                for name, partition, brokers in self.out_of_sync
            ],
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


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the brokers, balance replicas and leaders, drain a broker."""


@cluster.command("log-level", short_help="Have a broker log more, or less, for a while.")
@click.argument("broker", type=click.IntRange(min=1))
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--logger", default="mq_broker", show_default=True, help="A part of it, e.g. mq_broker.rpc.wire.links.")
@click.option("--for", "seconds", type=Seconds(min=1, max=86_400), default=600.0, show_default=True, metavar="SECONDS")
@connection_options
def log_level(broker: int, level: str, logger: str, seconds: float, connection: Connection) -> None:
    """Have BROKER log from LEVEL on. It goes back by itself."""
    with connection.admin() as admin:
        admin.set_log_level(broker, level, logger=logger, seconds=int(seconds))
    say(f"broker {broker} logs {logger} from {level} on for {seconds:g} s")


_DEMANDS: Final = ("tls", "authorize", "zk_auth")


@cluster.group(cls=CommandGroup, short_help="What the cluster demands of each broker.")
def security() -> None:
    """The security floor: what the cluster demands of each broker. One that does not offer it does not start.

    `tls`: no port is in plain text. `authorize`: rights are judged. `zk_auth`: the broker has a credential for
    ZooKeeper, and the cluster's nodes there are closed to others.
    """


@security.command("show")
@answer_options
def show_floor(as_json: bool, connection: Connection) -> None:
    """Show what is demanded, and what each broker offers."""
    with connection.admin() as admin:
        found = admin.security_floor()
    if as_json:
        write_json(
            {
                "demands": list(found.demands),
                "can_demand": list(found.can_demand),
                "brokers": [{"id": broker, "offers": list(offers)} for broker, offers in found.offers.items()],
                "absent_brokers": list(found.absent),
            }
        )
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
@click.argument("demands", nargs=-1, metavar="[tls|authorize|zk_auth]...")
@click.option("--force", is_flag=True, help="Although brokers that hold replicas are not registered.")
@connection_options
def raise_(demands: tuple[str, ...], force: bool, connection: Connection) -> int:
    """Demand more of every broker: what is named, or all that every broker offers.

    It is refused unless every broker that is registered offers it. From then on a broker that does not offer it does
    not start, and stops if it runs. Only `lower` takes that back.

    Exit status 3: nothing was named, and there is nothing more that every broker offers.
    """
    with connection.admin() as admin:
        named = demands or admin.security_floor().can_demand
        found = admin.raise_security_floor(*named, force=force) if named else admin.security_floor()
    _say_change(found)
    if named:
        return 0
    say("nothing more is offered by every broker:")
    _write_offers(found)
    return 3


@security.command()
@click.argument("demands", nargs=-1, required=True, metavar="tls|authorize|zk_auth...")
@click.option("--yes", is_flag=True, help="Really do it.")
@connection_options
def lower(demands: tuple[str, ...], yes: bool, connection: Connection) -> int:
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
    rows = [(broker, *(cell(each in offers) for each in _DEMANDS)) for broker, offers in found.offers.items()]
    write_table(["#broker", *_DEMANDS], rows)


def _listed(demands: tuple[str, ...]) -> str:
    return ", ".join(demands) or "nothing"


@cluster.command(short_help="Close the cluster's nodes in ZooKeeper to all but the brokers.")
@click.option("--zookeeper", required=True, metavar="HOSTS", help="HOST:PORT,… of the cluster's ZooKeeper.")
@click.option(
    "--zookeeper-auth",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The file with USER:PASSWORD that every broker was started with.",
)
@click.option(
    "--zookeeper-certs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Speak TLS with ZooKeeper, with ca.crt, broker.crt and broker.key of this directory.",
)
@click.option("--check", is_flag=True, help="Only look at every node. Exit status 1: some are open.")
def secure_zookeeper(zookeeper: str, zookeeper_auth: Path, zookeeper_certs: Path | None, check: bool) -> int:
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
@click.option("--check", is_flag=True, help="Exit with 1 if something is wrong.")
@answer_options
def status(check: bool, as_json: bool, connection: Connection) -> int:
    """The brokers that are registered, what each leads and holds, and what is missing.

    Brokers that keep partitions closed, because they lack a key, are told in any case. With --check, what is wrong is
    said, and the exit status is 1: such a broker, one that is absent or does not answer, a partition without a leader
    or not fully in sync, a lost session with ZooKeeper.
    """
    from mq_client.looks import kept_closed

    with connection.admin() as admin:
        described = admin.describe_cluster()
        observed = admin.observe("partitions")
        topics = admin.describe_topics(observed, internal=True)
    if observed.silent:
        say(f"no answer from {', '.join(observed.silent)}: what only they know is missing here")
    summary = ClusterSummary(described, topics)
    _write_status(summary, described, as_json=as_json)
    closed = [f"{told}: {cure}" for told, cure in kept_closed(observed.brokers)]
    wrong = closed + (summary.wrong(observed.silent) if check else [])
    for each in wrong:
        say(f"wrong: {each}")
    return 1 if check and wrong else 0


def _write_status(summary: ClusterSummary, described: ClusterDescription, *, as_json: bool) -> None:
    if as_json:
        write_json(summary.document())
        return
    write_table(*summary.brokers())
    click.echo()
    write_line(f"coordination: {described.coordination}{_ACCESS.get(described.coordination_access, '')}")
    write_line(f"level of features: {described.level}{_level_advice(described)}")
    for line in summary.security():
        write_line(line)
    write_line(summary.counts())
    if summary.out_of_sync:
        click.echo()
        write_table(*summary.not_in_sync(_SHOWN_MAX))
        if len(summary.out_of_sync) > _SHOWN_MAX:
            say(f"and {len(summary.out_of_sync) - _SHOWN_MAX} more: --json names all")


@cluster.command()
@click.option("--brokers", "count", type=click.IntRange(min=1), default=1, show_default=True, help="So many must live.")
@click.option("--in-sync", is_flag=True, help="Every partition must have a leader and all its replicas in sync.")
@click.option(
    "--for",
    "wait_s",
    type=Seconds(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@connection_options
def wait(count: int, in_sync: bool, wait_s: float, connection: Connection) -> int:
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
    from mq_client import TritonMQError
    from mq_client.looks import kept_closed

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
@click.option("--plan", is_flag=True, help="Only show what would be done, and which brokers stand in the way.")
@click.option("--force", is_flag=True, help="Although brokers that hold replicas are not registered.")
@answer_options
@click.pass_context
def upgrade(context: click.Context, plan: bool, force: bool, as_json: bool, connection: Connection) -> None:
    """Raise the cluster's level of features, once every broker runs the new release.

    Until then brokers write nothing that the last release cannot read, and each of them can be started with the last
    release again. Afterwards that is over: brokers that do not know the level take no part any more.

    Exit status 3: not every broker knows a higher level.
    """
    with connection.admin() as admin:
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
    if newest > max(found.target, found.level):
        context.exit(3)


@cluster.command()
@answer_options
def moves(as_json: bool, connection: Connection) -> None:
    """The partitions that are on their way to other brokers now."""
    with connection.admin() as admin:
        found = admin.moves()
    show(found, MOVES, as_json=as_json)


@cluster.command()
@click.option("--plan", is_flag=True, help="Only show what would move.")
@wait_options
@answer_options
def balance(plan: bool, no_wait: bool, wait_s: float, as_json: bool, connection: Connection) -> int:
    """Spread replicas and leaders evenly over the live brokers, those just added included, and over their racks.

    What is even already stays where it is. The coordinators' topic gets three replicas as soon as there are brokers for
    them.
    """
    with connection.admin() as admin:
        planned = admin.plan_balance()
        if plan or as_json:
            show(planned, PLAN, as_json=as_json)
        if plan:
            return 0
        if not planned:
            say("nothing to move: replicas and leaders are spread evenly")
            return 0
        if not start_and_watch(admin, planned, no_wait=no_wait, wait_s=wait_s):
            return 1
    if not no_wait:
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
@click.argument("broker", type=click.IntRange(min=1))
@click.option("--plan", is_flag=True, help="Only show what would move.")
@wait_options
@answer_options
def drain(broker: int, plan: bool, no_wait: bool, wait_s: float, as_json: bool, connection: Connection) -> int:
    """Move everything off BROKER, so that it can be stopped for good. It may be dead already.

    A topic that is created meanwhile may be given to it again: drain it once more then.
    """
    with connection.admin() as admin:
        _check_known(admin, broker)
        planned = admin.plan_drain(broker)
        if plan or as_json:
            show(planned, PLAN, as_json=as_json)
        if plan:
            return 0
        if planned and not start_and_watch(admin, planned, no_wait=no_wait, wait_s=wait_s):
            return 1
        if no_wait:
            return 0
        if not watch(admin, wait_s, lambda: admin.needed_by(broker), max(1, len(planned))) and not not_over(wait_s):
            return 1
    say(f"broker {broker} holds nothing any more: it can be stopped")
    return 0
