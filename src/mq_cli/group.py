"""`tritonmq group`: readers that share a cursor, and how far behind they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mq_cli.command_group import CommandGroup
from mq_cli.output import bootstrap_option, bytes_text, json_option, open_admin, time_text, timeout_option, write_json, write_table

if TYPE_CHECKING:
    from mq_client import GroupCursor


@click.group(cls=CommandGroup)
def group() -> None:
    """Groups of readers and how far they are."""


@group.command("list")
@json_option
@bootstrap_option
@timeout_option
def list_groups(as_json: bool, bootstrap: str, timeout_s: float) -> None:
    """List the groups that have a cursor anywhere."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = [admin.describe_group(name) for name in admin.list_groups()]
    if as_json:
        write_json([{"name": g.name, "topics": sorted({c.topic for c in g.cursors}), "lag": g.lag} for g in found])
        return
    write_table(
        ["group", "topics", "#partitions", "#members", "#lag"],
        [
            (
                g.name,
                ", ".join(sorted({c.topic for c in g.cursors})),
                len(g.cursors),
                len({member for c in g.cursors for member in c.members}),
                g.lag,
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
    if as_json:
        write_json({"name": found.name, "lag": found.lag, "cursors": [_document(cursor) for cursor in found.cursors]})
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
                f"{c.lag_us / 1e6:.1f}",
                time_text(c.moved_us),
                ", ".join(c.members) or "none",
                c.kind,
            )
            for c in found.cursors
        ],
    )


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
    }
