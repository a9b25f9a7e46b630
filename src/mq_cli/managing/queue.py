"""`tritonmq queue`: queue groups, whose members are lent records and settle each one: declared, shown, changed, worked
off by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.commands import argument, command_group, flag, option, several
from mq_cli.connection import CONNECTION, Connection
from mq_cli.output import (
    JSON,
    YES,
    Column,
    both,
    cell,
    confirm,
    counted,
    document,
    documents,
    json_only,
    or_null,
    say,
    say_settings,
    show,
    time_text,
    write,
    write_json,
    write_rows,
    write_settings,
    write_table,
)
from mq_cli.records.messages import RECORDS_JSON, count_option, write_records
from mq_cli.values import EARLIEST, checking, checking_what_was_typed, meaning, pairs, parse_place, settings_help
from mq_protocol.errors import TritonMQError, UnknownQueue
from mq_protocol.names import check_group_name, check_new_group_name, check_topic_name
from mq_protocol.queues.settings import QUEUE_SETTINGS, parse_queue_settings, usual_dead_letter

if TYPE_CHECKING:
    from mq_client import Admin, QueueDescription, QueueInfo

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


_SWEPT = Column("partition", "#partition", itemgetter(0)), Column("records", "#messages", itemgetter(1))
_PAUSED: Final = "is paused, and lends nothing until `tritonmq queue resume {topic} {group}`"


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


TOPIC: Final = argument(callback=checking(check_topic_name))
GROUP: Final = argument(callback=checking(check_group_name))


@command_group()
def queue() -> None:
    """Declare, list, describe, alter and delete queue groups, and look at what waits in them."""


def _parse_start(text: str) -> str | datetime:
    place = parse_place(text)
    if isinstance(place, int):
        raise click.BadParameter("a queue begins at earliest, latest or a time, not at an offset")
    return place


@queue.command(epilog=settings_help(QUEUE_SETTINGS))
def declare(
    topic: str = TOPIC,
    group: str = argument(callback=checking(check_new_group_name)),
    start: str | datetime = option(
        "The first record that the queue has. TIME is ISO 8601, or 15m for 15 minutes ago.",
        "--from",
        callback=meaning(_parse_start),
        default=EARLIEST,
        metavar="earliest|latest|TIME",
    ),
    settings: dict[str, Any] = pairs("A setting, e.g. lease_ms=5m. May be repeated."),
    if_not_exists: bool = flag("If the queue exists, leave it as it is and exit with 0."),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> None:
    """Make the queue group GROUP of TOPIC."""
    with checking_what_was_typed():
        parse_queue_settings(settings, topic)
    with connection.admin() as admin:
        there = next((info for info in admin.list_queues(topic) if info.group == group), None)
        if there is not None and not if_not_exists:
            raise click.ClickException(
                f"queue {group} of topic {topic} exists already: `tritonmq queue alter` changes it, --if-not-exists "
                "leaves it as it is"
            )
        info = there or admin.declare_queue(topic, group, start, **settings)
    if as_json:
        write_json(document(info, _INFO))
    elif there is not None:
        say(f"queue {group} of topic {topic} is there already; nothing was changed")
    else:
        say(f"declared queue {group} of topic {topic}")
        say_settings(info.settings)


@queue.command(epilog=settings_help(QUEUE_SETTINGS))
def alter(
    topic: str = TOPIC,
    group: str = GROUP,
    settings: dict[str, Any] = pairs(
        "A setting to change; `NAME=` restores the default. May be repeated.", empty=True, required=True
    ),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> None:
    """Change settings of GROUP while it is in use. They hold at once, for what is there already too."""
    with checking_what_was_typed():
        parse_queue_settings({name: value for name, value in settings.items() if value}, topic, partly=True)
    with connection.admin() as admin:
        info = admin.alter_queue(topic, group, **{name: value or None for name, value in settings.items()})
    if as_json:
        write_json(document(info, _INFO))
    else:
        say(f"queue {group} of topic {topic}")
        say_settings(info.settings)


@queue.command("list")
def list_queues(
    admin: Admin,
    topic: str | None = argument(required=False, callback=checking(check_topic_name)),
    as_json: bool = JSON,
) -> None:
    """List the queue groups of all topics, or of TOPIC, and how many records of each are in which state."""
    found: list[tuple[QueueInfo, QueueDescription | None]] = []
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
        (
            info.topic,
            info.group,
            *(each.text(each.of(known)) if known else "?" for each in sums),
            cell(_is_paused(info)),
        )
        for info, known in found
    ]
    write_table(["topic", "group", *(each.heading for each in sums), "paused"], rows)


@queue.command()
def describe(
    topic: str = TOPIC,
    group: str = GROUP,
    partition: int | None = option("Also list the records of this partition, in runs.", "-p", type=click.IntRange(0)),
    state: str | None = option(
        "With --partition: only records in this state.  [default: all that are not settled]", type=State(STATES)
    ),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> None:
    """Show what became of each partition's records in GROUP, and which members hold some."""
    if state is not None and partition is None:
        raise click.UsageError("--state is about the records of one partition: give --partition too")
    with connection.admin() as admin:
        found = admin.describe_queue(topic, group)
        runs = [] if partition is None else admin.queue_records(topic, group, partition, state or "any")
    if as_json:
        described = document(found.info, _INFO) | document(found, _SUMS)
        described["partitions"] = documents(found.partitions, _PARTITION)
        if partition is not None:
            described["records"] = documents(runs, _RUN)
        write_json(described)
        return
    write(f"queue {group} of topic {topic}")
    write_settings(each for each in _effective(found.info) if each[1])
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
def delete(admin: Admin, topic: str = TOPIC, group: str = GROUP, yes: bool = YES) -> None:
    """Delete the queue group GROUP of TOPIC. No message is deleted."""
    admin.describe_queue(topic, group)
    confirm(f"Delete queue {group} of topic {topic}, and forget what it has settled?", yes=yes)
    admin.delete_queue(topic, group)
    say(f"deleted queue {group} of topic {topic}")


@queue.command()
def peek(
    admin: Admin,
    topic: str = TOPIC,
    group: str = GROUP,
    count: int = count_option(10),
    state: str = option("Of messages in this state.", type=State(STATES), default="ready"),
    as_json: bool = RECORDS_JSON,
) -> None:
    """Write messages of GROUP that are ready, or in another state, by partition and offset. Nothing is lent or
    counted."""
    write_records(admin, topic, lambda: admin.peek_queue(topic, group, count, state), as_json=as_json)


@queue.command()
def pop(
    admin: Admin,
    topic: str = TOPIC,
    group: str = GROUP,
    count: int = count_option(1),
    as_json: bool = RECORDS_JSON,
) -> None:
    """Take ready messages off the queue and write them. They are settled: no member is lent them any more."""
    written = write_records(admin, topic, lambda: admin.pop_queue(topic, group, count), as_json=as_json)
    if not written and _is_paused(admin.describe_queue(topic, group)):
        say(f"queue {group} of topic {topic} {_PAUSED.format(topic=topic, group=group)}")


@queue.command(columns=_SWEPT)
def purge(admin: Admin, topic: str = TOPIC, group: str = GROUP, yes: bool = YES) -> Iterable[tuple[int, int]]:
    """Settle every message that waits in GROUP and that no member holds. The messages stay in the topic."""
    known = admin.describe_queue(topic, group)
    waiting = known.ready + known.delayed + known.doomed + known.parked
    confirm(f"Settle {counted(waiting, 'message')} of queue {group} unworked?", yes=yes)
    return admin.purge_queue(topic, group).items()


@dataclass(frozen=True, slots=True)
class Letters:
    """Which dead letters to send back, and how."""

    to: str | None = option("Where all of them go.  [default: to where each came from]", metavar="TOPIC")
    rate: float | None = option("At most so many a second.", type=click.FloatRange(0, 1_000_000, min_open=True))
    limit: int | None = option("At most so many in all.", "-n", "", type=click.IntRange(1))
    through: str | None = option(
        "The queue group that sends them, e.g. one that has settled those that it mended.  [default: redrive]",
        "--group",
        metavar="NAME",
    )
    declare: bool = flag("Make the group of --group if it is not there: it sends every letter.")


@queue.command()
def redrive(
    topic: str = TOPIC,
    group: str | None = argument(required=False, callback=checking(check_group_name)),
    letters: Letters = several(Letters),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> int:
    """Send the dead letters of TOPIC back to the topics that they came from. Or, with GROUP: make its parked messages
    ready again, as if they had never failed.

    \b
    tritonmq queue redrive jobs.dead --rate 100     the letters in jobs.dead
    tritonmq queue redrive jobs workers             what workers has parked

    Each letter is sent exactly once per --group, so the next call sends only what is new. Ctrl-C stops it, and the next
    call goes on. A letter that cannot be sent stays where it is, and the command exits with 1.
    """
    if group is None:
        return _redrive_letters(topic, letters, as_json, connection)
    if letters != Letters():
        raise click.UsageError("--to, --rate, -n, --group and --declare are for a dead-letter topic: leave out GROUP")
    with connection.admin() as admin:
        show(admin.redrive_queue(topic, group).items(), _SWEPT, as_json=as_json)
    return 0


def _redrive_letters(topic: str, letters: Letters, as_json: bool, connection: Connection) -> int:
    """The exit code: 1 if some cannot be sent."""
    from mq_client import Redriven

    through = letters.through or "redrive"
    with checking_what_was_typed():
        check_group_name(through)
        if letters.to is not None:
            check_topic_name(letters.to)
    sent, found = 0, Redriven({}, {})

    def count(records: int) -> None:
        nonlocal sent
        sent += records

    try:
        with connection.admin() as admin:
            found = admin.redrive_topic(
                topic,
                to=letters.to,
                group=through,
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
    return 1 if found.left and letters.limit is None else 0


@queue.command()
def pause(admin: Admin, topic: str = TOPIC, group: str = GROUP) -> None:
    """Lend nothing more of GROUP. What its members hold they may still settle."""
    admin.pause_queue(topic, group)
    say(f"paused queue {group} of topic {topic}")


@queue.command()
def resume(admin: Admin, topic: str = TOPIC, group: str = GROUP) -> None:
    """Lend messages of GROUP again."""
    admin.resume_queue(topic, group)
    say(f"resumed queue {group} of topic {topic}")


def _effective(info: QueueInfo) -> list[tuple[str, str, bool]]:
    """Every setting: name, value, and whether that is the default."""
    usual = {setting.name: setting.default for setting in QUEUE_SETTINGS.values()}
    usual["dead_letter"] = usual_dead_letter(info.topic)
    effective = {**usual, **info.settings}
    return [(name, effective[name], name not in info.settings or effective[name] == usual[name]) for name in usual]


# ------------------------------------------------------------------ of who works on a queue


def check_declared(admin: Admin, topic: str, group: str, *, declare: bool) -> None:
    """`declare`: make the group if it is not there. Raises `click.ClickException` with the nearest name, and with what
    to do, if it is neither there nor to be made. A misspelt name would be a new group, which has all records still to
    do."""
    if any(info.group == group for info in admin.list_queues(topic)):
        return
    if declare:
        check_new_group_name(group)
        admin.declare_queue(topic, group)
        say(f"declared queue {group} of topic {topic}: it begins with the topic's first record")
        return
    try:
        admin.describe_queue(topic, group)  # the broker that was asked may not know of it yet, and the leaders do
    except UnknownQueue as error:
        raise click.ClickException(f"{error}; --declare makes it and goes on") from error


def say_what_waits(admin: Admin, topic: str, group: str) -> None:
    """One line on standard error. Says nothing of the records if a leader does not answer in the admin's time."""
    try:
        found = admin.describe_queue(topic, group)
    except TritonMQError:
        say(f"working on queue {group} of topic {topic}; not all of its leaders answer now")
        return
    others = [f"{count:,} {name}" for name in ("delayed", "leased") if (count := getattr(found, name))]
    waits = ", ".join([f"{counted(found.ready, 'record')} ready", *others])
    lends = f". It {_PAUSED.format(topic=topic, group=group)}" if _is_paused(found) else ""
    say(f"working on queue {group} of topic {topic}: {waits}{lends}")


def _is_paused(found: QueueInfo | QueueDescription) -> bool:
    return found.settings.get("paused") == "true"
