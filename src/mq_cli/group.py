"""`tritonmq group`: readers that share a cursor: how far behind they are, what they get next, moving and deleting
them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, connection_options
from mq_cli.output import (
    Column,
    both,
    bytes_text,
    checking_what_was_typed,
    confirm,
    counted,
    document,
    documents,
    json_only,
    json_option,
    say,
    show,
    time_text,
    write_json,
    write_rows,
    yes_option,
)
from mq_protocol.names import check_group_name, check_topic_name

if TYPE_CHECKING:
    from mq_client import Admin, GroupCursor, GroupDescription


SHORT_MEMBER = 8
"""So many characters of a member's id are shown where they tell it from the others."""


@click.group(
    cls=CommandGroup,
    lazy={
        "reset": (
            "mq_cli.group_reset:reset",
            "Move a group: to earliest, latest, an offset or a time, or by N records.",
        )
    },
)
def group() -> None:
    """List, describe, reset, peek and delete groups."""


def _topics(group: GroupDescription) -> list[str]:
    return sorted({cursor.topic for cursor in group.cursors})


def _kinds(group: GroupDescription) -> list[str]:
    return sorted({cursor.kind for cursor in group.cursors})


def _members(group: GroupDescription) -> int:
    return len({member for cursor in group.cursors for member in cursor.members})


_LAG = (
    Column("lag", "#lag"),
    Column("lag_bytes", "#lag bytes", text=bytes_text),
    Column("lag_us", "#lag seconds", text=lambda lag_us: f"{lag_us / 1e6:.1f}"),
)
COLUMNS = (
    Column("name", "group"),
    Column("label", "label", lambda group: group.label or None, lambda label: label or ""),
    Column("", "reads as", _kinds, ", ".join),
    Column("topics", "topics", _topics, ", ".join),
    Column("reads_as", value=_kinds),
    Column("", "#partitions", lambda group: len(group.cursors)),
    Column("", "#members", _members),
    *_LAG,
    Column("silent"),
)


def _reads_as(cursor: GroupCursor) -> str:
    return cursor.kind if cursor.leads else f"{cursor.kind} (no leader answers; as a follower knows it)"


def cursor_columns(short: Mapping[str, str]) -> tuple[Column, ...]:
    """`short`: what members are called in a table."""
    return (
        *both("topic", "#partition", "#offset"),
        Column("log_end_offset", "#end"),
        *_LAG,
        Column("moved_us", "moved", text=time_text),
        Column("", "member", lambda cursor: short.get(cursor.member, "none")),
        Column("member", value=lambda cursor: cursor.member or None),
        *json_only("members", "kind", "leads"),
        Column("", "reads as", _reads_as),
    )


@group.command("list")
@json_option
@connection_options
def list_groups(as_json: bool, connection: Connection) -> None:
    """List the groups that have a cursor, and the lag of each in records, bytes and seconds.

    The label of a Spark query's group is the query's name.
    """
    with connection.admin() as admin:
        found = admin.describe_groups()
    _say_who_is_silent(found)
    show(found, COLUMNS, as_json=as_json)


@group.command()
@click.argument("name")
@json_option
@connection_options
def describe(name: str, as_json: bool, connection: Connection) -> None:
    """Show the cursor of the group NAME in each partition, and its lag in records, bytes and seconds. Its label will do
    where one group alone is called so."""
    with connection.admin() as admin:
        found = _named_or_labelled(admin, name)
    _say_who_is_silent([found])
    if as_json:
        write_json(document(found, COLUMNS) | {"cursors": documents(found.cursors, cursor_columns({}))})
        return
    short = _short_ids({member for cursor in found.cursors for member in cursor.members})
    write_rows(found.cursors, cursor_columns(short))
    if found.label:
        say(f"group {found.name}, label {found.label}")
    for member in sorted(short):
        held = [f"{c.topic}-{c.partition}" for c in found.cursors if c.member == member]
        say(f"member {short[member]} has {', '.join(held) or 'no partition: there are more members than partitions'}")


def _named_or_labelled(admin: Admin, name: str) -> GroupDescription:
    from mq_client import InvalidRequest, UnknownGroup

    try:
        return admin.describe_group(name)
    except (UnknownGroup, InvalidRequest):  # a label may be no name that a group can have
        called = [group for group in admin.describe_groups() if group.label == name]
        if len(called) != 1:
            raise
        return called[0]


def _short_ids(members: set[str]) -> dict[str, str]:
    """What each is called in a table: its id, or the beginning of it where that is enough to tell them apart."""
    beginnings = {member[:SHORT_MEMBER] for member in members}
    return {member: member[:SHORT_MEMBER] if len(beginnings) == len(members) else member for member in members}


@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("topic")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="The largest number of messages.",
)
@click.option("--json", "as_json", is_flag=True, help="Write whole records, one JSON object per line.")
@connection_options
def peek(name: str, topic: str, count: int, as_json: bool, connection: Connection) -> None:
    """Write the next messages that GROUP will get of TOPIC. The group is not moved."""
    from mq_cli.messages import MessageWriter

    with checking_what_was_typed():
        check_group_name(name)
        check_topic_name(topic)
    writer = MessageWriter(as_json=as_json, template=None, for_terminal=sys.stdout.isatty())
    with connection.admin() as admin:
        writer.knows(admin.describe_topic(topic))
        for record in admin.peek(topic, name, count):
            writer.write(record)
    writer.flush()


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option(
    "--force", is_flag=True, help="Delete the group even while it has members. Their subscriptions end with an error."
)
@yes_option
@connection_options
def delete(names: tuple[str, ...], force: bool, yes: bool, connection: Connection) -> None:
    """Delete the cursors of GROUP. No message is deleted. Refused while the group has members."""
    with checking_what_was_typed():
        for name in names:
            check_group_name(name)
    with connection.admin() as admin:
        for name in names:
            admin.describe_group(name)  # all or none: a name that is not there is told before any is deleted
        what = f"group {names[0]}" if len(names) == 1 else counted(len(names), "group")
        confirm(f"Delete {what}, and forget how far they are?", yes=yes)
        for name in names:
            admin.delete_group(name, force=force)
            say(f"deleted group {name}")


def _say_who_is_silent(groups: Sequence[GroupDescription]) -> None:
    silent = sorted({address for group in groups for address in group.silent})
    if silent:
        say(f"no answer from {', '.join(silent)}: partitions that only they keep are missing here")
