"""`tritonmq group`: readers that share a cursor, and how far behind they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mq_cli.command_group import CommandGroup
from mq_cli.output import (
    bootstrap_option,
    bytes_text,
    json_option,
    open_admin,
    say,
    time_text,
    timeout_option,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from mq_client import GroupCursor, GroupDescription


@click.group(cls=CommandGroup)
def group() -> None:
    """Groups of readers and how far they are."""


@group.command("list")
@json_option
@bootstrap_option
@timeout_option
def list_groups(as_json: bool, bootstrap: str, timeout_s: float) -> None:
    """List the groups that have a cursor anywhere, and how far behind each is: in records, in bytes, in time."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_groups()
    _say_who_is_silent(found)
    if as_json:
        write_json([_summary(group) for group in found])
        return
    write_table(
        ["group", "reads as", "topics", "#partitions", "#members", "#lag", "#lag bytes", "#lag seconds"],
        [
            (
                g.name,
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
@bootstrap_option
@timeout_option
def describe(name: str, as_json: bool, bootstrap: str, timeout_s: float) -> None:
    """Where the group NAME is in each partition, and how far behind: in records, in bytes, in time."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_group(name)
    _say_who_is_silent([found])
    if as_json:
        write_json(_summary(found) | {"cursors": [_document(cursor) for cursor in found.cursors]})
        return
    write_table(
        ["topic", "#partition", "#offset", "#end", "#lag", "#lag bytes", "#lag seconds", "moved", "members", "reads as"],
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
                ", ".join(c.members) or "none",
                c.kind if c.leads else f"{c.kind} (no leader answers; as a follower knows it)",
            )
            for c in found.cursors
        ],
    )


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
        "members": list(cursor.members),
        "kind": cursor.kind,
        "leads": cursor.leads,
    }
