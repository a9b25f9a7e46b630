"""In whose name something is staged, decided, or moved: that of whoever asks, if it has one.

Whoever decides first under a key has it for himself, and whoever moves a query's cursor first has that
(core/machine/admission.py). In plain text nobody has a name: what is done there belongs to nobody, and is taken over by
who comes first with one.
"""

from __future__ import annotations

from typing import Final

from mq_broker.broker.transactions.requests import listed_name
from mq_broker.core.entries import TransactionKey
from mq_broker.core.machine.admission import not_owner
from mq_broker.core.machine.state import TransactionState
from mq_broker.security.authority import Asker
from mq_broker.security.names import ANONYMOUS
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.queues.work_keys import is_of_queue


def owner_of(asker: Asker, key: TransactionKey) -> str:
    """Who is to own what is written under the key. Nobody owns that of a queue group, whose members share one key."""
    return "" if is_of_queue(key.query_id) else name_of(asker)


def name_of(asker: Asker) -> str:
    """By which the asker owns something; empty for nobody."""
    return "" if asker.principal == ANONYMOUS else asker.text


def is_for_anybody(asker: Asker) -> bool:
    """Whether owners do not count for the asker: a superuser, a broker, and everybody where no rights are judged."""
    return asker.free or asker.superuser


def check_may_see(asker: Asker, key: TransactionKey, known: TransactionState) -> None:
    """Raises `PermissionDenied` for who asks about a key that is another user's, and has no right to describe it."""
    if known.owner in ("", asker.text) or is_for_anybody(asker):
        return
    if not asker.may(Operation.DESCRIBE, Kind.TRANSACTION, key.query_id):
        note_stranger(asker, Operation.DESCRIBE, key)
        raise not_owner(key)


OWNERS_RULE: Final = "it is another user's, who decided under it first or was given it"
"""Why the audit log says that something about a key was denied."""


def note_stranger(asker: Asker, operation: Operation, key: TransactionKey, why: str = OWNERS_RULE) -> None:
    """In the audit log, which names a query as listings do."""
    asker.note_denied(operation, Kind.TRANSACTION, listed_name(key.query_id), why)
