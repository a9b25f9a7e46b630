"""`tritonmq topic`: create, list, describe, alter, purge, delete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, answer_options, connection_options
from mq_cli.moments import WORDS, meaning, parse_place
from mq_cli.moving import not_over, wait_options, watch
from mq_cli.output import (
    Column,
    both,
    bytes_text,
    cell,
    checking_what_was_typed,
    confirm,
    counted,
    document,
    documents,
    or_null,
    say,
    show,
    time_text,
    write,
    write_json,
    write_rows,
    write_table,
    yes_option,
)
from mq_cli.settings_option import parse_pairs, settings_help
from mq_protocol.limits import PARTITIONS_PER_TOPIC_MAX, REPLICAS_MAX
from mq_protocol.names import SETTINGS, check_new_topic_name, check_topic_name, parse_settings

if TYPE_CHECKING:
    from mq_client import TopicDescription, TopicMade


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


def _with_offsets(
    offsets: Mapping[int, tuple[int, int]],
    stored: Mapping[int, int],
    waiting: Mapping[int, tuple[int, int]],
    held_by: Mapping[int, str],
) -> tuple[Column, ...]:
    """Columns of partitions, with what their leaders know: where the offsets begin and end, bytes, and the rest by the
    numbers of the partitions. What is not known is a question mark."""
    nowhere, due = (None, None), (0 if stored else None, None)
    return (
        *PARTITION_COLUMNS,
        Column("log_start_offset", "#start", lambda each: offsets.get(each.partition, nowhere)[0], _known),
        Column("log_end_offset", "#end", lambda each: offsets.get(each.partition, nowhere)[1], _known),
        Column("bytes", "#bytes", lambda each: stored.get(each.partition), _known),
        Column("scheduled", value=lambda each: waiting.get(each.partition, due)[0]),
        Column("next_due_us", value=lambda each: waiting.get(each.partition, due)[1]),
        Column("held_by", value=lambda each: held_by.get(each.partition)),
    )


def _known(value: object) -> object:
    return "?" if value is None else value


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


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, list, describe, alter, purge and delete topics."""


@topic.command(epilog=settings_help(SETTINGS))
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--partitions", "-p", type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX), default=1, show_default=True)
@click.option(
    "--replicas",
    "-r",
    type=click.IntRange(1, REPLICAS_MAX),
    help="Copies of each partition. Default: 3, or as many as there are brokers.",
)
@click.option(
    "--schema",
    metavar="'a long, b string'",
    help="The columns, as Spark's DDL. Default: records with key, value and headers.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. durability=os. May be repeated."
)
@click.option(
    "--broadcast",
    is_flag=True,
    help=(
        "For members that are there, nothing is kept: one replica, in memory, for a second "
        "(durability=memory, retention_ms=1s)."
    ),
)
@click.option("--if-not-exists", is_flag=True, help="If the topic exists, leave it as it is and exit with 0.")
@answer_options
def create(
    names: tuple[str, ...],
    partitions: int,
    replicas: int | None,
    schema: str | None,
    settings: tuple[str, ...],
    broadcast: bool,
    if_not_exists: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Create the topic NAME, or several that are alike. One that is refused keeps no other back."""
    from mq_client import TopicExists
    from mq_protocol.sql.ddl import parse_schema

    given: dict[str, Any] = {**parse_pairs(settings)}
    if broadcast:
        _check_broadcast(given, replicas)
        given, replicas = {**given, **_BROADCAST}, 1
    with checking_what_was_typed():
        for name in names:
            check_new_topic_name(name)
        parse_settings(given, replicas or REPLICAS_MAX)
        columns = None if schema is None else parse_schema(schema)
    with connection.admin() as admin:
        copies = replicas or min(3, len(admin.describe_cluster().brokers))
        if len(names) > 1:
            made_of = admin.create_topics(
                dict.fromkeys(names),
                partitions=partitions,
                replicas=copies,
                schema=columns,
                if_not_exists=if_not_exists,
                **given,
            )
            _tell_made(made_of, as_json=as_json)
            return
        [name], there = names, False
        try:
            made = admin.create_topic(name, partitions=partitions, replicas=copies, schema=columns, **given)
        except TopicExists:
            if not if_not_exists:
                raise
            made, there = admin.describe_topic(name), True
    if as_json:
        write_json(document(made, COLUMNS))
    elif there:
        kind = _schema(made) if made.typed else "records"
        say(f"topic {name} is there already: {counted(len(made.partitions), 'partition')}, {kind}; nothing was changed")
    else:
        say(f"created topic {name}: {counted(partitions, 'partition')}, {counted(copies, 'replica')} of each")


def _tell_made(made: list[TopicMade], *, as_json: bool) -> None:
    """What became of each. Exits with 1 if one of them was not made."""
    refused = [each for each in made if each.error is not None]
    if as_json:
        rows = [{"name": each.name, "was_there": each.was_there} for each in made]
        for row, each in zip(rows, made, strict=True):
            row["error"] = None if each.error is None else str(each.error)
        write_json(rows)
    else:
        there = sum(each.was_there for each in made)
        kept = f", {there:,} were there already" if there else ""
        say(f"created {counted(len(made) - len(refused) - there, 'topic')}{kept}")
        for each in refused:
            say(f"{each.name}: {each.error}")
    if refused:
        raise click.exceptions.Exit(1)


@topic.command("list")
@answer_options
def list_topics(as_json: bool, connection: Connection) -> None:
    """List the topics."""
    with connection.admin() as admin:
        found = admin.describe_topics()
    show(found, COLUMNS, as_json=as_json)


@topic.command()
@click.argument("name")
@answer_options
def describe(name: str, as_json: bool, connection: Connection) -> None:
    """A topic's schema, settings, partitions and offsets. Partitions without a leader have no offsets to show."""
    from mq_client import TritonMQError

    with connection.admin() as admin:
        found = admin.describe_topic(name)
        offsets: dict[int, tuple[int, int]] = {}
        stored: dict[int, int] = {}
        waiting: dict[int, tuple[int, int]] = {}
        held_by: dict[int, str] = {}
        if all(partition.leader for partition in found.partitions):
            try:
                offsets = admin.offsets(name)
                stored = admin.stored_bytes(name)
                waiting, held_by = admin.scheduled(name), admin.held_by(name)
            except TritonMQError as error:
                say(f"offsets are not known: {error}")
    partitions = _with_offsets(offsets, stored, waiting, held_by)
    if as_json:
        effective = {setting: value for setting, value, _ in effective_settings(found)}
        described = {"partitions": documents(found.partitions, partitions), "effective_settings": effective}
        write_json(document(found, COLUMNS) | described)
        return
    write(f"{found.name}: {_schema(found) if found.typed else 'records (key, value, headers)'}")
    for setting, value, is_default in effective_settings(found):
        write(f"  {setting} = {value}{' (default)' if is_default else ''}")
    if stored:
        records = sum(end - start for start, end in offsets.values())
        write(f"{counted(records, 'record')}, {bytes_text(sum(stored.values()))} on each replica")
    if waiting:
        batches, due_us = sum(each for each, _ in waiting.values()), min(due for _, due in waiting.values())
        write(f"scheduled: {batches:,} more to be published, the next at {time_text(due_us)}")
    for group in sorted(set(held_by.values())):
        numbers = ", ".join(str(number) for number, by in sorted(held_by.items()) if by == group)
        write(f"retention waits for group {group} in partition {numbers}")
    click.echo()
    write_rows(found.partitions, partitions)


def effective_settings(found: TopicDescription) -> list[tuple[str, str, bool]]:
    """Every setting of the topic: name, value, and whether that is the default."""
    in_force = parse_settings({n: v for n, v in found.settings.items() if n in SETTINGS}, _replicas(found) or 1)
    rows = []
    for setting in SETTINGS.values():
        given = found.settings.get(setting.name)
        default = str(in_force.min_insync_replicas) if setting.name == "min_insync_replicas" else setting.default
        rows.append((setting.name, default if given is None else given, given is None))
    return rows


def _live_settings() -> str:
    return ", ".join(sorted(setting.name for setting in SETTINGS.values() if setting.live))


@topic.command(epilog=f"Settings that can be changed: {_live_settings()}.")
@click.argument("name")
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX),
    help="The new number of partitions. It can only grow.",
)
@click.option(
    "--replicas", "-r", type=click.IntRange(1, REPLICAS_MAX), help="The new number of copies of each partition."
)
@click.option(
    "--add-column",
    "columns",
    multiple=True,
    metavar="'name type'",
    help="A nullable column to add to a typed topic, as Spark's DDL. May be repeated.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting to change; `NAME=` restores the default."
)
@wait_options
@answer_options
def alter(
    name: str,
    partitions: int | None,
    replicas: int | None,
    columns: tuple[str, ...],
    settings: tuple[str, ...],
    no_wait: bool,
    wait_s: float,
    as_json: bool,
    connection: Connection,
) -> int:
    """Change the topic NAME while it is in use.

    With more partitions, records that have a key go to other partitions than before. Added columns are null in what is
    there already, and in what producers write that do not know them; columns are never dropped, renamed or given
    another type.
    """
    from mq_protocol.sql.ddl import parse_schema

    if not (partitions or replicas or columns or settings):
        raise click.UsageError(
            "say what to change: --partitions, --replicas, --add-column 'name type' or --set NAME=VALUE"
        )
    given = {setting: value or None for setting, value in parse_pairs(settings, empty=True).items()}
    with checking_what_was_typed():
        check_topic_name(name)
        added = parse_schema(", ".join(columns)) if columns else None
    in_time = True
    with connection.admin() as admin:
        changed = admin.alter_topic(name, partitions=partitions, replicas=replicas, add_columns=added, **given)
        if replicas and not no_wait:
            moving = sum(bool(partition.moving_to) for partition in changed.partitions)
            in_time = watch(admin, wait_s, lambda: sum(m.topic == name for m in admin.moves()), moving) or not_over(
                wait_s
            )
            changed = admin.describe_topic(name)
    if as_json:
        write_json(document(changed, COLUMNS))
    else:
        copies = _replicas(changed)
        say(f"topic {name}: {counted(len(changed.partitions), 'partition')}, {counted(copies, 'replica')} of each")
        if columns:
            say(f"  {_schema(changed)}")
        for setting, value in sorted(changed.settings.items()):
            say(f"  {setting} = {value}")
    return 0 if in_time else 1


@topic.command()
@click.argument("name")
@click.option(
    "--if-empty", is_flag=True, help="Delete it only if it holds no message, and without asking. Else exit with 1."
)
@yes_option
@connection_options
def delete(name: str, if_empty: bool, yes: bool, connection: Connection) -> None:
    """Delete the topic NAME and everything in it. Asks first; in a script it needs --yes."""
    with connection.admin() as admin:
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


_before = click.option(
    "--before", callback=meaning(_parse_before), metavar="OFFSET|TIME", help="Only messages before it. Default: all."
)


@topic.command()
@click.argument("name")
@_before
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Only this partition.")
@yes_option
@connection_options
def purge(name: str, before: int | datetime | None, partition: int | None, yes: bool, connection: Connection) -> None:
    """Drop messages of the topic NAME now. The topic stays, and its offsets are never given again."""
    with connection.admin() as admin:
        admin.describe_topic(name)
        which = "all messages" if before is None else f"the messages before {before}"
        where = f"topic {name}" if partition is None else f"partition {partition} of topic {name}"
        confirm(f"Drop {which} of {where}?", yes=yes)
        starts = admin.purge(name, partition, before)
    write_table(["topic", "#partition", "#start"], [(name, *each) for each in starts.items()])
