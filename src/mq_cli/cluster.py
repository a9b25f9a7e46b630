"""`tritonmq cluster`: who is there, what they lead and hold, spreading it evenly, and emptying a broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from mq_cli.cluster_summary import ClusterSummary
from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, connection_options
from mq_cli.moving import MOVES, PLAN, not_over, start_and_watch, wait_options, watch
from mq_cli.output import (
    Column,
    Seconds,
    counted,
    documents,
    json_option,
    say,
    show,
    write_json,
    write_line,
    write_rows,
    write_table,
)
from mq_process.patience import Patience

if TYPE_CHECKING:
    from mq_client import Admin, ClusterDescription

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


@click.group(
    cls=CommandGroup,
    lazy={
        "log-level": ("mq_cli.log_level:log_level", "Have a broker log more, or less, for a while."),
        "security": ("mq_cli.security_floor:security", "What the cluster demands of each broker."),
        "secure-zookeeper": (
            "mq_cli.secure_zookeeper:secure_zookeeper",
            "Close the cluster's nodes in ZooKeeper to all but the brokers.",
        ),
    },
)
def cluster() -> None:
    """Show the brokers, balance replicas and leaders, drain a broker."""


@cluster.command()
@click.option("--check", is_flag=True, help="Exit with 1 if something is wrong.")
@json_option
@connection_options
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
@json_option
@connection_options
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
        brokers = documents(found.brokers, _RELEASES)
        document = {"level": found.level, "target": found.target, "raised": raised, "brokers": brokers}
        write_json({**document, "absent_brokers": list(found.absent)})
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
@json_option
@connection_options
def moves(as_json: bool, connection: Connection) -> None:
    """The partitions that are on their way to other brokers now."""
    with connection.admin() as admin:
        found = admin.moves()
    show(found, MOVES, as_json=as_json)


@cluster.command()
@click.option("--plan", is_flag=True, help="Only show what would move.")
@wait_options
@json_option
@connection_options
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
@json_option
@connection_options
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
