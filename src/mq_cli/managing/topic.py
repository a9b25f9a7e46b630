"""`tritonmq topic`: create, list, describe, alter, purge, delete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mq_cli.commands import argument, command_group, flag, option
from mq_cli.connection import CONNECTION, Connection
from mq_cli.managing.moving import WATCHING, Watching
from mq_cli.output import (
    JSON,
    YES,
    Column,
    both,
    bytes_text,
    cell,
    confirm,
    counted,
    document,
    documents,
    json_only,
    or_null,
    say,
    say_settings,
    time_text,
    write,
    write_json,
    write_rows,
    write_settings,
    write_table,
)
from mq_cli.values import WORDS, checking, checking_what_was_typed, meaning, pairs, parse_place, settings_help
from mq_protocol.errors import TopicExists, TritonMQError
from mq_protocol.limits import PARTITIONS_PER_TOPIC_MAX, REPLICAS_MAX
from mq_protocol.names import SETTINGS, check_new_topic_name, check_topic_name, parse_settings

if TYPE_CHECKING:
    from mq_client import Admin, TopicDescription, TopicMade


def _replicas(found: TopicDescription) -> int:
    return max((len(partition.replicas) for partition in found.partitions), default=0)


def _schema(found: TopicDescription) -> str:
    from mq_protocol.sql.ddl import format_schema

    return format_schema(found.schema)


PARTITION_COLUMNS = (
    *both("#partition"),
    or_null("leader", "#leader", cell),
    Column("leader_epoch"),
    *both("replicas"),
    Column("isr", "in sync", lambda partition: sorted(partition.isr)),
)
COLUMNS = (
    Column("name", "topic"),
    Column("topic_id"),
    Column("", "#partitions", lambda topic: len(topic.partitions)),
    Column("", "#replicas", _replicas),
    Column("", "#without leader", lambda topic: sum(not each.leader for each in topic.partitions)),
    Column("schema", "schema", lambda topic: _schema(topic) if topic.typed else None, lambda text: text or "records"),
    Column("settings", value=lambda topic: dict(sorted(topic.settings.items()))),
    Column("partitions", value=lambda topic: documents(topic.partitions, PARTITION_COLUMNS)),
)


class _Known(NamedTuple):
    """What leaders say of partitions, by their numbers: where the offsets begin and end, bytes, what is scheduled and
    when the first of it is due, and which group holds back retention."""

    offsets: Mapping[int, tuple[int, int]] = MappingProxyType({})
    stored: Mapping[int, int] = MappingProxyType({})
    scheduled: Mapping[int, tuple[int, int]] = MappingProxyType({})
    held_by: Mapping[int, str] = MappingProxyType({})

    @classmethod
    def of(cls, admin: Admin, found: TopicDescription) -> _Known:
        """Nothing while a partition has no leader, or one does not answer."""
        try:
            if all(partition.leader for partition in found.partitions):
                name = found.name
                return cls(admin.offsets(name), admin.stored_bytes(name), admin.scheduled(name), admin.held_by(name))
        except TritonMQError as error:
            say(f"offsets are not known: {error}")
        return cls()

    def columns(self) -> tuple[Column, ...]:
        """Columns of partitions. What is not known is a question mark."""
        nowhere, due = (None, None), (0 if self.stored else None, None)
        return (
            *PARTITION_COLUMNS,
            Column(
                "log_start_offset", "#start", lambda each: self.offsets.get(each.partition, nowhere)[0], _or_unknown
            ),
            Column("log_end_offset", "#end", lambda each: self.offsets.get(each.partition, nowhere)[1], _or_unknown),
            Column("bytes", "#bytes", lambda each: self.stored.get(each.partition), _or_unknown),
            Column("scheduled", value=lambda each: self.scheduled.get(each.partition, due)[0]),
            Column("next_due_us", value=lambda each: self.scheduled.get(each.partition, due)[1]),
            Column("held_by", value=lambda each: self.held_by.get(each.partition)),
        )

    def write(self) -> None:
        if self.stored:
            records = sum(end - start for start, end in self.offsets.values())
            write(f"{counted(records, 'record')}, {bytes_text(sum(self.stored.values()))} on each replica")
        if self.scheduled:
            batches, due_us = (
                sum(each for each, _ in self.scheduled.values()),
                min(due for _, due in self.scheduled.values()),
            )
            write(f"scheduled: {batches:,} more to be published, the next at {time_text(due_us)}")
        for group in sorted(set(self.held_by.values())):
            numbers = ", ".join(str(number) for number, by in sorted(self.held_by.items()) if by == group)
            write(f"retention waits for group {group} in partition {numbers}")


def _or_unknown(value: object) -> object:
    return "?" if value is None else value


_MADE = (
    *json_only("name", "was_there"),
    Column("error", value=lambda made: None if made.error is None else str(made.error)),
)
_BROADCAST = {"durability": "memory", "retention_ms": "1s"}
"""Settings of a topic that keeps nothing for who is away. A second is the shortest retention."""


def _check_broadcast(given: dict[str, Any], replicas: int | None) -> None:
    """Refuse what `--broadcast` says otherwise."""
    if replicas not in (None, 1):
        raise click.UsageError(
            f"--broadcast keeps one replica, and --replicas {replicas} is given: leave one of the two out"
        )
    for name, value in _BROADCAST.items():
        if given.get(name, value) != value:
            raise click.UsageError(
                f"--broadcast means {name}={value}, and {name}={given[name]} is given: leave one of the two out"
            )


@command_group()
def topic() -> None:
    """Create, list, describe, alter, purge and delete topics."""


def _schema_given(text: str) -> object:
    from mq_protocol.sql.ddl import parse_schema

    return parse_schema(text)


@topic.command(epilog=settings_help(SETTINGS))
def create(
    names: tuple[str, ...] = argument("NAME...", nargs=-1, required=True, callback=checking(check_new_topic_name)),
    partitions: int = option("", "-p", type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX), default=1),
    replicas: int | None = option(
        "Copies of each partition. Default: 3, or as many as there are brokers.",
        "-r",
        type=click.IntRange(1, REPLICAS_MAX),
    ),
    schema: str | None = option(
        "The columns, as Spark's DDL. Default: records with key, value and headers.",
        metavar="'a long, b string'",
        callback=checking(_schema_given),
    ),
    settings: dict[str, Any] = pairs("A setting, e.g. durability=os. May be repeated."),
    broadcast: bool = flag(
        "For members that are there, nothing is kept: one replica, in memory, for a second "
        "(durability=memory, retention_ms=1s)."
    ),
    if_not_exists: bool = flag("If the topic exists, leave it as it is and exit with 0."),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> int:
    """Create the topic NAME, or several that are alike. One that is refused keeps no other back."""
    if broadcast:
        _check_broadcast(settings, replicas)
        settings, replicas = {**settings, **_BROADCAST}, 1
    with checking_what_was_typed():
        parse_settings(settings, replicas or REPLICAS_MAX)
    with connection.admin() as admin:
        copies = replicas or min(3, len(admin.describe_cluster().brokers))
        asked = {"partitions": partitions, "replicas": copies, "schema": schema, **settings}
        if len(names) > 1:
            made = admin.create_topics(dict.fromkeys(names), if_not_exists=if_not_exists, **asked)
            return _tell_made(made, as_json=as_json)
        [name], there = names, False
        try:
            found = admin.create_topic(name, **asked)
        except TopicExists:
            if not if_not_exists:
                raise
            found, there = admin.describe_topic(name), True
    if as_json:
        write_json(document(found, COLUMNS))
    elif there:
        kind = _schema(found) if found.typed else "records"
        say(
            f"topic {name} is there already: {counted(len(found.partitions), 'partition')}, {kind}; nothing was changed"
        )
    else:
        say(f"created topic {name}: {counted(partitions, 'partition')}, {counted(copies, 'replica')} of each")
    return 0


def _tell_made(made: list[TopicMade], *, as_json: bool) -> int:
    """What became of each. The exit code: 1 if one of them was not made."""
    refused = [each for each in made if each.error is not None]
    if as_json:
        write_json(documents(made, _MADE))
    else:
        there = sum(each.was_there for each in made)
        kept = f", {there:,} were there already" if there else ""
        say(f"created {counted(len(made) - len(refused) - there, 'topic')}{kept}")
        for each in refused:
            say(f"{each.name}: {each.error}")
    return 1 if refused else 0


@topic.command("list", columns=COLUMNS)
def list_topics(admin: Admin) -> list[TopicDescription]:
    """List the topics."""
    return admin.describe_topics()


@topic.command()
def describe(admin: Admin, name: str = argument(), as_json: bool = JSON) -> None:
    """A topic's schema, settings, partitions and offsets. Partitions without a leader have no offsets to show."""
    found = admin.describe_topic(name)
    known = _Known.of(admin, found)
    if as_json:
        effective = {setting: value for setting, value, _ in effective_settings(found)}
        described = {"partitions": documents(found.partitions, known.columns()), "effective_settings": effective}
        write_json(document(found, COLUMNS) | described)
        return
    write(f"{found.name}: {_schema(found) if found.typed else 'records (key, value, headers)'}")
    write_settings(effective_settings(found))
    known.write()
    click.echo()
    write_rows(found.partitions, known.columns())


def effective_settings(found: TopicDescription) -> list[tuple[str, str, bool]]:
    """Every setting of the topic: name, value, and whether that is the default."""
    in_force = parse_settings({n: v for n, v in found.settings.items() if n in SETTINGS}, _replicas(found) or 1)
    rows = []
    for setting in SETTINGS.values():
        given = found.settings.get(setting.name)
        default = str(in_force.min_insync_replicas) if setting.name == "min_insync_replicas" else setting.default
        rows.append((setting.name, default if given is None else given, given is None))
    return rows


_LIVE = ", ".join(sorted(setting.name for setting in SETTINGS.values() if setting.live))


@topic.command(epilog=f"Settings that can be changed: {_LIVE}.")
def alter(
    name: str = argument(callback=checking(check_topic_name)),
    partitions: int | None = option(
        "The new number of partitions. It can only grow.", "-p", type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX)
    ),
    replicas: int | None = option(
        "The new number of copies of each partition.", "-r", type=click.IntRange(1, REPLICAS_MAX)
    ),
    columns: tuple[str, ...] = option(
        "A nullable column to add to a typed topic, as Spark's DDL. May be repeated.",
        "--add-column",
        multiple=True,
        metavar="'name type'",
        callback=checking(_schema_given),
    ),
    settings: dict[str, Any] = pairs("A setting to change; `NAME=` restores the default.", empty=True),
    watching: Watching = WATCHING,
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> int:
    """Change the topic NAME while it is in use.

    With more partitions, records that have a key go to other partitions than before. Added columns are null in what is
    there already, and in what producers write that do not know them; columns are never dropped, renamed or given
    another type.
    """
    if not (partitions or replicas or columns or settings):
        raise click.UsageError(
            "say what to change: --partitions, --replicas, --add-column 'name type' or --set NAME=VALUE"
        )
    given = {setting: value or None for setting, value in settings.items()}
    in_time = True
    with connection.admin() as admin:
        changed = admin.alter_topic(
            name, partitions=partitions, replicas=replicas, add_columns=", ".join(columns) or None, **given
        )
        if replicas and not watching.no_wait:
            moving = sum(bool(partition.moving_to) for partition in changed.partitions)
            in_time = watching.to_the_end(lambda: sum(m.topic == name for m in admin.moves()), moving)
            changed = admin.describe_topic(name)
    if as_json:
        write_json(document(changed, COLUMNS))
    else:
        copies = _replicas(changed)
        say(f"topic {name}: {counted(len(changed.partitions), 'partition')}, {counted(copies, 'replica')} of each")
        if columns:
            say(f"  {_schema(changed)}")
        say_settings(dict(sorted(changed.settings.items())))
    return 0 if in_time else 1


@topic.command()
def delete(
    admin: Admin,
    name: str = argument(),
    if_empty: bool = flag("Delete it only if it holds no message, and without asking. Else exit with 1."),
    yes: bool = YES,
) -> None:
    """Delete the topic NAME and everything in it. Asks first; in a script it needs --yes."""
    admin.describe_topic(name)  # nobody is asked about a topic that is not there
    if not if_empty:
        confirm(f"Delete topic {name} and everything in it?", yes=yes)
    admin.delete_topic(name, if_empty=if_empty)
    say(f"deleted topic {name}")


def _parse_before(text: str) -> int | datetime:
    place = parse_place(text)
    if isinstance(place, str):
        raise click.BadParameter(f"{text!r} is neither an offset nor {WORDS}")
    return place


@topic.command()
def purge(
    admin: Admin,
    name: str = argument(),
    before: int | datetime | None = option(
        "Only messages before it. Default: all.", callback=meaning(_parse_before), metavar="OFFSET|TIME"
    ),
    partition: int | None = option("Only this partition.", "-p", type=click.IntRange(0)),
    yes: bool = YES,
) -> None:
    """Drop messages of the topic NAME now. The topic stays, and its offsets are never given again."""
    admin.describe_topic(name)
    which = "all messages" if before is None else f"the messages before {before}"
    where = f"topic {name}" if partition is None else f"partition {partition} of topic {name}"
    confirm(f"Drop {which} of {where}?", yes=yes)
    starts = admin.purge(name, partition, before)
    write_table(["topic", "#partition", "#start"], [(name, *each) for each in starts.items()])
