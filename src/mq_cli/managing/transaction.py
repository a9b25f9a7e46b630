"""`tritonmq transaction`: what exactly-once queries have staged and decided, how a dead one is got rid of, and how
one goes on under another user's name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from mq_cli.access.principals import say_if_unknown
from mq_cli.commands import argument, command_group, flag, option
from mq_cli.output import (
    JSON,
    Column,
    both,
    bytes_text,
    documents,
    or_null,
    say,
    show,
    time_text,
    write,
    write_json,
    write_rows,
    yes_or_blank,
)
from mq_protocol.errors import TritonMQError, UnknownTransaction

if TYPE_CHECKING:
    from mq_client import AbortedTransaction, Admin, StagedSum, TransactionDescription

KEY: Final = argument("KEY")


def _decided(each: TransactionDescription | AbortedTransaction) -> int | None:
    return each.batch_id if each.batch_id >= 0 else None


def _micro_batches(part: StagedSum) -> str:
    first, last = part.first_batch_id, part.last_batch_id
    return str(first) if first == last else f"{first} to {last}"


_STAGED = (
    *both("topic", "#partition", "#batches", "#rows"),
    Column("bytes", "#bytes", text=bytes_text),
    Column("", "#micro-batches", _micro_batches),
    Column("first_micro_batch", value="first_batch_id"),
    Column("last_micro_batch", value="last_batch_id"),
    Column("since_us", "since", text=time_text),
    Column("pins", "pins the journal", text=yes_or_blank),
)
_COLUMNS = (
    Column("key"),
    Column("query", "key"),
    Column("sink", "sink", text=lambda sink: sink or "(rows name it)"),
    or_null("owner", "owner"),
    Column("last_decided", "#decided", _decided),
    Column("row_count"),
    Column("published", "published", text=lambda published: "yes" if published else "not yet"),
    Column("aborted"),
    or_null("changed_us"),
    Column("batches", "#staged"),
    Column("bytes", "#bytes", text=bytes_text),
    or_null("since_us", "since", lambda since_us: time_text(since_us or 0)),
    Column("pins", "pins a journal", text=yes_or_blank),
    Column("", "state", lambda each: "aborted" if each.aborted else ""),
    Column("staged", value=lambda each: documents(each.staged, _STAGED)),
    Column("silent"),
)


@command_group()
def transaction() -> None:
    """What exactly-once queries have staged and decided; abort one that is dead, or give it to another user.

    KEY is a query as `list` names it, or its id, as in the checkpoint's `metadata` file; with `:` and the sink behind
    it where it writes to several. A batch write's id is `app:` and its txnAppId.
    """


@transaction.command("list", columns=_COLUMNS)
def list_transactions(admin: Admin) -> Sequence[TransactionDescription]:
    """List the queries that have written: what they decided last, what they have staged, and which of them pin a
    journal."""
    found = admin.transactions()
    _say_what_is_missing(found)
    return found


@transaction.command("show")
def show_one(admin: Admin, key: str = KEY, as_json: bool = JSON) -> None:
    """What the query KEY has decided, and what it has staged in each partition."""
    found = admin.transactions(key)
    _say_what_is_missing(found)
    if not found:
        raise UnknownTransaction(f"no query has staged or decided anything as {key!r}: see `tritonmq transaction list`")
    if as_json:
        show(found, _COLUMNS, as_json=True)
        return
    for each in found:
        write(f"{each.key}: " + _state(each))
        write_rows(each.staged, _STAGED)


@transaction.command()
def give(
    admin: Admin,
    key: str = KEY,
    owner: str = option("Whose it is from then on.", "--to", required=True, metavar="User:NAME"),
    as_json: bool = JSON,
) -> None:
    """Give the query KEY to another user, who alone writes under it from then on.

    For a query that goes on under a new user name: stop it, give its key, and start it as the new user with its
    checkpoint. What it had decided is published as ever; a micro-batch that it had only staged is run again.

    May be given again. Needs the right to alter the transaction. A user whom no broker has seen since it started is
    given it too, with a warning, if you have the right `acls` on the cluster.
    """
    done = admin.give_transaction(key, owner)
    _warn_of_unknown(admin, done.owner)
    if as_json:
        write_json({"query": done.query, "sink": done.sink, "owner": done.owner, "former": done.former or None})
    elif done.former == done.owner:
        say(f"{done.query} is {done.owner}'s already")
    else:
        say(f"given: {done.query} is {done.owner}'s now; it was {done.former or 'nobody'}'s")


@transaction.command()
def abort(
    admin: Admin,
    key: str = KEY,
    yes: bool = flag("Do not ask for confirmation."),
    as_json: bool = JSON,
) -> int:
    """Fence the query KEY for ever, and remove what it has staged and not decided.

    For a query that is dead. Nothing is written under its key any more: one that still runs fails at its next
    micro-batch, and goes on only with a new checkpoint directory. What it had decided is published all the same.

    May be given again. Exits with 1 if some of it could not be done yet: the brokers do that later by themselves.
    """
    if not yes:
        _ask_back(admin.transactions(key), key)
    done = admin.abort_transaction(key)
    if as_json:
        write_json(
            {
                "query": done.query,
                "sink": done.sink,
                "last_decided": _decided(done),
                "published": done.published,
                "discarded_batches": done.discarded,
                "unreached": list(done.unreached),
            }
        )
    else:
        _tell(done)
    return 1 if done.unreached or not done.published else 0


def _ask_back(found: Sequence[TransactionDescription], key: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask for confirmation: give --yes")
    for each in found:
        say(f"{each.key}: {_state(each)}; {each.batches} staged batches, {bytes_text(each.bytes)}")
    click.confirm(f"Abort {key}? Nothing can be written under it afterwards, ever.", abort=True, err=True)


def _tell(done: AbortedTransaction) -> None:
    sink = f"into {done.sink}" if done.sink else "into the topics that its rows name"
    say(f"aborted: {done.query} writes nothing {sink} any more; {done.discarded} of its staged batches were removed")
    if done.batch_id >= 0:
        what = "is published" if done.published else "is not published everywhere yet: the brokers continue"
        say(f"micro-batch {done.batch_id}, which was decided before, {what}")
    for place in done.unreached:
        say(f"not reached: {place}. What is staged there is removed once it can be reached; or run this again")


def _warn_of_unknown(admin: Admin, owner: str) -> None:
    """The key is given by now, and may be given again: what cannot be found out is not said."""
    with contextlib.suppress(TritonMQError):  # such as PermissionDenied: to ask needs the right `acls`
        for known in admin.known_to_brokers(owner):
            say_if_unknown(known)


def _state(each: TransactionDescription) -> str:
    decided = f"micro-batch {each.batch_id} is decided" if each.batch_id >= 0 else "nothing is decided"
    if each.batch_id >= 0:
        decided += " and published" if each.published else ", and not published everywhere yet"
    return (
        decided
        + (f" ({time_text(each.changed_us)})" if each.changed_us else "")
        + (", aborted" if each.aborted else "")
    )


def _say_what_is_missing(found: Sequence[TransactionDescription]) -> None:
    for each in found[:1]:
        if each.silent:
            say(f"no answer from {', '.join(each.silent)}: what only they know is missing here")
        if each.left_out:
            say(f"{each.left_out} more are known and not listed: show one with `tritonmq transaction show KEY`")
