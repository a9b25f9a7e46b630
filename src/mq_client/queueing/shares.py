"""How a member's credit is handed out to the leaders with which it has sessions. Pure.

While nothing waits to be worked on, every leader has a share, so that whoever has a record may push it at once. While
the application is busy, credit goes in large pieces to one leader after the other: each lease is an entry in the
journal. Of a credit too small to be shared one leader has all; it is taken back when nothing comes there and another
one has something. Where several have, all members of a process give it to the same one (`Round`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mq_client.queueing.holdings import Credit

LEASES_EACH: Final = 16
STAYS_S: Final = 2.0
"""A partition comes first until it has lent so many times to each member of a process, or for so long."""

SHARE_BYTES_MIN: Final = 64 << 10
"""Credit is not shared so far that a leader may lend fewer bytes."""

BYTES_EACH_MIN: Final = 4 << 10
BYTES_TIMES: Final = 4
"""So many times what records took so far, and so many bytes at least, are given for each record: all bytes would lie
with leaders that have nothing. Of larger records a leader lends fewer, and is given more then."""


@dataclass(eq=False, slots=True)
class Account:
    """The credit of one session. All in all, since it began: `records` and `bytes` that it may be lent, `lent` and
    `lent_bytes` that it was. `sent`: records whose outcomes are on their way. `ready`: its leader has more. `recalled`:
    what is to hold once the leader says so, after some was taken back. `changed`: the leader is to hear of it.
    `watched`: it was asked to."""

    partition: int
    records: int = 0
    bytes: int = 0
    lent: int = 0
    lent_bytes: int = 0
    sent: int = 0
    ready: bool = False
    recalled: tuple[int, int] | None = None
    changed: bool = field(default=False)
    watched: bool = field(default=False)

    def watch(self) -> None:
        """Its leader is to say when it has something, also without credit."""
        if not self.watched:
            self.watched = self.changed = True

    @property
    def out(self) -> int:
        """What its leader may lend still."""
        records = self.records - self.lent
        return records if records > 0 and self.bytes > self.lent_bytes else 0

    @property
    def out_bytes(self) -> int:
        return max(self.bytes - self.lent_bytes, 0)

    def note_lent(self, records: int, size: int) -> None:
        self.lent += records
        self.lent_bytes += size

    def give(self, records: int, size: int) -> None:
        """So much more may be lent. Records without bytes, and bytes without records, are not kept."""
        spent = not self.out
        self.records = (self.lent if spent else self.records) + records
        self.bytes = (self.lent_bytes if spent else self.bytes) + size
        self.changed = True

    def recall(self, records: int, size: int) -> None:
        """No more than so many records and bytes are to be lent, once the leader has heard of it."""
        self.recalled = self.lent + records, self.lent_bytes + (min(size, self.out_bytes) if records else 0)
        self.changed = True

    def confirm(self, records: int) -> None:
        """The leader has heard of what was taken back."""
        if self.recalled is not None and records == self.recalled[0]:
            self.records, self.bytes = self.recalled
            self.recalled = None


class Round:
    """Owns which partition comes first, for all members of a queue in one process whose credit is too small to be
    shared. What they settle and are lent at one leader shares messages, and entries of its journal."""

    def __init__(self) -> None:
        self.members = 0
        self._first = 0
        self._lent = 0
        self._until = 0.0

    def note_lent(self) -> None:
        self._lent += 1

    def first(self, now: float) -> int:
        """Its number, modulo that of the partitions; the next one that has something comes in its place."""
        if self._lent >= LEASES_EACH * self.members or now >= self._until:
            self._first += 1
            self._lent, self._until = 0, now + STAYS_S
        return self._first


class Shares:
    """Owns whose turn it is, where credit is shared. `round`: whose it is where it is not."""

    def __init__(self, first: int) -> None:
        self._next = first
        self.round = Round()

    def hand_out(
        self,
        accounts: Iterable[Account],
        whole: Credit,
        held: Credit,
        *,
        now: float,
        hungry: bool,
        bytes_each: float = 0.0,
    ) -> None:
        """Give to some of these, and take from others. `held`: what the member holds, and what others may lend it.
        `now`: by the monotonic clock. `bytes_each`: what a record took so far."""
        every = list(accounts)
        rests = held.records >= whole.records and not any(account.out or account.sent for account in every)
        if not every or rests:  # it has all that it may, and no outcome is on its way
            return
        count = max(account.partition for account in every) + 1
        every = _begun_with(self._next % count, every)
        turn = _Turn(every, whole, held, max(BYTES_EACH_MIN, round(BYTES_TIMES * bytes_each)))
        ready = [account for account in every if account.ready]
        if turn.is_over:
            turn.cut()
        elif not ready:
            turn.share(hungry=hungry)
        elif hungry or turn.is_much:
            turn.give(ready if turn.spread else _begun_with(self.round.first(now) % count, ready), hungry=hungry)
            if hungry and turn.starves(ready):
                turn.take_back()
        if turn.moved_on is not None:
            self._next = turn.moved_on + 1


def _begun_with(first: int, accounts: list[Account]) -> list[Account]:
    """By partition, that one first."""
    return sorted(accounts, key=lambda account: (account.partition < first, account.partition))


class _Turn:
    """What is left of the credit while it is handed out."""

    def __init__(self, accounts: list[Account], whole: Credit, held: Credit, bytes_each: int) -> None:
        self._accounts = accounts
        self._bytes_each = bytes_each
        self._whole = whole
        self._records = whole.records - held.records - sum(max(0, account.out - account.sent) for account in accounts)
        self._bytes = whole.bytes - held.bytes - sum(account.out_bytes for account in accounts if account.out)
        parts = max(1, min(len(accounts), whole.records, whole.bytes // SHARE_BYTES_MIN))
        self._share = Credit(max(1, whole.records // parts), max(1, whole.bytes // parts))
        self._few_bytes = min(self._share.bytes, SHARE_BYTES_MIN)
        self.spread = parts == len(accounts)
        self.moved_on: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether more is out than the member may hold, since that was lowered."""
        return self._records < 0

    def cut(self) -> None:
        """Take back as much as is out too much, wherever it is."""
        for account in self._accounts:
            much = min(account.out, -self._records)
            if much > 0:
                self._records += much
                if account.recalled is None:
                    account.recall(account.out - much, account.out_bytes)

    @property
    def is_much(self) -> bool:
        records = self._records + sum(map(_set_free, self._accounts))
        return records * 2 >= self._whole.records and self._bytes * 2 >= self._whole.bytes

    def share(self, *, hungry: bool) -> None:
        """Nothing is ready: each has its share, and is given it again once half of it was lent."""
        for account in self._accounts:
            if account.out * 2 <= self._share.records and (hungry or self.is_much):
                self._give(account, self._share)

    def give(self, ready: list[Account], *, hungry: bool) -> None:
        """To leaders that have more: all to one while the application is busy, else half of it to each of two, and in
        small pieces only if nothing is on its way, neither records nor outcomes that set credit free."""
        parts = min(len(ready), 2) if hungry else 1
        most = Credit(max(1, self._whole.records // parts), max(1, self._whole.bytes // parts))
        nothing_comes = not any(account.sent or (account.ready and account.out) for account in self._accounts)
        least = 1 if nothing_comes else (most.records + 1) // 2
        for account in ready:
            if not (self._records > 0 or account.sent or account.out):
                continue
            if not self.spread and account.sent and account is not ready[0]:
                continue  # it may not lend again by the entry that settles: another one's time has come
            if self._give(account, most, least):
                if self.spread:
                    self.moved_on = account.partition
                if not hungry:
                    return

    def _give(self, account: Account, most: Credit, least: int = 1) -> bool:
        """Up to so much, with what it has, and no fewer records than `least`. Records whose outcomes are on their way
        to its leader are free there. Bytes alone are given to who has few for the records that it may lend."""
        if account.recalled is not None:
            return False
        out_bytes = account.out_bytes if account.out else 0
        free = _set_free(account)
        records = max(min(most.records - account.out, self._records + free), 0)
        much = (account.out + records) * self._bytes_each + SHARE_BYTES_MIN
        size = max(min(most.bytes - out_bytes, self._bytes, much), 0)
        if records < least:
            if not (account.out and size and out_bytes < self._few_bytes):
                return False
            records = 0
        if not (size or out_bytes):
            return False
        self._records -= max(0, records - free)
        self._bytes -= size
        account.give(records, size)
        return True

    def starves(self, ready: list[Account]) -> bool:
        """Whether nobody who has something may lend much of it."""
        return all(account.out == 0 or account.out_bytes < self._few_bytes for account in ready)

    def take_back(self) -> None:
        """From those with whom nothing comes: all but one record each and few bytes, where it was shared."""
        keep = 1 if self.spread and self._whole.records >= 2 * len(self._accounts) else 0
        for account in self._accounts:
            much = account.out > keep or (account.out and account.out_bytes > self._few_bytes)
            if not account.ready and much and account.recalled is None:
                account.recall(keep, self._few_bytes)


def _set_free(account: Account) -> int:
    """Records whose outcomes are on their way to its leader, and for which it may not lend others yet: it settles those
    before it lends."""
    return max(0, account.sent - account.out)
