"""`tritonmq queue`: queue groups, whose members are lent records and settle each one: declared, shown, changed, worked
off by hand."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, answer_options, connection_options
from mq_cli.messages import count_option, records_json_option, write_records
from mq_cli.moments import EARLIEST, meaning, parse_place
from mq_cli.output import (
    Column,
    F,
    both,
    checking_what_was_typed,
    confirm,
    counted,
    document,
    documents,
    json_only,
    or_null,
    say,
    time_text,
    write,
    write_json,
    write_rows,
    write_table,
    yes_option,
)
from mq_cli.queue_asking import asking, check_names, say_if_paused, write_swept
from mq_cli.settings_option import parse_pairs, settings_help
from mq_protocol.names import check_new_group_name, check_topic_name
from mq_protocol.queue_settings import QUEUE_SETTINGS, parse_queue_settings, usual_dead_letter

if TYPE_CHECKING:
    from mq_client import QueueDescription, QueueInfo, QueueRun

STATES: Final = ("ready", "leased", "delayed", "doomed", "parked")

_STATES = both(*(f"#{state}" for state in STATES))
_INFO = (*json_only("topic", "group"), Column("settings", value=lambda info: dict(info.settings)))
_SUMS = (
    *_STATES,
    *both("#accepted"),
    Column("charged"),
    *both("#dead"),
    Column("outbox"),
    Column("members", "#members", text=len),
)
_PARTITION = (
    *both("#partition", "#base"),
    Column("frontier"),
    Column("log_end_offset", "#end"),
    *_STATES,
    Column("oldest_ready_us"),
    *both("#accepted"),
    Column("", "#dead", "dead"),
    Column("dropped", value=lambda each: dict(each.dropped)),
    *both("#returned", "#charged"),
    Column("", "dropped", lambda each: ", ".join(f"{why} {count}" for why, count in each.dropped.items()) or "none"),
    Column("", "oldest ready", lambda each: time_text(each.oldest_ready_us) or "none"),
    Column("members", value=lambda each: documents(each.members, json_only("member", "records"))),
    *json_only("more_members", "runs_kept", "dead", "outbox", "alarm", "blocked_by", "blocked_by_key"),
)
_RUN = (
    *both("#first"),
    Column("end", "#last", text=lambda end: end - 1),
    *both("state", "#deliveries", "#failures"),
    Column("due_us", "not before", text=time_text),
    or_null("member", "member"),
    or_null("error", "error"),
)


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


def _names(command: F) -> F:
    return click.argument("topic")(click.argument("group")(command))


@click.group(cls=CommandGroup)
def queue() -> None:
    """Declare, list, describe, alter and delete queue groups, and look at what waits in them."""


def _parse_start(text: str) -> str | datetime:
    place = parse_place(text)
    if isinstance(place, int):
        raise click.BadParameter("a queue begins at earliest, latest or a time, not at an offset")
    return place


@queue.command(epilog=settings_help(QUEUE_SETTINGS))
@_names
@click.option(
    "--from",
    "start",
    callback=meaning(_parse_start),
    default=EARLIEST,
    show_default=True,
    metavar="earliest|latest|TIME",
    help="The first record that the queue has. TIME is ISO 8601, or 15m for 15 minutes ago.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. lease_ms=5m. May be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="If the queue exists, leave it as it is and exit with 0.")
@answer_options
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
        write_json(document(info, _INFO))
    elif there is not None:
        say(f"queue {group} of topic {topic} is there already; nothing was changed")
    else:
        say(f"declared queue {group} of topic {topic}")
        _say_settings(info)


@queue.command(epilog=settings_help(QUEUE_SETTINGS))
@_names
@click.option(
    "--set",
    "settings",
    multiple=True,
    required=True,
    metavar="NAME=VALUE",
    help="A setting to change; `NAME=` restores the default. May be repeated.",
)
@answer_options
def alter(topic: str, group: str, settings: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """Change settings of GROUP while it is in use. They hold at once, for what is there already too."""
    given = parse_pairs(settings, empty=True)
    with checking_what_was_typed():
        check_names(topic, group)
        parse_queue_settings({name: value for name, value in given.items() if value}, topic, partly=True)
    with connection.admin() as admin:
        info = admin.alter_queue(topic, group, **{name: value or None for name, value in given.items()})
    if as_json:
        write_json(document(info, _INFO))
    else:
        say(f"queue {group} of topic {topic}")
        _say_settings(info)


@queue.command("list")
@click.argument("topic", required=False)
@answer_options
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
        write_json([document(info, _INFO) | (document(known, _SUMS) if known else {}) for info, known in found])
        return
    sums = [column for column in _SUMS if column.heading]
    rows = [
        (info.topic, info.group, *(each.text(each.of(known)) if known else "?" for each in sums), _paused(info))
        for info, known in found
    ]
    write_table(["topic", "group", *(each.heading for each in sums), "paused"], rows)


@queue.command()
@_names
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Also list the records of this partition, in runs.")
@click.option(
    "--state",
    type=State(STATES),
    help="With --partition: only records in this state.  [default: all that are not settled]",
)
@answer_options
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
        described = document(found.info, _INFO) | document(found, _SUMS)
        described["partitions"] = documents(found.partitions, _PARTITION)
        if partition is not None:
            described["records"] = documents(runs, _RUN)
        write_json(described)
        return
    write(f"queue {group} of topic {topic}")
    for setting, value, is_default in _effective(found.info):
        if value:
            write(f"  {setting} = {value}{' (default)' if is_default else ''}")
    click.echo()
    write_rows(found.partitions, _PARTITION)
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
        write_rows(runs, _RUN)


@queue.command()
@_names
@yes_option
@connection_options
def delete(topic: str, group: str, yes: bool, connection: Connection) -> None:
    """Delete the queue group GROUP of TOPIC. No message is deleted."""
    with asking(topic, group, connection) as admin:
        admin.describe_queue(topic, group)
        confirm(f"Delete queue {group} of topic {topic}, and forget what it has settled?", yes=yes)
        admin.delete_queue(topic, group)
    say(f"deleted queue {group} of topic {topic}")


@queue.command()
@_names
@count_option(10)
@click.option("--state", type=State(STATES), default="ready", show_default=True, help="Of messages in this state.")
@records_json_option
@connection_options
def peek(topic: str, group: str, count: int, state: str, as_json: bool, connection: Connection) -> None:
    """Write messages of GROUP that are ready, or in another state, by partition and offset. Nothing is lent or
    counted."""
    with asking(topic, group, connection) as admin:
        write_records(admin, topic, lambda: admin.peek_queue(topic, group, count, state), as_json=as_json)


@queue.command()
@_names
@count_option(1)
@records_json_option
@connection_options
def pop(topic: str, group: str, count: int, as_json: bool, connection: Connection) -> None:
    """Take ready messages off the queue and write them. They are settled: no member is lent them any more."""
    with asking(topic, group, connection) as admin:
        if not write_records(admin, topic, lambda: admin.pop_queue(topic, group, count), as_json=as_json):
            say_if_paused(admin, topic, group)


@queue.command()
@_names
@yes_option
@answer_options
def purge(topic: str, group: str, yes: bool, as_json: bool, connection: Connection) -> None:
    """Settle every message that waits in GROUP and that no member holds. The messages stay in the topic."""
    with asking(topic, group, connection) as admin:
        known = admin.describe_queue(topic, group)
        waiting = known.ready + known.delayed + known.doomed + known.parked
        confirm(f"Settle {counted(waiting, 'message')} of queue {group} unworked?", yes=yes)
        swept = admin.purge_queue(topic, group)
    write_swept(swept, as_json=as_json)


@queue.command()
@click.argument("topic")
@click.argument("group", required=False)
@click.option("--to", metavar="TOPIC", help="Where all of them go.  [default: to where each came from]")
@click.option("--rate", type=click.FloatRange(0, 1_000_000, min_open=True), help="At most so many a second.")
@click.option("-n", "limit", type=click.IntRange(min=1), help="At most so many in all.")
@click.option(
    "--group",
    "through",
    metavar="NAME",
    help="The queue group that sends them, e.g. one that has settled those that it mended.  [default: redrive]",
)
@click.option("--declare", is_flag=True, help="Make the group of --group if it is not there: it sends every letter.")
@answer_options
def redrive(
    topic: str,
    group: str | None,
    to: str | None,
    rate: float | None,
    limit: int | None,
    through: str | None,
    declare: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Send the dead letters of TOPIC back to the topics that they came from. Or, with GROUP: make its parked messages
    ready again, as if they had never failed.

    \b
    tritonmq queue redrive jobs.dead --rate 100     the letters in jobs.dead
    tritonmq queue redrive jobs workers             what workers has parked

    Each letter is sent exactly once per --group, so the next call sends only what is new. Ctrl-C stops it, and the next
    call goes on. A letter that cannot be sent stays where it is, and the command exits with 1.
    """
    if group is None:
        _redrive_letters(Letters(topic, to, rate, limit, through or "redrive", declare), as_json, connection)
        return
    if to is not None or rate is not None or limit is not None or through is not None or declare:
        raise click.UsageError("--to, --rate, -n, --group and --declare are for a dead-letter topic: leave out GROUP")
    with asking(topic, group, connection) as admin:
        swept = admin.redrive_queue(topic, group)
    write_swept(swept, as_json=as_json)


class Letters(NamedTuple):
    """Which dead letters to send back, and how."""

    topic: str
    to: str | None
    rate: float | None
    limit: int | None
    group: str
    declare: bool


def _redrive_letters(letters: Letters, as_json: bool, connection: Connection) -> None:
    from mq_client import Redriven

    with checking_what_was_typed():
        check_names(letters.topic, letters.group)
        if letters.to is not None:
            check_topic_name(letters.to)
    sent, found = 0, Redriven({}, {})

    def count(records: int) -> None:
        nonlocal sent
        sent += records

    try:
        with connection.admin() as admin:
            found = admin.redrive_topic(
                letters.topic,
                to=letters.to,
                group=letters.group,
                declare=letters.declare,
                rate=letters.rate,
                limit=letters.limit,
                on_sent=count,
            )
    finally:
        if not found.sent and sent:
            say(f"{counted(sent, 'letter')} sent; the same command goes on with the rest")
    if as_json:
        write_json({"sent": dict(found.sent), "left": dict(found.left)})
    else:
        if found.sent:
            write_table(["topic", "#letters"], list(found.sent.items()))
        elif not found.left:
            say("no letters to send")
        for why, records in found.left.items():
            say(f"{counted(records, 'letter')} left: {why}")
    if found.left and letters.limit is None:
        raise click.exceptions.Exit(1)


@queue.command()
@_names
@connection_options
def pause(topic: str, group: str, connection: Connection) -> None:
    """Lend nothing more of GROUP. What its members hold they may still settle."""
    with asking(topic, group, connection) as admin:
        admin.pause_queue(topic, group)
    say(f"paused queue {group} of topic {topic}")


@queue.command()
@_names
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


def _paused(info: QueueInfo) -> str:
    return "yes" if info.settings.get("paused") == "true" else "no"
