"""The names under which outputs and dead letters of queue groups are staged: by brokers, and by members.

A key is `(work:<id of the queue's topic>/<partition>/<group>, name of the topic that is written)`. The run of a batch
says whose attempt it was: a leader's, by its epoch, or a member's, by its lease. What is staged under such a key is
published by the group's leader alone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WORK_PREFIX: Final = "work:"

_QUERY: Final = re.compile(r"work:([0-9a-f]{32})/(\d{1,5})/(.+)", re.DOTALL)
_EPOCH: Final = re.compile(r"epoch:(\d{1,19})")
_LEASE: Final = re.compile(r"lease:(\d{1,19})\.(\d{1,19})\.(\d{1,9})")


class WorkPlace(NamedTuple):
    """A queue group in one partition."""

    topic_id: str
    partition: int
    group: str


class LeaseRun(NamedTuple):
    """The lease under which a member staged."""

    leader_epoch: int
    entry: int
    step: int


def is_of_queue(query_id: str) -> bool:
    """Whether queue groups alone decide under this query id."""
    return query_id.startswith(WORK_PREFIX)


def query_id_of(place: WorkPlace) -> str:
    return f"{WORK_PREFIX}{place.topic_id}/{place.partition}/{place.group}"


def place_of(query_id: str) -> WorkPlace | None:
    """None for what `query_id_of` does not make."""
    found = _QUERY.fullmatch(query_id)
    return WorkPlace(found[1], int(found[2]), found[3]) if found else None


def run_of_epoch(leader_epoch: int) -> str:
    return f"epoch:{leader_epoch}"


def run_of_lease(leader_epoch: int, entry: int, step: int) -> str:
    return f"lease:{leader_epoch}.{entry}.{step}"


def attempt_of(run_id: str) -> int | LeaseRun | None:
    """The leader's epoch, or the member's lease; None for another text."""
    if epoch := _EPOCH.fullmatch(run_id):
        return int(epoch[1])
    if lease := _LEASE.fullmatch(run_id):
        return LeaseRun(int(lease[1]), int(lease[2]), int(lease[3]))
    return None
