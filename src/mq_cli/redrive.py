"""`tritonmq queue redrive`: dead letters sent back, and parked messages made ready again."""

from __future__ import annotations

from typing import NamedTuple

import click

from mq_cli.connection import Connection, connection_options
from mq_cli.output import checking_what_was_typed, counted, json_option, say, write_json, write_table
from mq_cli.queue_asking import asking, check_names, write_swept
from mq_protocol.names import check_topic_name


@click.command()
@click.argument("topic")
@click.argument("group", required=False)
@click.option("--to", metavar="TOPIC", help="Where all of them go.  [default: to where each came from]")
@click.option("--rate", type=click.FloatRange(0, 1_000_000, min_open=True), help="At most so many a second.")
@click.option("-n", "limit", type=click.IntRange(min=1), help="At most so many in all.")
@click.option(
    "--group",
    "through",
    metavar="NAME",
    help="The queue group that sends them, e.g. one that has settled those that it mended.  [default: redrive]",
)
@click.option("--declare", is_flag=True, help="Make the group of --group if it is not there: it sends every letter.")
@json_option
@connection_options
def redrive(
    topic: str,
    group: str | None,
    to: str | None,
    rate: float | None,
    limit: int | None,
    through: str | None,
    declare: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Send the dead letters of TOPIC back to the topics that they came from. Or, with GROUP: make its parked messages
    ready again, as if they had never failed.

    \b
    tritonmq queue redrive jobs.dead --rate 100     the letters in jobs.dead
    tritonmq queue redrive jobs workers             what workers has parked

    Each letter is sent exactly once per --group, so the next call sends only what is new. Ctrl-C stops it, and the next
    call goes on. A letter that cannot be sent stays where it is, and the command exits with 1.
    """
    if group is None:
        _redrive_letters(Letters(topic, to, rate, limit, through or "redrive", declare), as_json, connection)
        return
    if to is not None or rate is not None or limit is not None or through is not None or declare:
        raise click.UsageError("--to, --rate, -n, --group and --declare are for a dead-letter topic: leave out GROUP")
    with asking(topic, group, connection) as admin:
        swept = admin.redrive_queue(topic, group)
    write_swept(swept, as_json=as_json)


class Letters(NamedTuple):
    """Which dead letters to send back, and how."""

    topic: str
    to: str | None
    rate: float | None
    limit: int | None
    group: str
    declare: bool


def _redrive_letters(letters: Letters, as_json: bool, connection: Connection) -> None:
    from mq_client import Redriven

    with checking_what_was_typed():
        check_names(letters.topic, letters.group)
        if letters.to is not None:
            check_topic_name(letters.to)
    sent, found = 0, Redriven({}, {})

    def count(records: int) -> None:
        nonlocal sent
        sent += records

    try:
        with connection.admin() as admin:
            found = admin.redrive_topic(
                letters.topic,
                to=letters.to,
                group=letters.group,
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
    if found.left and letters.limit is None:
        raise click.exceptions.Exit(1)
