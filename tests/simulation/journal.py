"""A simulated journal and the disk under it, keeping the contract of `mq_broker.storage.interface.Journal`.

The loop's side (`entries`) changes at once; the files follow, through orders carried out in rounds, as a writer thread
does it. What a crash leaves is decided here: what was synced, and by chance some of what was written since. A
truncation, once carried out, is durable. A journal may begin after a snapshot, which is durable before the entries that
it stands for go (rule 13).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mq_broker.core.entries import Entry, stored_bytes
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import Checkpoint, RecoveredLog
from tests.simulation.loop import Loop


class Listener(Protocol):
    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have the process take it in: now, or when it runs again."""

    def begins(self, first_index: int) -> None: ...
    def flushed(self, index: int, leader_epoch: int) -> None: ...
    def refused(self, first_index: int, reason: str, entries: tuple[Entry, ...]) -> None: ...
    def replaced(self, log_id: str, reason: str) -> None: ...


@dataclass(slots=True)
class DiskCondition:
    """How a broker's disk is doing, now. `sync_ms`: how long a sync takes, at least and at most."""

    full: bool = False
    sync_ms: tuple[float, float] = (0.5, 8.0)
    fail_next_sync: bool = False
    may_lose: Callable[[], bool] = lambda: True


class Checkpointed(NamedTuple):
    """`beside`: what the shell keeps with it."""

    log_id: str
    snapshot: Snapshot
    beside: object


class Copy(NamedTuple):
    """Of a directory, as somebody made it."""

    log_id: str
    files: tuple[Entry, ...]
    snapshot: Snapshot | None
    checkpoint: Checkpointed | None
    remembered: int


class _Append(NamedTuple):
    generation: int
    entries: tuple[Entry, ...]


class _Truncate(NamedTuple):
    generation: int
    last_index: int


class _Shorten(NamedTuple):
    generation: int
    snapshot: Snapshot


class Journal:
    """One replica's journal: what the loop sees, what the files hold, how much of that is synced.

    - `entries` is the loop's truth, of what follows `snapshot`; `_files` follow it; what is up to index `_synced`
      survives a power loss, and so does the snapshot
    - `_checkpoint` is of what was synced when it was stored, of the log that it names; it spares reading, and no entry
    - `log_id` names one unbroken life of the log: made anew whenever the log may lack what it reported as flushed
    - `recovery` is the number under which the log was begun, or goes on (rule 15); the disk knows of
      `_remembered`
    """

    def __init__(self, loop: Loop, name: str, durability: str, disk: DiskCondition) -> None:
        self.durability = durability
        self.entries: list[Entry] = []
        self.snapshot: Snapshot | None = None
        self.recovery = self._remembered = 0
        self.present = False
        """There is something of it on the disk."""
        self._loop = loop
        self._name = name
        self._disk = disk
        self._ids = 0
        self.log_id = ""
        self._renew()
        self._listener: Listener | None = None
        self._files: list[Entry] = []
        self._files_snapshot: Snapshot | None = None
        self._synced = 0
        self._checkpoint: Checkpointed | None = None
        self._shortened = 0
        self._orders: list[_Append | _Truncate | _Shorten] = []
        self._busy = False
        self._life = 0
        self._generation = 0
        self._carried_out = 0
        self._cuts: list[tuple[int, int]] = []
        self._reported = 0
        self._told_ms = 0.0
        self._refused: int | None = None
        self._over = False
        self.lacks_up_to = 0
        """What was put back to an older copy of itself may lack entries up to there, though it is named."""

    # ------------------------------------------------------------------ what others may ask

    @property
    def base(self) -> int:
        """The index after which the journal begins."""
        return self.snapshot.last_index if self.snapshot is not None else 0

    @property
    def last_index(self) -> int:
        return self.base + len(self.entries)

    def entry(self, index: int) -> Entry:
        return self.entries[index - self.base - 1]

    def span(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries `first .. last`, as far as there are such."""
        return tuple(self.entries[max(0, first - self.base - 1) : max(0, last - self.base)])

    @property
    def durable_base(self) -> int:
        return self._files_snapshot.last_index if self._files_snapshot is not None else 0

    @property
    def durable_end(self) -> int:
        """The last index that is as durable as promised."""
        return self._synced if self.durability == "fsync" else self._files_end

    @property
    def durable_snapshot(self) -> Snapshot | None:
        return self._files_snapshot

    @property
    def durable(self) -> list[Entry]:
        """The files' entries, from the one after `durable_base` on."""
        return self._files

    @property
    def surely_kept(self) -> list[Entry]:
        """Of the files' entries, those that are as durable as promised."""
        return self._files[: max(0, self.durable_end - self.durable_base)]

    @property
    def durable_epoch(self) -> int:
        """The epoch of the last entry that is as durable as promised, or of what a snapshot stands for; 0 of an empty
        one."""
        if self._files:
            return self._files[-1].leader_epoch
        return self.durable_snapshot.last_epoch if self.durable_snapshot is not None else 0

    def durable_entry(self, index: int) -> Entry:
        return self._files[index - self.durable_base - 1]

    @property
    def _files_end(self) -> int:
        return self.durable_base + len(self._files)

    def _keep_files(self, last_index: int) -> None:
        """Of the files, nothing above that stays."""
        del self._files[max(0, last_index - self.durable_base) :]
        self._synced = min(self._synced, self._files_end)

    @staticmethod
    def life_of(log_id: str) -> int:
        """Which of its broker's logs of that partition this is: the first is 1. 0 for no log at all."""
        return int(log_id.rpartition(".")[2] or 0)

    def _renew(self) -> None:
        self._ids += 1
        self.log_id = f"{self._name}.{self._ids}"

    # ------------------------------------------------------------------ the loop's side

    def open(self, listener: Listener) -> RecoveredLog:
        """Recover: what the files hold is synced, and then served."""
        self._life += 1
        self.present = True
        self._listener = listener
        self.recovery = self._remembered
        self._synced = self._files_end
        self.entries = list(self._files)
        self.snapshot = self._files_snapshot
        self._shortened = self.base
        self._orders.clear()
        self._cuts.clear()
        self._busy = False
        self._generation = self._carried_out = 0
        self._reported = self.last_index
        self._told_ms = 0.0
        self._refused = None
        self._over = False
        kept = self._fitting()
        if kept is None:
            return RecoveredLog(tuple(self.entries), self.snapshot)
        last = kept.snapshot.last_index
        known = self.span(self.base + 1, last)
        runs = [(entry.index, entry.leader_epoch) for entry in known]
        epochs = tuple(run for run, before in zip(runs, [(0, 0), *runs], strict=False) if run[1] != before[1])
        sizes = array("I", map(stored_bytes, known))
        checkpoint = Checkpoint(kept.snapshot, epochs, sizes)
        return RecoveredLog(self.span(last + 1, self.last_index), self.snapshot, checkpoint)

    def _fitting(self) -> Checkpointed | None:
        kept = self._checkpoint
        fits = (
            kept is not None and kept.log_id == self.log_id and self.base < kept.snapshot.last_index <= self.last_index
        )
        return kept if fits else None

    @property
    def kept(self) -> object:
        """What was kept with the checkpoint that the log was opened with, or would be."""
        kept = self._fitting()
        return None if kept is None else kept.beside

    @property
    def kept_index(self) -> int:
        kept = self._fitting()
        return self.base if kept is None else kept.snapshot.last_index

    def keep(self, snapshot: Snapshot, beside: object) -> None:
        """Store a checkpoint, if the disk has all that it is of."""
        if self.durability != "memory" and not self._over and snapshot.last_index <= self._synced:
            self._checkpoint = Checkpointed(self.log_id, snapshot, beside)

    def append(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, f"entry {entry.index} written after {self.last_index}"
            self.entries.append(entry)
        self._order(_Append(self._generation, entries))

    def truncate(self, last_index: int) -> None:
        if last_index < self.last_index:
            self._cut(last_index)

    def shorten(self, snapshot: Snapshot) -> None:
        """Begin with this snapshot. It is written, durably; then what it stands for goes, and the listener is told."""
        if snapshot.last_index > self._shortened:
            self._shortened = snapshot.last_index
            self._order(_Shorten(self._generation, snapshot))

    def adopt(self, recovery: int) -> None:
        """To go on under it. The disk has it a little later, or never if the process ends before."""
        self.recovery = recovery

        def remember(life: int) -> None:
            if life == self._life:
                self._remembered = max(recovery, self._remembered)

        self._loop.after(self._loop.often_short(1, 1_500), remember, self._life)

    def _cut(self, last_index: int) -> None:
        cut = self.entries[last_index - self.base :]
        if cut and self._loop.chance(0.6):
            stale = self._loop.random.choice(cut)
            self._tell_soon(
                self._loop.often_short(0, 50), self._tell_stale, self._life, stale.index, stale.leader_epoch
            )
        self._generation += 1
        self._cuts.append((self._generation, last_index))
        del self.entries[last_index - self.base :]
        self._reported = min(self._reported, last_index)
        self._order(_Truncate(self._generation, last_index))

    def _tell_stale(self, life: int, index: int, epoch: int) -> None:
        """An answer that crossed with the cut. Told only while that very entry is not there: of one that is, it would
        be a lie."""
        if index <= self.base:
            return
        there = self.entry(index) if index <= self.last_index else None
        if life == self._life and self._listener is not None and (there is None or there.leader_epoch != epoch):
            self._listener.flushed(index, epoch)

    def _order(self, order: _Append | _Truncate | _Shorten) -> None:
        if self._over:
            return
        self._orders.append(order)
        if not self._busy:
            self._busy = True
            self._loop.after(self._loop.between(0.02, 0.5), self._round, self._life)

    # ------------------------------------------------------------------ the writer's side

    def _round(self, life: int) -> None:
        if life != self._life or self._over:
            return
        if not self._orders:
            self._busy = False
            return
        orders, self._orders = self._orders, []
        for order in orders:
            self._carried_out = order.generation
            self._carry_out(order)
        low, high = self._disk.sync_ms
        delay = self._loop.often_short(low, high) if self.durability == "fsync" else self._loop.between(0.01, 0.2)
        self._loop.after(delay, self._sync, life)

    def _carry_out(self, order: _Append | _Truncate | _Shorten) -> None:
        match order:
            case _Append(_, entries):
                self._write(entries)
            case _Truncate(_, last_index):
                if self._refused is None or last_index < self._refused:
                    self._keep_files(last_index)
                    self._refused = None
            case _Shorten(_, snapshot):
                if self._refused is None and not self._disk.full:
                    del self._files[: snapshot.last_index - self.durable_base]
                    self._files_snapshot = snapshot
                    self._synced = max(self._synced, snapshot.last_index)

    def _write(self, entries: tuple[Entry, ...]) -> None:
        if self._refused is not None:
            return
        room = len(entries) if not self._disk.full else self._loop.random.randrange(len(entries))
        assert entries[0].index == self._files_end + 1, (
            f"{self._name}: file gets {entries[0].index} after {self._files_end}"
        )
        self._files += entries[:room]
        if room < len(entries):
            self._refused = entries[room].index

    def _sync(self, life: int) -> None:
        if life != self._life or self._over:
            return
        replaced = False
        if self._disk.fail_next_sync and self._synced < self._files_end and self._disk.may_lose():
            self._disk.fail_next_sync = False
            replaced = self._over = True
            self._renew()
            self._keep_files(self._loop.random.randint(self._synced, self._files_end))
        elif self.durability == "fsync":
            self._synced = self._files_end
        found = (self._carried_out, 0 if replaced else self.durable_end, self._refused, replaced, self._files_snapshot)
        # What the writer found comes in the order in which it found it.
        self._told_ms = max(self._told_ms, self._loop.now_us / 1000 + self._loop.between(0.01, 1.0))
        self._tell_soon(self._told_ms - self._loop.now_us / 1000, self._settle, life, *found)
        self._round(life)

    def _tell_soon(self, ms: float, call: Callable[..., object], *args: Any) -> None:
        assert self._listener is not None
        self._loop.after(ms, self._listener.post, call, *args)

    def _settle(
        self,
        life: int,
        generation: int,
        flushed: int,
        refused: int | None,
        replaced: bool,
        begins_with: Snapshot | None,
    ) -> None:
        """What a round found, told to the loop; nothing of it counts for entries that were cut since."""
        if life != self._life:
            return
        assert self._listener is not None
        if replaced:
            self._listener.replaced(self.log_id, "a sync failed")
            return
        if begins_with is not None and begins_with.last_index > self.base:
            del self.entries[: begins_with.last_index - self.base]
            self.snapshot = begins_with
            self._listener.begins(begins_with.last_index + 1)
        limit = min([last for cut, last in self._cuts if cut > generation], default=self.last_index)
        self._cuts = [cut for cut in self._cuts if cut[0] > generation]
        flushed = min(flushed, limit)
        if flushed > self._reported:
            self._reported = flushed
            self._listener.flushed(flushed, self.entry(flushed).leader_epoch)
        if refused is not None and refused <= limit and refused <= self.last_index:
            gone = self.span(refused, self.last_index)
            self._cut(refused - 1)
            self._listener.refused(refused, "no space left", gone)

    # ------------------------------------------------------------------ what befalls it

    def stop(self) -> None:
        """The process is gone, or has closed it."""
        self._life += 1
        self._listener = None
        self._orders.clear()

    def close_cleanly(self) -> None:
        """All that was appended is written and synced."""
        for order in () if self._over else self._orders:
            self._carry_out(order)
        self._synced = self._files_end
        self._remembered = self.recovery
        self.stop()
        if self.durability == "memory":
            self.empty()

    def crash(self, *, power: bool) -> None:
        """kill -9, or with `power` the loss of everything that was not synced but what chance kept of it."""
        self.stop()
        if self.durability == "memory":
            self.empty()
        elif power:
            self._keep_files(self._loop.random.randint(self._synced, self._files_end))
            if self.durability == "os":
                self._renew()

    def damage(self) -> None:
        """Something is unreadable: a new log id, and only the entries before it (trap 15). After a damaged snapshot,
        none."""
        self._renew()
        if self._files_snapshot is not None and self._loop.chance(0.25):
            self._forget()
        self._keep_files(self._loop.random.randint(self.durable_base, self._files_end))
        self._over = True
        if self._listener is not None:
            self._listener.post(self._tell_damage, self._life)

    def _tell_damage(self, life: int) -> None:
        if life == self._life and self._listener is not None:
            self._listener.replaced(self.log_id, "damage was found")

    def copy(self) -> Copy:
        """What the directory holds now."""
        return Copy(self.log_id, tuple(self._files), self._files_snapshot, self._checkpoint, self._remembered)

    def put_back(self, copy: Copy) -> None:
        """Nobody has it open, and the directory is as it was then."""
        self.lacks_up_to = max(self.lacks_up_to, self._files_end)
        self.log_id, self._files, self._files_snapshot = copy.log_id, list(copy.files), copy.snapshot
        self._checkpoint, self._remembered = copy.checkpoint, copy.remembered
        self._synced = self._files_end

    def delete(self) -> None:
        """Another disk, with nothing on it; or the partition has moved elsewhere."""
        self.empty()
        self.present = False

    def empty(self, recovery: int = 0) -> None:
        """Begun anew, with nothing in it, under that recovery."""
        self._renew()
        self._forget()
        self.entries = []
        self.snapshot = None
        self.recovery = self._remembered = recovery

    def _forget(self) -> None:
        self._files = []
        self._files_snapshot = None
        self._synced = 0

    def begin_with(self, snapshot: Snapshot) -> None:
        """An empty journal, under an id that acknowledged nothing yet, begins after this snapshot (rule 13)."""
        assert not self._files
        self._files_snapshot = snapshot
        self._synced = snapshot.last_index
