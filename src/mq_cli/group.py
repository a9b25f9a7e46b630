"""`tritonmq group`: readers that share a cursor: how far behind they are, what they get next, moving and deleting
them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, answer_options, connection_options
from mq_cli.messages import count_option, records_json_option, write_records
from mq_cli.moments import EARLIEST, LATEST, meaning, parse_place
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
    or_null,
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


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe, reset, peek and delete groups."""


_SPARK = "spark"


class Move(NamedTuple):
    """Of one partition: where the group is (None: nowhere), and where it is to be."""

    partition: int
    place: int | None
    goal: int


@group.command(short_help="Move a group: to earliest, latest, an offset or a time, or by N records.")
@click.argument("name", metavar="GROUP")
@click.argument("topic")
@click.option(
    "--to",
    callback=meaning(parse_place),
    metavar="earliest|latest|OFFSET|TIME",
    help="The new place. TIME is ISO 8601, or 15m for 15 minutes ago.",
)
@click.option("--by", type=int, metavar="N", help="Move by N records in each partition; a negative N goes back.")
@click.option(
    "--partition",
    "-p",
    "numbers",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition. May be repeated.",
)
@click.option("--plan", is_flag=True, help="Only show what would move.")
@click.option(
    "--force", is_flag=True, help="Move the group even while it has members. They continue from where they are."
)
@answer_options
def reset(
    name: str,
    topic: str,
    to: str | int | datetime | None,
    by: int | None,
    numbers: tuple[int, ...],
    plan: bool,
    force: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Move the cursors of GROUP in TOPIC. `--to earliest` reads all again, `--to latest` skips all, `--by -100` goes
    back.

    Refused while the group has members. An offset outside a log is moved to its nearer end.
    """
    if (to is None) == (by is None):
        raise click.UsageError("say where to: either --to earliest|latest|OFFSET|TIME or --by N")
    with checking_what_was_typed():
        check_group_name(name)
        check_topic_name(topic)
    with connection.admin() as admin:
        cursors, unknown_group = _cursors(admin, name, topic)
        logs = admin.offsets(topic)
        unknown = sorted(set(numbers) - logs.keys())
        if unknown:
            raise click.ClickException(f"topic {topic} has no partition {unknown[0]}: it has 0 to {len(logs) - 1}")
        wanted = {number: logs[number] for number in (sorted(numbers) or logs)}
        times = admin.offsets_at(topic, round(to.timestamp() * 1_000_000)) if isinstance(to, datetime) else {}
        moves = planned(wanted, {c.partition: c.offset for c in cursors}, to=to, by=by, times=times)
        if not moves:
            raise click.ClickException(
                unknown_group or f"group {name} has no place in topic {topic} to move by {by}: use --to"
            )
        if not plan:
            _refuse_members(name, cursors, force=force)
            # The brokers look again: a member that has just begun has no cursor, so the group is not told of yet.
            admin.move_group(name, {topic: {move.partition: move.goal for move in moves}}, unless_read=not force)
    if any(c.kind == _SPARK for c in cursors):
        say(
            f"group {name} shows a Spark query, which goes by its checkpoint: this changes what is shown until it "
            "reports again"
        )
    _write(topic, moves, as_json=as_json)
    if unknown_group and not plan:
        say(f"{unknown_group}; it was made now, `tritonmq group delete {shlex.quote(name)}` forgets it")
    elif unknown_group:
        say(f"{unknown_group}; it would be made")
    if plan:
        say("nothing was moved: leave out --plan to do it")


def _cursors(admin: Admin, name: str, topic: str) -> tuple[list[GroupCursor], str]:
    """The group's places in the topic; for a group that is not there yet none, and what says so with the nearest
    name."""
    from mq_client import UnknownGroup

    try:
        return [cursor for cursor in admin.describe_group(name).cursors if cursor.topic == topic], ""
    except UnknownGroup as error:
        return [], str(error)


def _refuse_members(name: str, cursors: Collection[GroupCursor], *, force: bool) -> None:
    from mq_client import GroupInUse

    members = sorted({member for cursor in cursors for member in cursor.members})
    if members and not force:
        raise GroupInUse(
            f"group {name!r} has {counted(len(members), 'member')} reading ({', '.join(members[:5])}): stop them "
            "first. With --force it is moved, and they continue from where they are"
        )


def planned(
    logs: Mapping[int, tuple[int, int]],
    places: Mapping[int, int],
    *,
    to: str | int | datetime | None,
    by: int | None,
    times: Mapping[int, int],
) -> list[Move]:
    """Where the group is to be in each partition of `logs[partition] = (start, end)`, within its log.

    `times`: each partition's first offset at or after the time, if `to` is one. With `by`, partitions without a place
    stay so.
    """
    moves = []
    for number, (start, end) in logs.items():
        place = places.get(number)
        if by is not None:
            if place is None:
                continue
            goal = place + by
        elif isinstance(to, datetime):
            goal = times[number]
        elif isinstance(to, int):
            goal = to
        else:
            goal = {EARLIEST: start, LATEST: end}[str(to)]
        moves.append(Move(number, place, min(max(goal, start), end)))
    return moves


def _write(topic: str, moves: list[Move], *, as_json: bool) -> None:
    columns = (
        Column("topic", "topic", lambda _move: topic),
        Column("partition", "#partition"),
        Column("from", "#from", "place"),
        Column("to", "#to", "goal"),
        Column("", "#by", lambda move: "" if move.place is None else f"{move.goal - move.place:+d}"),
    )
    show(moves, columns, as_json=as_json)


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
    or_null("label", "label"),
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
        or_null("member"),
        *json_only("members", "kind", "leads"),
        Column("", "reads as", _reads_as),
    )


@group.command("list")
@answer_options
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
@answer_options
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
@count_option(10)
@records_json_option
@connection_options
def peek(name: str, topic: str, count: int, as_json: bool, connection: Connection) -> None:
    """Write the next messages that GROUP will get of TOPIC. The group is not moved."""
    with checking_what_was_typed():
        check_group_name(name)
        check_topic_name(topic)
    with connection.admin() as admin:
        write_records(admin, topic, lambda: admin.peek(topic, name, count), as_json=as_json)


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
