"""What the commands about queue groups share: who asks the brokers, and whether a group is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import click

from mq_cli.connection import Connection
from mq_cli.output import Column, checking_what_was_typed, counted, say, show
from mq_protocol.errors import TritonMQError, UnknownQueue
from mq_protocol.names import check_group_name, check_new_group_name, check_topic_name

if TYPE_CHECKING:
    from mq_client import Admin, QueueDescription

_PAUSED: Final = "is paused, and lends nothing until `tritonmq queue resume {topic} {group}`"


@contextmanager
def asking(topic: str, group: str, connection: Connection) -> Iterator[Admin]:
    """Who asks the brokers, once the names can be right."""
    with checking_what_was_typed():
        check_names(topic, group)
    with connection.admin() as admin:
        yield admin


def check_names(topic: str, group: str) -> None:
    check_topic_name(topic)
    check_group_name(group)


def write_swept(swept: Mapping[int, int], *, as_json: bool) -> None:
    """`{partition: records}`."""
    columns = Column("partition", "#partition", itemgetter(0)), Column("records", "#messages", itemgetter(1))
    show(swept.items(), columns, as_json=as_json)


def check_declared(admin: Admin, topic: str, group: str, *, declare: bool) -> None:
    """`declare`: make the group if it is not there. Raises `click.ClickException` with the nearest name, and with what
    to do, if it is neither there nor to be made. A misspelt name would be a new group, which has all records still to
    do."""
    if any(info.group == group for info in admin.list_queues(topic)):
        return
    if declare:
        check_new_group_name(group)
        admin.declare_queue(topic, group)
        say(f"declared queue {group} of topic {topic}: it begins with the topic's first record")
        return
    try:
        admin.describe_queue(topic, group)  # the broker that was asked may not know of it yet, and the leaders do
    except UnknownQueue as error:
        raise click.ClickException(f"{error}; --declare makes it and goes on") from error


def say_what_waits(admin: Admin, topic: str, group: str) -> None:
    """One line on standard error. Says nothing of the records if a leader does not answer in the admin's time."""
    try:
        found = admin.describe_queue(topic, group)
    except TritonMQError:
        say(f"working on queue {group} of topic {topic}; not all of its leaders answer now")
        return
    others = [f"{count:,} {name}" for name in ("delayed", "leased") if (count := getattr(found, name))]
    waits = ", ".join([f"{counted(found.ready, 'record')} ready", *others])
    lends = f". It {_PAUSED.format(topic=topic, group=group)}" if _is_paused(found) else ""
    say(f"working on queue {group} of topic {topic}: {waits}{lends}")


def say_if_paused(admin: Admin, topic: str, group: str) -> None:
    """Why nothing was taken off the queue, on standard error, if that is why."""
    if _is_paused(admin.describe_queue(topic, group)):
        say(f"queue {group} of topic {topic} {_PAUSED.format(topic=topic, group=group)}")


def _is_paused(found: QueueDescription) -> bool:
    return found.settings.get("paused") == "true"
