"""`tritonmq group reset`: where a group goes on from, set by hand. Shown first, if asked to."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from mq_cli.connection import Connection, connection_options
from mq_cli.moments import EARLIEST, LATEST, parse_place
from mq_cli.output import Column, checking_what_was_typed, counted, json_option, say, show
from mq_protocol.names import check_group_name, check_topic_name

if TYPE_CHECKING:
    from mq_client import Admin, GroupCursor

_SPARK = "spark"


class Move(NamedTuple):
    """Of one partition: where the group is (None: nowhere), and where it is to be."""

    partition: int
    place: int | None
    goal: int


def _parse_to(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | int | datetime | None:
    try:
        return None if text is None else parse_place(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("name", metavar="GROUP")
@click.argument("topic")
@click.option(
    "--to",
    callback=_parse_to,
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
@json_option
@connection_options
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
