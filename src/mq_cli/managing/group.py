"""`tritonmq group`: readers that share a cursor: how far behind they are, what they get next, moving and deleting
them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from mq_cli.commands import argument, command_group, flag, option
from mq_cli.connection import CONNECTION, Connection
from mq_cli.output import (
    JSON,
    YES,
    Column,
    both,
    bytes_text,
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
)
from mq_cli.records.messages import RECORDS_JSON, count_option, write_records
from mq_cli.values import EARLIEST, LATEST, checking, meaning, parse_place
from mq_protocol.errors import GroupInUse, InvalidRequest, UnknownGroup
from mq_protocol.names import check_group_name, check_topic_name

if TYPE_CHECKING:
    from mq_client import Admin, GroupCursor, GroupDescription

SHORT_MEMBER = 8
"""So many characters of a member's id are shown where they tell it from the others."""


@command_group()
def group() -> None:
    """List, describe, reset, peek and delete groups."""


_SPARK = "spark"
Place = str | int | datetime


class Move(NamedTuple):
    """Of one partition: where the group is (None: nowhere), and where it is to be."""

    partition: int
    place: int | None
    goal: int


@group.command(short_help="Move a group: to earliest, latest, an offset or a time, or by N records.")
def reset(
    name: str = argument("GROUP", callback=checking(check_group_name)),
    topic: str = argument(callback=checking(check_topic_name)),
    to: Place | None = option(
        "The new place. TIME is ISO 8601, or 15m for 15 minutes ago.",
        callback=meaning(parse_place),
        metavar="earliest|latest|OFFSET|TIME",
    ),
    by: int | None = option("Move by N records in each partition; a negative N goes back.", type=int, metavar="N"),
    numbers: tuple[int, ...] = option(
        "Only this partition. May be repeated.", "--partition", "-p", type=click.IntRange(0), multiple=True
    ),
    plan: bool = flag("Only show what would move."),
    force: bool = flag("Move the group even while it has members. They continue from where they are."),
    as_json: bool = JSON,
    connection: Connection = CONNECTION,
) -> None:
    """Move the cursors of GROUP in TOPIC. `--to earliest` reads all again, `--to latest` skips all, `--by -100` goes
    back.

    Refused while the group has members. An offset outside a log is moved to its nearer end.
    """
    if (to is None) == (by is None):
        raise click.UsageError("say where to: either --to earliest|latest|OFFSET|TIME or --by N")
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
    try:
        return [cursor for cursor in admin.describe_group(name).cursors if cursor.topic == topic], ""
    except UnknownGroup as error:
        return [], str(error)


def _refuse_members(name: str, cursors: Collection[GroupCursor], *, force: bool) -> None:
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
    to: Place | None,
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


@group.command("list", columns=COLUMNS)
def list_groups(admin: Admin) -> list[GroupDescription]:
    """List the groups that have a cursor, and the lag of each in records, bytes and seconds.

    The label of a Spark query's group is the query's name.
    """
    found = admin.describe_groups()
    _say_who_is_silent(found)
    return found


@group.command()
def describe(admin: Admin, name: str = argument(), as_json: bool = JSON) -> None:
    """Show the cursor of the group NAME in each partition, and its lag in records, bytes and seconds. Its label will do
    where one group alone is called so."""
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
def peek(
    admin: Admin,
    name: str = argument("GROUP", callback=checking(check_group_name)),
    topic: str = argument(callback=checking(check_topic_name)),
    count: int = count_option(10),
    as_json: bool = RECORDS_JSON,
) -> None:
    """Write the next messages that GROUP will get of TOPIC. The group is not moved."""
    write_records(admin, topic, lambda: admin.peek(topic, name, count), as_json=as_json)


@group.command()
def delete(
    admin: Admin,
    names: tuple[str, ...] = argument("GROUP...", nargs=-1, required=True, callback=checking(check_group_name)),
    force: bool = flag("Delete the group even while it has members. Their subscriptions end with an error."),
    yes: bool = YES,
) -> None:
    """Delete the cursors of GROUP. No message is deleted. Refused while the group has members."""
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
