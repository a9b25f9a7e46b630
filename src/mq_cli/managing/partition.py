"""`tritonmq partition`: one partition: what is known of it, where it is, who leads it, and what to do when its logs are
lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from mq_cli.commands import argument, command_group, flag, option
from mq_cli.connection import CONNECTION, Connection
from mq_cli.managing.moving import WATCHING, Watching
from mq_cli.output import JSON, Column, counted, document, json_only, or_null, say, write, write_json, write_rows
from mq_cli.values import checking, meaning
from mq_protocol.errors import TritonMQError, UnknownPartition
from mq_protocol.limits import next_life
from mq_protocol.names import check_topic_name

if TYPE_CHECKING:
    from mq_client import Admin, PartitionDescription, PartitionMove, Recovery

LEADER_WAIT_S = 15.0
_LOOK_S = 0.2

_COLUMNS = (
    Column("partition"),
    or_null("leader"),
    *json_only("leader_epoch", "replicas"),
    Column("isr", value=lambda found: sorted(found.isr)),
    Column("moving_to"),
)


TOPIC: Final = argument(callback=checking(lambda name: check_topic_name(name, internal=True)))
PARTITION: Final = argument("PARTITION", type=click.IntRange(0))


@command_group()
def partition() -> None:
    """Describe, move or recover one partition, or hand its leadership over."""


@partition.command()
def describe(admin: Admin, topic: str = TOPIC, number: int = PARTITION, as_json: bool = JSON) -> None:
    """Show a partition's replicas, leader, in-sync set and offsets, and where it moves to."""
    found = _find(admin, topic, number)
    start, end = _offsets(admin, topic, number) if found.leader else (None, None)
    live = {broker.id for broker in admin.describe_cluster().brokers}
    if as_json:
        write_json({"topic": topic, **document(found, _COLUMNS), "log_start_offset": start, "log_end_offset": end})
        return
    write(f"{topic}-{number}: " + (f"led by broker {found.leader}" if found.leader else "no leader"))
    if start is not None:
        click.echo(f"  offsets {start} to {end}, leader epoch {found.leader_epoch}")
    if found.moving_to:
        click.echo(f"  moving to brokers {' '.join(map(str, found.moving_to))}")
    click.echo()
    columns = (
        Column("", "#broker", int),
        Column("", "live", live.__contains__),
        Column("", "in sync", found.isr.__contains__),
        Column("", "leads", lambda broker: broker == found.leader),
        Column("", "stays", lambda broker: not found.moving_to or broker in found.moving_to),
    )
    write_rows(dict.fromkeys((*found.replicas, *found.isr)), columns)


def _brokers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) for word in words):
        raise click.BadParameter(f"{text!r} is no list of broker ids such as 1,2,4", param_hint="--to")
    return tuple(map(int, words))


@partition.command()
def move(
    topic: str = TOPIC,
    number: int = PARTITION,
    brokers: tuple[int, ...] | None = option(
        "The brokers that get the replicas, in order of rank. The first one leads.",
        "--to",
        metavar="BROKER,…",
        callback=meaning(_brokers),
    ),
    cancel: bool = flag("Send the partition back to its former brokers."),
    watching: Watching = WATCHING,
    connection: Connection = CONNECTION,
) -> int:
    """Move a partition's replicas to other brokers, while it is written to and read.

    It goes on by itself once it is started, whatever becomes of this command or of a broker.
    """
    if cancel == (brokers is not None):
        raise click.UsageError("give either --to BROKER,… or --cancel")
    from mq_client import PartitionMove

    with connection.admin() as admin:
        found = _find(admin, topic, number)
        if cancel:
            return 0 if _cancel(admin, topic, number, watching) else 1
        wanted = PartitionMove(topic, number, found.replicas, brokers or ())
        if not watching.start(admin, [wanted]):
            return 1
    if not watching.no_wait:
        say(f"{topic}-{number} is on brokers {' '.join(map(str, wanted.target))}")
    return 0


def _cancel(admin: Admin, topic: str, number: int, watching: Watching) -> bool:
    def under_way() -> list[PartitionMove]:
        return [m for m in admin.moves() if (m.topic, m.partition) == (topic, number)]

    if not under_way():
        say(f"{topic}-{number} is not moving: nothing to cancel")
        return True
    admin.cancel_move(topic, number)
    if watching.no_wait or watching.until_over(lambda: len(under_way()), 1):
        say(f"{topic}-{number} is {'on its way back' if watching.no_wait else 'back where it came from'}")
        return True
    say(f"not back after {watching.wait_s:g} s: none of its former brokers is in sync; the move continues by itself")
    return False


@partition.command()
def lead(
    admin: Admin, topic: str = TOPIC, number: int = PARTITION, broker: int = argument(type=click.IntRange(1))
) -> None:
    """Let BROKER lead the partition. It must hold a replica that is in sync. No request fails by it.

    After a while the first replica leads again (`tritonmq broker --balance-leaders-ms`). To change that, `tritonmq
    partition move` another one to the front.
    """
    _find(admin, topic, number)
    admin.transfer_leadership(topic, number, broker)
    say(f"{topic}-{number} is led by broker {broker}")


@partition.command()
def recover(
    admin: Admin,
    topic: str = TOPIC,
    number: int = PARTITION,
    source: int | None = option(
        "The broker whose log is kept. Default: the broker with the newest log.",
        "--from",
        type=click.IntRange(1),
        metavar="BROKER",
    ),
    force: bool = flag("Give up logs that are in sync, or may be. Records that only they have are lost."),
    as_json: bool = JSON,
) -> int:
    """Unclean recovery: continue without the in-sync logs, when none of them is left.

    Refused while an in-sync log exists on a live broker, or may exist on a broker that cannot be asked. Start that
    broker instead.
    """
    _find(admin, topic, number)
    done = admin.recover_partition(topic, number, from_broker=source, force=force)
    leader = _wait_for_leader(admin, topic, number)
    if as_json:
        write_json(
            {
                "topic": topic,
                "partition": number,
                "kept_broker": done.broker,
                "kept_offsets_below": done.next_offset,
                "next_offset": max(done.offset_floor, done.next_offset),
                "given_up": list(done.given_up),
                "leader": leader or None,
            }
        )
    else:
        say(
            f"{topic}-{number} continues with the log of broker {done.broker}, which has the offsets below "
            f"{done.next_offset}"
        )
        for line in what_is_lost(done):
            say(line)
        for broker in done.given_up:
            say(f"given up: the log of broker {broker}, which was in sync; if it still exists, it goes into quarantine")
        say(f"broker {leader} leads" if leader else "no broker leads yet: see `tritonmq partition describe`")
    return 0 if leader else 1


def what_is_lost(done: Recovery) -> list[str]:
    """In words. Where offsets go on in another life, the difference counts nothing."""
    if done.offset_floor >= next_life(done.next_offset):
        return [
            "lost: the records after them, if there were any; how many is unknown",
            f"new offsets begin at {done.offset_floor}, above any that can have been given",
        ]
    lost = done.offset_floor - done.next_offset
    if lost <= 0:
        return []
    return [
        f"lost: offsets {done.next_offset} to {done.offset_floor - 1} ({counted(lost, 'record')}); new ones begin after"
    ]


def _wait_for_leader(admin: Admin, topic: str, number: int) -> int:
    deadline = time.monotonic() + LEADER_WAIT_S
    while time.monotonic() < deadline:
        try:
            if leader := admin.describe_topic(topic).partitions[number].leader:
                return leader
        except TritonMQError as error:
            say(f"who leads is not known yet: {error}")
        time.sleep(_LOOK_S)
    return 0


def _find(admin: Admin, topic: str, number: int) -> PartitionDescription:
    partitions = admin.describe_topic(topic).partitions
    if number >= len(partitions):
        raise UnknownPartition(f"topic {topic!r} has no partition {number}: it has 0 to {len(partitions) - 1}")
    return partitions[number]


def _offsets(admin: Admin, topic: str, number: int) -> tuple[int | None, int | None]:
    try:
        return admin.offsets(topic)[number]
    except TritonMQError as error:  # another partition of the topic may have no leader
        say(f"offsets are not known: {error}")
        return None, None
