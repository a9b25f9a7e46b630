"""What opening a replica's log comes to: all that a partition is built of.

A journal is opened with its listener, and a partition is built with its open journal. `JournalEvents` stands between
the two, so that neither exists in a state in which it lacks the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mq_broker.core.messages import DiskRefused, Event, Flushed, LogReplaced
from mq_broker.measured import ALARMS
from mq_broker.storage.interface import OpenJournal
from mq_broker.storage.offset_index import OffsetIndex

log = logging.getLogger(__name__)


class JournalEvents:
    """A journal's listener: what it reports, as events of the core.

    `to` says where they go. It is called once, before anything is asked of the journal: a journal that was asked for
    nothing has nothing to report.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._feed: Callable[[Event], None]
        self._close: Callable[[str], None]

    def to(self, feed: Callable[[Event], None], close: Callable[[str], None]) -> None:
        """`close`: what is to be done with the replica if its journal was altered."""
        self._feed, self._close = feed, close

    def flushed(self, index: int, leader_epoch: int) -> None:
        self._feed(Flushed(index, leader_epoch))

    def refused(self, first_index: int, reason: str) -> None:
        log.warning("%s: the disk took nothing from entry %d on: %s", self._name, first_index, reason)
        self._feed(DiskRefused(first_index, reason))

    def replaced(self, log_id: str, reason: str) -> None:
        log.warning("%s: the log is another now, %s: %s", self._name, log_id, reason)
        ALARMS.add("log_replaced")
        self._feed(LogReplaced(log_id, reason))

    def altered(self, reason: str) -> None:
        self._close(reason)


@dataclass(frozen=True, slots=True)
class Opened:
    """`found`: the open journal, and what recovery said of it. `events`: that journal's listener. `index`: empty, or
    with what the journal's snapshot stands for."""

    found: OpenJournal
    events: JournalEvents
    index: OffsetIndex
