"""`tritonmq queue`: queue groups, whose members are lent records and settle each one: declared, shown, changed, worked
off by hand."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, connection_options
from mq_cli.moments import EARLIEST, parse_place
from mq_cli.output import (
    checking_what_was_typed,
    confirm,
    counted,
    json_option,
    say,
    time_text,
    write,
    write_json,
    write_table,
    yes_option,
)
from mq_cli.queue_asking import asking, check_names, say_if_paused, write_swept
from mq_cli.redrive import redrive
from mq_cli.settings_option import parse_pairs, settings_help
from mq_protocol.names import check_new_group_name, check_topic_name
from mq_protocol.queue_settings import QUEUE_SETTINGS, parse_queue_settings, usual_dead_letter

if TYPE_CHECKING:
    from mq_client import QueueDescription, QueueInfo, QueuePartition, QueueRun

STATES: Final = ("ready", "leased", "delayed", "doomed", "parked")


class State(click.Choice[str]):
    """A state of records. Whoever asks for dead letters is told where they are."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "dead":
            self.fail(
                "dead letters are not in the queue any more, but in a topic of their own: TOPIC.dead, unless the "
                "queue names another one. `tritonmq consume TOPIC.dead --from earliest` shows them. The states are "
                f"{', '.join(STATES)}",
                param,
                ctx,
            )
        return str(super().convert(value, param, ctx))


@click.group(cls=CommandGroup)
def queue() -> None:
    """Declare, list, describe, alter and delete queue groups, and look at what waits in them."""


def _parse_start(_ctx: click.Context, _param: click.Parameter, text: str) -> str | datetime:
    try:
        place = parse_place(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if isinstance(place, int):
        raise click.BadParameter("a queue begins at earliest, latest or a time, not at an offset")
    return place


@queue.command(epilog=settings_help(QUEUE_SETTINGS))
@click.argument("topic")
@click.argument("group")
@click.option(
    "--from",
    "start",
    callback=_parse_start,
    default=EARLIEST,
    show_default=True,
    metavar="earliest|latest|TIME",
    help="The first record that the queue has. TIME is ISO 8601, or 15m for 15 minutes ago.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. lease_ms=5m. May be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="If the queue exists, leave it as it is and exit with 0.")
@json_option
@connection_options
def declare(
    topic: str,
    group: str,
    start: str | datetime,
    settings: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Make the queue group GROUP of TOPIC."""
    given = parse_pairs(settings)
    with checking_what_was_typed():
        check_topic_name(topic)
        check_new_group_name(group)
        parse_queue_settings(given, topic)
    with connection.admin() as admin:
        there = next((info for info in admin.list_queues(topic) if info.group == group), None)
        if there is not None and not if_not_exists:
            raise click.ClickException(
                f"queue {group} of topic {topic} exists already: `tritonmq queue alter` changes it, --if-not-exists "
                "leaves it as it is"
            )
        info = there or admin.declare_queue(topic, group, start, **given)
    if as_json:
        write_json(_info_document(info))
    elif there is not None:
        say(f"queue {group} of topic {topic} is there already; nothing was changed")
    else:
        say(f"declared queue {group} of topic {topic}")
        _say_settings(info)


@queue.command(epilog=settings_help(QUEUE_SETTINGS))
@click.argument("topic")
@click.argument("group")
@click.option(
    "--set",
    "settings",
    multiple=True,
    required=True,
    metavar="NAME=VALUE",
    help="A setting to change; `NAME=` restores the default. May be repeated.",
)
@json_option
@connection_options
def alter(topic: str, group: str, settings: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """Change settings of GROUP while it is in use. They hold at once, for what is there already too."""
    given = parse_pairs(settings, empty=True)
    with checking_what_was_typed():
        check_names(topic, group)
        parse_queue_settings({name: value for name, value in given.items() if value}, topic, partly=True)
    with connection.admin() as admin:
        info = admin.alter_queue(topic, group, **{name: value or None for name, value in given.items()})
    if as_json:
        write_json(_info_document(info))
    else:
        say(f"queue {group} of topic {topic}")
        _say_settings(info)


@queue.command("list")
@click.argument("topic", required=False)
@json_option
@connection_options
def list_queues(topic: str | None, as_json: bool, connection: Connection) -> None:
    """List the queue groups of all topics, or of TOPIC, and how many records of each are in which state."""
    from mq_client import TritonMQError

    with checking_what_was_typed():
        if topic is not None:
            check_topic_name(topic)
    found: list[tuple[QueueInfo, QueueDescription | None]] = []
    with connection.admin() as admin:
        for info in admin.list_queues(topic):
            try:
                found.append((info, admin.describe_queue(info.topic, info.group)))
            except TritonMQError as error:
                say(f"queue {info.group} of topic {info.topic}: {error}")
                found.append((info, None))
    if as_json:
        write_json([_info_document(info) | (_sums(known) if known else {}) for info, known in found])
        return
    write_table(
        ["topic", "group", *(f"#{state}" for state in STATES), "#accepted", "#dead", "#members", "paused"],
        [
            (
                info.topic,
                info.group,
                *([getattr(known, state) for state in STATES] if known else ["?"] * len(STATES)),
                known.accepted if known else "?",
                known.dead if known else "?",
                len(known.members) if known else "?",
                "yes" if _paused(info) else "no",
            )
            for info, known in found
        ],
    )


@queue.command()
@click.argument("topic")
@click.argument("group")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Also list the records of this partition, in runs.")
@click.option(
    "--state",
    type=State(STATES),
    help="With --partition: only records in this state.  [default: all that are not settled]",
)
@json_option
@connection_options
def describe(
    topic: str,
    group: str,
    partition: int | None,
    state: str | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Show what became of each partition's records in GROUP, and which members hold some."""
    if state is not None and partition is None:
        raise click.UsageError("--state is about the records of one partition: give --partition too")
    runs: list[QueueRun] = []
    with asking(topic, group, connection) as admin:
        found = admin.describe_queue(topic, group)
        if partition is not None:
            runs = admin.queue_records(topic, group, partition, state or "any")
    if as_json:
        document = _info_document(found.info) | _sums(found)
        document["partitions"] = [_partition_document(each) for each in found.partitions]
        if partition is not None:
            document["records"] = [_run_document(run) for run in runs]
        write_json(document)
        return
    write(f"queue {group} of topic {topic}")
    for setting, value, is_default in _effective(found.info):
        if value:
            write(f"  {setting} = {value}{' (default)' if is_default else ''}")
    click.echo()
    _write_partitions(found)
    for each in found.partitions:
        for member in each.members:
            held = counted(member.records, "record")
            say(f"member {member.member} holds {held} of partition {each.partition}")
        if each.more_members:
            say(f"and {counted(each.more_members, 'member')} more hold records of partition {each.partition}")
        if each.outbox:
            waiting = counted(each.outbox, "decision")
            say(f"partition {each.partition}: dead letters or outputs of {waiting} are not published yet")
        if each.alarm:
            say(f"partition {each.partition} does not get on: {each.alarm}")
        if each.blocked_by is not None:
            key = f", which has the key {each.blocked_by_key!r}" if each.blocked_by_key else ""
            say(f"partition {each.partition}: records wait for offset {each.blocked_by}{key}")
    if partition is not None:
        click.echo()
        _write_runs(runs)


def _write_partitions(found: QueueDescription) -> None:
    totals = ("accepted", "dead", "returned", "charged")
    write_table(
        [
            "#partition",
            "#base",
            "#end",
            *(f"#{state}" for state in STATES),
            *(f"#{total}" for total in totals),
            "dropped",
            "oldest ready",
        ],
        [
            (
                each.partition,
                each.base,
                each.log_end_offset,
                *(getattr(each, state) for state in STATES),
                *(getattr(each, total) for total in totals),
                ", ".join(f"{reason} {count}" for reason, count in each.dropped.items()) or "none",
                time_text(each.oldest_ready_us) or "none",
            )
            for each in found.partitions
        ],
    )


def _write_runs(runs: list[QueueRun]) -> None:
    write_table(
        ["#first", "#last", "state", "#deliveries", "#failures", "not before", "member", "error"],
        [
            (
                run.first,
                run.end - 1,
                run.state,
                run.deliveries,
                run.failures,
                time_text(run.due_us),
                run.member,
                run.error,
            )
            for run in runs
        ],
    )


@queue.command()
@click.argument("topic")
@click.argument("group")
@yes_option
@connection_options
def delete(topic: str, group: str, yes: bool, connection: Connection) -> None:
    """Delete the queue group GROUP of TOPIC. No message is deleted."""
    with asking(topic, group, connection) as admin:
        admin.describe_queue(topic, group)
        confirm(f"Delete queue {group} of topic {topic}, and forget what it has settled?", yes=yes)
        admin.delete_queue(topic, group)
    say(f"deleted queue {group} of topic {topic}")


_count_option = click.option(
    "--count",
    "-n",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="The largest number of messages.",
)
_records_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write whole records, one JSON object per line."
)


@queue.command()
@click.argument("topic")
@click.argument("group")
@_count_option
@click.option("--state", type=State(STATES), default="ready", show_default=True, help="Of messages in this state.")
@_records_json_option
@connection_options
def peek(topic: str, group: str, count: int, state: str, as_json: bool, connection: Connection) -> None:
    """Write messages of GROUP that are ready, or in another state, by partition and offset. Nothing is lent or
    counted."""
    with checking_what_was_typed():
        check_names(topic, group)
    _write_messages(topic, group, count, state, as_json=as_json, connection=connection)


@queue.command()
@click.argument("topic")
@click.argument("group")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="The largest number of messages.",
)
@_records_json_option
@connection_options
def pop(topic: str, group: str, count: int, as_json: bool, connection: Connection) -> None:
    """Take ready messages off the queue and write them. They are settled: no member is lent them any more."""
    with checking_what_was_typed():
        check_names(topic, group)
    _write_messages(topic, group, count, None, as_json=as_json, connection=connection)


def _write_messages(
    topic: str, group: str, count: int, state: str | None, *, as_json: bool, connection: Connection
) -> None:
    """Those that are in a state, or that are taken (None)."""
    from mq_cli.messages import MessageWriter

    writer = MessageWriter(as_json=as_json, template=None, for_terminal=sys.stdout.isatty())
    with connection.admin() as admin:
        writer.knows(admin.describe_topic(topic))
        records = (
            admin.pop_queue(topic, group, count) if state is None else admin.peek_queue(topic, group, count, state)
        )
        for record in records:
            writer.write(record)
        if state is None and not records:
            say_if_paused(admin, topic, group)
    writer.flush()


@queue.command()
@click.argument("topic")
@click.argument("group")
@yes_option
@json_option
@connection_options
def purge(topic: str, group: str, yes: bool, as_json: bool, connection: Connection) -> None:
    """Settle every message that waits in GROUP and that no member holds. The messages stay in the topic."""
    with asking(topic, group, connection) as admin:
        known = admin.describe_queue(topic, group)
        waiting = known.ready + known.delayed + known.doomed + known.parked
        confirm(f"Settle {counted(waiting, 'message')} of queue {group} unworked?", yes=yes)
        swept = admin.purge_queue(topic, group)
    write_swept(swept, as_json=as_json)


queue.add_command(redrive)


@queue.command()
@click.argument("topic")
@click.argument("group")
@connection_options
def pause(topic: str, group: str, connection: Connection) -> None:
    """Lend nothing more of GROUP. What its members hold they may still settle."""
    with asking(topic, group, connection) as admin:
        admin.pause_queue(topic, group)
    say(f"paused queue {group} of topic {topic}")


@queue.command()
@click.argument("topic")
@click.argument("group")
@connection_options
def resume(topic: str, group: str, connection: Connection) -> None:
    """Lend messages of GROUP again."""
    with asking(topic, group, connection) as admin:
        admin.resume_queue(topic, group)
    say(f"resumed queue {group} of topic {topic}")


def _say_settings(info: QueueInfo) -> None:
    for setting, value in info.settings.items():
        say(f"  {setting} = {value}")


def _effective(info: QueueInfo) -> list[tuple[str, str, bool]]:
    """Every setting: name, value, and whether that is the default."""
    usual = {setting.name: setting.default for setting in QUEUE_SETTINGS.values()}
    usual["dead_letter"] = usual_dead_letter(info.topic)
    effective = {**usual, **info.settings}
    return [(name, effective[name], name not in info.settings or effective[name] == usual[name]) for name in usual]


def _paused(info: QueueInfo) -> bool:
    return info.settings.get("paused") == "true"


def _sums(found: QueueDescription) -> dict[str, Any]:
    return {
        **{state: getattr(found, state) for state in STATES},
        "accepted": found.accepted,
        "charged": found.charged,
        "dead": found.dead,
        "outbox": found.outbox,
        "members": found.members,
    }


def _info_document(info: QueueInfo) -> dict[str, Any]:
    return {"topic": info.topic, "group": info.group, "settings": dict(info.settings)}


def _partition_document(each: QueuePartition) -> dict[str, Any]:
    return {
        "partition": each.partition,
        "base": each.base,
        "frontier": each.frontier,
        "log_end_offset": each.log_end_offset,
        **{state: getattr(each, state) for state in STATES},
        "oldest_ready_us": each.oldest_ready_us,
        "accepted": each.accepted,
        "dropped": dict(each.dropped),
        "returned": each.returned,
        "charged": each.charged,
        "members": [{"member": member.member, "records": member.records} for member in each.members],
        "more_members": each.more_members,
        "runs_kept": each.runs_kept,
        "dead": each.dead,
        "outbox": each.outbox,
        "alarm": each.alarm,
        "blocked_by": each.blocked_by,
        "blocked_by_key": each.blocked_by_key,
    }


def _run_document(run: QueueRun) -> dict[str, Any]:
    return {
        "first": run.first,
        "end": run.end,
        "state": run.state,
        "deliveries": run.deliveries,
        "failures": run.failures,
        "due_us": run.due_us,
        "member": run.member or None,
        "error": run.error or None,
    }
