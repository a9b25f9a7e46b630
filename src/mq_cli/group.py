"""`tritonmq group`: readers that share a cursor: how far behind they are, what they get next, moving and deleting
them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, connection_options
from mq_cli.output import (
    bytes_text,
    checking_what_was_typed,
    confirm,
    counted,
    json_option,
    say,
    time_text,
    write_json,
    write_table,
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
    if as_json:
        write_json([_summary(group) for group in found])
        return
    write_table(
        ["group", "label", "reads as", "topics", "#partitions", "#members", "#lag", "#lag bytes", "#lag seconds"],
        [
            (
                g.name,
                g.label,
                ", ".join(_kinds(g)),
                ", ".join(_topics(g)),
                len(g.cursors),
                len({member for c in g.cursors for member in c.members}),
                g.lag,
                bytes_text(g.lag_bytes),
                _seconds(g.lag_us),
            )
            for g in found
        ],
    )


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
        write_json(_summary(found) | {"cursors": [_document(cursor) for cursor in found.cursors]})
        return
    short = _short_ids({member for cursor in found.cursors for member in cursor.members})
    write_table(
        ["topic", "#partition", "#offset", "#end", "#lag", "#lag bytes", "#lag seconds", "moved", "member", "reads as"],
        [
            (
                c.topic,
                c.partition,
                c.offset,
                c.log_end_offset,
                c.lag,
                bytes_text(c.lag_bytes),
                _seconds(c.lag_us),
                time_text(c.moved_us),
                short.get(c.member, "none"),
                c.kind if c.leads else f"{c.kind} (no leader answers; as a follower knows it)",
            )
            for c in found.cursors
        ],
    )

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


def _topics(group: GroupDescription) -> list[str]:
    return sorted({cursor.topic for cursor in group.cursors})


def _kinds(group: GroupDescription) -> list[str]:
    return sorted({cursor.kind for cursor in group.cursors})


def _seconds(microseconds: int) -> str:
    return f"{microseconds / 1e6:.1f}"


def _say_who_is_silent(groups: Sequence[GroupDescription]) -> None:
    silent = sorted({address for group in groups for address in group.silent})
    if silent:
        say(f"no answer from {', '.join(silent)}: partitions that only they keep are missing here")


def _summary(group: GroupDescription) -> dict[str, Any]:
    return {
        "name": group.name,
        "label": group.label or None,
        "topics": _topics(group),
        "reads_as": _kinds(group),
        "lag": group.lag,
        "lag_bytes": group.lag_bytes,
        "lag_us": group.lag_us,
        "silent": list(group.silent),
    }


def _document(cursor: GroupCursor) -> dict[str, Any]:
    return {
        "topic": cursor.topic,
        "partition": cursor.partition,
        "offset": cursor.offset,
        "log_end_offset": cursor.log_end_offset,
        "lag": cursor.lag,
        "lag_bytes": cursor.lag_bytes,
        "lag_us": cursor.lag_us,
        "moved_us": cursor.moved_us,
        "member": cursor.member or None,
        "members": list(cursor.members),
        "kind": cursor.kind,
        "leads": cursor.leads,
    }
