"""One queue group in one partition, while this broker leads it: requests become entries, several at a time.

What is proposed is committed in order, or a `LedGroup` is over: its leadership is, or the disk refused an entry. So
requests are judged, and records chosen, on the leader's own view of the state, which is ahead of what is committed: it
has the steps of every entry that was proposed.
Nobody is told anything before its entry is committed, and all before it. An answer that needs no entry rests on those
that are on their way, and waits for the last of them. What rests on something not being here is told once this leader
knows that it led when it was judged. `Working` makes a `LedGroup` once somebody asks, or as this broker begins to lead
a partition whose group has something left to do, and another one in its place once an entry was refused.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.group.choosing import HELD_AT_ONCE, Choosing
from mq_broker.broker.queues.group.draft import DONE, Draft, Lending, backoff_of, dead_letters, is_rare, tell_sendings
from mq_broker.broker.queues.group.holdings import RETURNED_AT_ONCE, Holdings, tell_expired
from mq_broker.broker.queues.group.members import replaced
from mq_broker.broker.queues.group.presence import Presence, Session
from mq_broker.broker.queues.group.requests import Asking, Lent, OwnSteps, Sending, Settling, lent_runs
from mq_broker.broker.queues.group.unsettled import Unsettled
from mq_broker.broker.queues.group.waiting import Waiting
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.policy.length import Bounding
from mq_broker.broker.queues.policy.ordering import ByKey, Single
from mq_broker.broker.queues.policy.policy import Policy, goes_by_itself
from mq_broker.broker.queues.policy.ready_records import ReadyRecords
from mq_broker.core.entries import Work
from mq_broker.core.messages import Done, Refused, Result
from mq_broker.core.work.settling import Answer, Setting, Settle, gather
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Reason, Send, Step, why_not_one_entry
from mq_protocol.errors import InvalidRequest, Overloaded, TritonMQError, UnknownQueue
from mq_protocol.queues.settings import DeadLetter

SCANNED_AT_ONCE: Final = 2_000
"""Runs of a state that a new leader looks through in one turn."""

IN_FLIGHT_MAX: Final = 2
"""Entries of a group on their way, those included that have no steps. While there are as many, what comes gathers for
the next one."""

DOOMED_AT_ONCE: Final = 500
CLOCK_LOOKED_AT_S: Final = 60.0
"""A clock that is set right may end a delay, and wakes nobody."""

AGAIN_S: Final = 1.0
"""After an entry was refused for now: when the leader tries again to write what it wants by itself."""


class LedGroup:
    """Owns who waits for the group here, the leader's own view of the state (`_state`), and what this leader knows
    beside the facts.

    Invariant: the view is the committed state (`_committed`) and the steps of the drafts that are on their way, in
    order (`_flights`).
    """

    def __init__(
        self,
        partition: Partition,
        group: str,
        queue: Callable[[], Queue | None],
        now_ms: Callable[[], int],
        now_us: Callable[[], int],
        keep_time: Callable[[], None],
        stood_still: Callable[[], bool],
        on_outbox: Callable[[LedGroup, WorkState], None] = lambda *_: None,
        on_doomed: Callable[[LedGroup], None] = lambda _: None,
        on_rows: Callable[[LedGroup, Policy], None] = lambda *_: None,
        on_refused: Callable[[LedGroup, TritonMQError], None] = lambda *_: None,
    ) -> None:
        """`queue`: the group's declaration, None if there is none. `now_ms`, `now_us`: the monotonic clock, and the
        time since 1970 that is believed. `keep_time`: called when `has_clocks` may have become true. `stood_still`:
        whether this broker's loop did, and `slept` was not called since. `on_outbox`: called while the state has
        decisions that are not published yet; `on_doomed`: while it may have records that go to a dead-letter topic.
        `on_rows`: while records are to be looked at; call `wake` once some are. `on_refused`: an entry was refused that
        others may rest on: close this one, and begin anew if this broker leads still."""
        self.partition = partition
        self.group = group
        self.epoch = partition.replica.leader_epoch
        self.closed = False
        self._queue = queue
        self._now_ms = now_ms
        self._now_us = now_us
        self._began_us = now_us() - now_ms() * 1_000  # when the monotonic clock began
        self._keep_time = keep_time
        self._stood_still = stood_still
        self._on_outbox = on_outbox
        self._on_doomed = on_doomed
        self._on_rows = on_rows
        self._on_refused = on_refused
        self._sendings: deque[Sending] = deque()
        self._next_n = self.epoch << 32  # a later life goes on: partitions take a number below the last for done
        self._loop = asyncio.get_running_loop()
        self._asking = Waiting(now_ms)
        self._used_ms = now_ms()
        self.present = Presence()
        self._unsettled = Unsettled()
        self._own: deque[OwnSteps] = deque()
        self._flights: deque[Draft] = deque()
        self._blocked = False  # there is more to do once something that is on its way is committed
        self._stopped = False  # an entry was refused: nothing more is written
        self._refused: TritonMQError | None = None  # the same, once all before it are told of
        self._woken = False
        self._due: asyncio.TimerHandle | None = None
        self._by_itself_from = 0.0  # the loop's time from which on this leader writes what it wants by itself
        self._choosing = Choosing(partition, self._asking, self.wake, self._note)
        self._state: WorkState | None = None
        self._committed: WorkState | None = None
        self._holdings: Holdings
        self._policy: Policy
        self.bounding = Bounding(partition)
        self._scanned = False
        self._for_trim: asyncio.TimerHandle | None = None
        self._left_out = False  # what this leader wants by itself had no room in the last entry

    # ------------------------------------------------------------------ who asks

    @property
    def asked(self) -> bool:
        """Whether somebody waits to be lent any record, whatever is in it."""
        return any(asking.has_room and not asking.filter for asking in self._asking.values())

    def ask(self, asking: Asking) -> None:
        """Have it answered once something is lent, or there is something to tell."""
        self._used_ms = self._now_ms()
        self._asking.put(asking)
        self.wake()

    def open_session(self, session: Session) -> None:
        """Its member is here from now on, by this session alone."""
        known = self._state is not None and self._holdings.members.is_replaced(session.member, session.key)
        self.present.come(session, self.group, replaced_before=known)

    def works_on(self, member: str, working: int) -> None:
        """So many records at a time, as it says by its session."""
        if self._state is not None:
            self._holdings.members.heard_of(member, working)

    def close_session(self, session: Session, *, clean: bool) -> None:
        """It is over. `clean`: by its member's word, so that what it has goes back at once."""
        if self.present.leave(session, None if clean else self._now_ms() + self._resume_ms()):
            self._asking.part(session.member, clean=clean)
            self._keep_time()
            self.wake()

    def _resume_ms(self) -> int:
        queue = self._queue()
        return queue.settings.resume_ms if queue is not None else 0

    @property
    def active(self) -> str | None:
        """The one member that is lent records; None if any may be."""
        return self._ready.active if self._state is not None else None

    def leave(self, asking: Asking) -> None:
        """Nobody waits for it any more."""
        self._used_ms = self._now_ms()
        if self._asking.leave(asking) and asking.priority:
            self.wake()

    def settle(self, settling: Settling) -> None:
        self._used_ms = self._now_ms()
        self._unsettled.add(settling)
        if self._state is not None:
            self._holdings.members.heard_of(settling.items[0].member)
        self.wake()

    def withdraw(self, settling: Settling) -> None:
        """Nobody waits for it any more: what was not judged yet is not done."""
        self._unsettled.withdraw(settling)

    def add(self, own: OwnSteps) -> None:
        self._own.append(own)
        self.wake()

    def send(self, sending: Sending) -> None:
        """Decide these dead letters, if their records are doomed still when an entry is made."""
        self._sendings.append(sending)
        self.wake()

    def take_doomed(self, most: int, reason: Reason | None = None) -> list[tuple[int, int, Mark]]:
        """Unsettled records that are to become dead letters, for that reason or since they failed, about so many runs:
        they are forgotten here until `doomed_again`."""
        if self._state is None or not self._scanned:
            return []
        missing = self._state.settled.missing
        taken = self._policy.take(most, reason)
        if reason is not None and not taken and self._policy.sends:
            self.wake()  # there is more to look at
        return [(low, high, mark) for a, b, mark in taken for low, high in missing(a, b)]

    def doomed_again(self, runs: list[tuple[int, int, Mark]]) -> None:
        """They are to become dead letters still, perhaps."""
        if self._state is not None and runs:
            self._policy.doomed_again(runs)
            self.wake()

    @property
    def _ready(self) -> ReadyRecords:
        return self._policy.ready

    @property
    def queue(self) -> Queue | None:
        """As it is declared."""
        return self._queue()

    def reads(self, policy: Policy) -> bool:
        """Whether the group goes by this still."""
        return not self.closed and self._state is not None and self._policy is policy

    def used_ms(self) -> int:
        """When the group was in use last, as far as is known here, by the monotonic clock: a member asked or settled
        something, waited or had a lease, or something decided was not published yet. At the earliest when this began
        to look after it."""
        state = self.partition.replica.machine.work.get(self.group)
        if self._asking or len(self.present) or (state is not None and (state.leases or state.outbox)):
            self._used_ms = self._now_ms()
        return self._used_ms

    def blocked_by(self) -> int | None:
        """The record that others wait for, which is not lent for now, if the group is in order."""
        ready = self._ready if self._state is not None else None
        return ready.blocked_by(self._delay_us()) if isinstance(ready, Single | ByKey) else None

    @property
    def waits(self) -> bool:
        """Whether what becomes readable, or is dropped, is news to somebody."""
        return bool(self._asking) or self._for_trim is not None or goes_by_itself(self._queue(), self.partition.index)

    @property
    def has_clocks(self) -> bool:
        """Whether time has to be told to it."""
        known = self._state is not None and (bool(self._state.leases) or self._policy.expiring is not None)
        return known or self.present.keeps_time

    def beat(self, now_ms: int) -> None:
        """Time has passed."""
        known = self._state is not None and (self._holdings.due(now_ms) or self._policy.expires(now_ms))
        if known or self.present.due(now_ms):
            self.wake()

    def slept(self, now_ms: int) -> None:
        """This leader stood still."""
        self.present.slept(now_ms + self._resume_ms())
        if self._state is not None:
            self._holdings.slept(now_ms)

    def close(self, error: TritonMQError) -> None:
        """The leadership is over. Who waits for an entry on its way is told what became of it."""
        self.closed = True
        if self._due is not None:
            self._due.cancel()
        if self._for_trim is not None:
            self._for_trim.cancel()
        for asking in self._asking.values():
            if not asking.in_flight:
                asking.refuse(error)
        self._unsettled.refuse(error)
        self.present.end(error)
        for own in self._own:
            own.done(error)
        for sending in self._sendings:
            sending.done(Answer(), error)
        self._asking.clear()
        self._own.clear()
        self._sendings.clear()

    def _delay_us(self) -> int:
        """The time by which delays are over: what was believed as this object was made, and what has passed since. A
        clock that is set back changes nothing; one that was behind then and is set right does."""
        self._began_us = max(self._began_us, self._now_us() - self._now_ms() * 1_000)
        return self._began_us + self._now_ms() * 1_000

    # ------------------------------------------------------------------ one entry

    def wake(self) -> None:
        """There may be something to do, once all that is ready in this turn was heard."""
        if not self._woken and not self.closed:
            self._woken = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        self._woken = False
        if self.closed or self._stopped:
            return
        alone = bool(self._flights) and self._flights[-1].alone  # another life may begin with it
        self._blocked = alone or sum(draft.result is None for draft in self._flights) >= IN_FLIGHT_MAX
        if self._blocked:
            return
        if self.partition.replica.trimming:
            self._wait_for_trim()
            return
        self._for_trim = None
        queue, state = self._queue(), self.partition.replica.machine.work.get(self.group)
        if self._own and (state is None or self._own[0].life != state.life or is_rare(self._own[0])):
            self._blocked = bool(self._flights)
            if not self._blocked:
                own = self._own.popleft()
                self._propose(Draft(self._next_at, own=own, steps=[*own.steps], alone=True), own.life)
            return
        if queue is None or state is None or state.life != queue.life:
            self._has_not_begun(queue)
            return
        if not self._keep_up(state, queue):
            return
        assert self._state is not None
        self._turn(self._state, queue)

    @property
    def _next_at(self) -> tuple[int, int]:
        """The epoch and index that the next entry will have."""
        return self.epoch, self.partition.replica.last_index + 1

    def _turn(self, state: WorkState, queue: Queue) -> None:
        """Make the next entry, and propose it."""
        draft, error = Draft(self._next_at), self.partition.why_not(Work(self.group, queue.life, ()))
        now_ms, now_us = self._now_ms(), self._delay_us()
        # What members have settled counts before what runs out or is not claimed, unless that had no room last time.
        if self._left_out:
            self._take_by_leader(draft, queue, now_ms)
            self._unsettled.take(draft, self._holdings, now_ms)
        else:
            self._unsettled.take(draft, self._holdings, now_ms)
            self._take_by_leader(draft, queue, now_ms)
        steps = self._judge(draft, state, queue, now_us)
        if steps and error is not None:
            self._cannot_write(draft, error)
            return
        self._add(draft, steps)
        self._note_judged(draft)
        waited = self._asking.values()
        if self._scanned:
            if not self._ready.wake(now_us):
                self.wake()
            if not queue.settings.paused and not self._policy.masks.held_back(self._ready.limit):
                self._choosing.choose(draft, queue, self._policy, self._holdings, now_ms, now_us, error)
        if error is None:
            self._add_own(draft, state, queue)
        else:
            self._refuse_own(queue, error)
        if self._scanned:
            self._were_judged(waited, draft)
            if self._policy.sends and isinstance(queue.settings.dead_letter, str):
                self._on_doomed(self)
        if not self._policy.knows(self.partition.next_offset):
            self._on_rows(self, self._policy)
        self._propose(draft, state.life)
        self._go_on(draft)

    def _wait_for_trim(self) -> None:
        """A trim settles records: what is judged before it is committed need not be so behind it."""
        if self._for_trim is None or self._for_trim.when() <= self._loop.time():
            self._for_trim = self._loop.call_later(AGAIN_S, self.wake)  # beside the word that records were dropped

    def _has_not_begun(self, queue: Queue | None) -> None:
        """Nothing can be settled. Who wants to be lent something waits, unless the group is declared no more."""
        name = f"queue group {self.group!r}"
        error: TritonMQError = Overloaded(f"{self.partition.name} has not begun with {name} yet: ask again in a moment")
        if queue is None:
            error = UnknownQueue(f"{name} of topic {self.partition.topic.spec.name} is not declared any more")
            for asking in self._asking.values():
                asking.refuse(error)
            self._asking.clear()
            self.present.end(error)
        self._unsettled.refuse(error)
        while self._sendings:
            self._sendings.popleft().lost()
        for asking in self._asking.values():
            asking.note_judged()
            if asking.once:
                self._asking.leave(asking)
                asking.answer(Lent())

    def _were_judged(self, waited: Iterable[Asking], draft: Draft) -> None:
        """Those who are lent nothing by this draft wait on, but for those who ask once."""
        end = self.partition.next_offset
        for asking in filter(self._asking.has, waited):
            asking.end = end if asking.end < 0 else asking.end
            looked = not asking.looking and asking.end <= self._policy.looked_to(asking.filter, end)
            if asking.reconciled and looked:
                asking.note_judged()
                if asking.once and not asking.in_flight:
                    self._asking.leave(asking)
                    draft.tell(asking, Lent())

    def _keep_up(self, state: WorkState, queue: Queue) -> bool:
        """With a new life of the group, and with its settings. Returns whether every lease is known."""
        now_ms, limit, index = self._now_ms(), queue.settings.delivery_limit, self.partition.index
        if state is not self._committed or self._state is None:
            self._blocked = bool(self._flights)
            if self._blocked:
                return False  # another life has begun since they were proposed
            self._committed, self._scanned = state, False
            self._state = state = state.copy()
            self._choosing.begin(state)
            self.bounding.begin()
            self._holdings, self._policy = Holdings(state, self.epoch), Policy(state, queue.settings, index)
        state, start = self._state, self.partition.replica.machine.log_start_offset
        state.pass_to(start)
        if not self._policy.suits(queue.settings, index):
            self._policy, self._scanned = Policy(state, queue.settings, index), False
        elif limit != self._ready.limit or self._ready.overgrown():
            self._scanned = False
            self._policy.begin_with(limit)
        if not self._holdings.take_up(SCANNED_AT_ONCE, queue.settings.lease_ms, now_ms):
            self.wake()
            return False
        if not self._policy.expire(self._now_us(), now_ms):
            self.wake()
        if self.has_clocks:
            self._keep_time()
        if self._committed.outbox:
            self._on_outbox(self, self._committed)
        if not self.bounding.keep_up(state, queue.settings):
            self.wake()
        self._ready.trimmed(start)
        refused = self._policy.filters.use({asking.filter for asking in self._asking.values()}, state, now_ms)
        for asking in self._asking.values() if refused else ():
            if asking.filter in refused:
                self._asking.leave(asking)
                asking.refuse(refused[asking.filter])
        if not self._ready.knows_lent and not self._policy.knows(self.partition.next_offset):
            self._on_rows(self, self._policy)  # it cannot be judged what comes after what; it is woken with the keys
            return False
        self._scanned = self._ready.scan(SCANNED_AT_ONCE)
        if not self._scanned and self._ready.order is not None:
            self.wake()
            return False
        return True

    def _go_on(self, draft: Draft) -> None:
        """What is left for another turn, or for later."""
        unjudged = any(not asking.reconciled for asking in self._asking.values())
        queue = self._queue()
        wants = (queue is not None and self._dooms(queue)) or self._policy.masks.unfinished
        by_itself = (wants or self._holdings.due(self._now_ms())) and self._by_itself
        more = self._unsettled.unjudged or self._own or self._sendings or not self._scanned or unjudged or by_itself
        if more or draft.steps:  # what was settled may let others be settled, or lent
            self.wake()
        if self._due is not None:
            self._due.cancel()
        self._due = None
        if not self._asking or not self._scanned:
            return
        due_us, again_ms = self._ready.next_due_us(), self._ready.again_ms(self._now_ms())
        due_ms = max(due_us - self._delay_us(), 0) / 1e3 if due_us is not None else None
        waits_s = [ms / 1e3 for ms in (due_ms, again_ms, self._asking.again_ms()) if ms is not None]
        if waits_s:
            self._due = self._loop.call_later(min(*waits_s, CLOCK_LOOKED_AT_S) + 0.001, self.wake)

    # -- what is to be settled

    def _by_leader(self, draft: Draft, settles: Iterable[Settle]) -> None:
        for settle in settles:
            draft.settles.append(settle)
            draft.settlers.append(None)
            draft.ranges += len(settle.ranges)

    def _take_by_leader(self, draft: Draft, queue: Queue, now_ms: int) -> None:
        if self._by_itself:
            self._take_expired(draft, now_ms)
        self._reconcile(draft, queue, now_ms)

    def _take_expired(self, draft: Draft, now_ms: int) -> None:
        if self._stood_still():  # what members have sent meanwhile may come only now
            self.slept(now_ms)
            return
        settles = self._holdings.expired(now_ms, ordered=self._ready.order is not None)
        tell_expired(self.partition.name, self.group, settles)
        self._by_leader(draft, settles)
        if self.present.due(now_ms):
            self._by_leader(draft, self.present.given_up(self._holdings, now_ms, (self.partition.name, self.group)))

    def _reconcile(self, draft: Draft, queue: Queue, now_ms: int) -> None:
        """Compare what members name with what they have."""
        looked = returned = 0
        for asking in self._asking.values():
            if asking.reconciled or asking.in_flight:
                continue
            if looked > HELD_AT_ONCE or returned >= RETURNED_AT_ONCE:
                return
            if self._holdings.members.is_replaced(asking.member, asking.key):
                self._asking.leave(asking)
                asking.refuse(replaced(asking.member, self.group))
                continue
            looked += len(self._holdings.members.leases(asking.member)) + len(asking.held)
            self._holdings.members.heard_of(asking.member, asking.working)
            self.present.heard_of(asking.member)
            self._holdings.claim(asking, queue.settings.lease_ms, now_ms)
            settles, complete = self._holdings.unclaimed(asking, RETURNED_AT_ONCE) if asking.returns else ([], True)
            self._by_leader(draft, settles)
            returned += sum(len(settle.ranges) for settle in settles)
            if settles:
                draft.reconciled.append((asking, complete, len(draft.settles)))
            else:
                asking.reconciled = True
                self._holdings.members.seen(asking.member, asking.key)
            gone = self._holdings.gone(asking)
            if gone:
                draft.gone.append((asking, gone))

    # -- what is written, and what became of it

    def _judge(self, draft: Draft, state: WorkState, queue: Queue, now_us: int) -> tuple[Step, ...]:
        """What is to be written for those who settle, and for the dead letters."""
        facts = self.epoch, self.partition.next_offset, now_us, self._next_n, backoff_of(queue.settings)
        setting = Setting(*facts, queue.settings.delivery_limit, self._ready.order)
        while self._sendings and self._sendings[0].life != state.life:
            self._sendings.popleft().lost()
        dead = [each.send for each in self._sendings if each.life == state.life]
        gathered = gather(state, draft.settles, setting, dead)
        draft.sendings = [(self._sendings.popleft(), answer) for answer in gathered.sent]
        judged = len(gathered.settled)
        self._unsettled.judged(draft, gathered.settled)
        self._left_out = None in draft.settlers[judged:]
        reconciled, draft.reconciled = draft.reconciled, []
        draft.reconciled += [(asking, complete and until <= judged, until) for asking, complete, until in reconciled]
        self._next_n += sum(isinstance(step, Send) for step in gathered.steps)
        return gathered.steps

    def _add(self, draft: Draft, steps: Sequence[Step]) -> None:
        """These are in the leader's own view from now on."""
        if steps:
            assert self._state is not None
            draft.add(steps, self._state, self.partition.next_offset)
            self._note(steps)

    def _note(self, steps: Sequence[Step]) -> None:
        self._policy.written(steps, self._now_ms())
        self.bounding.written(steps)

    def _note_judged(self, draft: Draft) -> None:
        """Whose leases have gone back is lent something by the same entry, behind that."""
        for asking, complete, _ in draft.reconciled:
            asking.reconciled = complete
            self._holdings.members.seen(asking.member, asking.key)
        for asking, _ in draft.gone:
            self._asking.leave(asking)
            asking.in_flight = True

    def _dooms(self, queue: Queue) -> bool:
        """Whether this leader is to write now what becomes of doomed records. Those that go to a topic are not its own
        to settle."""
        sent = not isinstance(queue.settings.dead_letter, DeadLetter)
        return self._scanned and self._ready.dooms and not sent and self._by_itself

    def _add_own(self, draft: Draft, state: WorkState, queue: Queue) -> None:
        """Behind what was lent, what the leader wants by itself, as far as it fits."""
        dead_letter = queue.settings.dead_letter
        if self._by_itself:
            dropping = self._policy.masks.with_drops(tuple(draft.steps), self._ready.limit)
            self._add(draft, dropping[len(draft.steps) :])
        if draft.lends and self._dooms(queue) and isinstance(dead_letter, DeadLetter):
            doomed = self._ready.take_doomed(DOOMED_AT_ONCE)
            steps = dead_letters(doomed, dead_letter)
            if draft.has_room(steps):
                self._add(draft, steps)
            else:
                self._ready.doomed_again(doomed)
        if self._own:
            own = self._own[0]
            if why := why_not_one_entry(own.steps):
                self._own.popleft().done(InvalidRequest(f"the steps are not written: {why}"))
            elif not draft.steps or draft.has_room(own.steps):
                draft.own = self._own.popleft()
                self._add(draft, own.steps)
        if self._scanned:
            drop = self.bounding.bounded(state, queue.settings, self._policy)
            if drop is not None and draft.has_room([drop]):
                self._add(draft, [drop])

    # -- what cannot be written for now

    def _cannot_write(self, draft: Draft, error: TritonMQError) -> None:
        """Nothing of it is done: who asked for it is told."""
        draft.result = Refused(error)
        for asking, _, _ in draft.reconciled:
            self._asking.leave(asking)
            asking.refuse(error)
        for asking, _ in draft.gone:
            self._asking.leave(asking)
        self._finish(draft)
        self._try_later()
        self.wake()

    def _refuse_own(self, queue: Queue, error: TritonMQError) -> None:
        if self._own:
            self._own.popleft().done(error)
        if self._dooms(queue) or self._policy.masks.unfinished:
            self._try_later()

    @property
    def _by_itself(self) -> bool:
        """Whether this leader writes now what it wants by itself."""
        return self._loop.time() >= self._by_itself_from

    def _try_later(self) -> None:
        """What this leader wants to write by itself waits for a while."""
        if self._by_itself:
            self._by_itself_from = self._loop.time() + AGAIN_S
            self._loop.call_later(AGAIN_S, self.wake)

    # -- on their way

    def _propose(self, draft: Draft, life: int) -> None:
        self._flights.append(draft)
        if draft.steps or draft.in_doubt:
            # It has no deadline: it is on its way until it is committed or the leadership is over. Requests have one.
            work = Work(self.group, life, tuple(draft.steps))
            self.partition.propose(work, lambda result: self._replied(draft, result), math.inf)
        else:
            draft.result = DONE
            self._land()

    def _replied(self, draft: Draft, result: Result) -> None:
        draft.result = result
        assert not isinstance(result, Done) or not draft.ahead or result.index == draft.at[1], "it has another place"
        self._stopped = self._stopped or (draft.ahead and draft.error is not None)
        self._land()
        decided = self._committed is not None and bool(self._committed.outbox)
        if self._blocked or draft.alone or draft.error is not None or decided:
            self.wake()

    def _land(self) -> None:
        """Those who wait for the first drafts are told, as far as it is known what became of them."""
        while self._flights and self._flights[0].result is not None:
            first = self._flights.popleft()
            if first.ahead and first.error is not None and self._refused is None:
                self._refused = first.error
                self._loop.call_soon(self._on_refused, self, first.error)
            self._finish(first)

    def _finish(self, draft: Draft) -> None:
        """Tell everybody."""
        error = draft.error or self._refused
        for settling, number, answer in draft.answers:
            settling.answer(number, answer if error is None else Answer(error=error))
        tell_sendings(draft, error)
        if draft.own is not None:
            draft.own.done(error)
        for asking, lent in (*((asking, Lent(gone=gone)) for asking, gone in draft.gone), *draft.told):
            if error is None:
                asking.answer(lent)
            else:
                asking.refuse(error)
        for lending in draft.lendings:
            if error is None:
                self._lent(lending)
            else:
                lending.asking.refuse(error)

    def _lent(self, lending: Lending) -> None:
        """The entry is committed. What goes back by one that is on its way is not told any more."""
        asking, lease, runs = lending.asking, lending.lease, lending.choice.runs
        if not asking.accept:
            runs = [(a, b, mark) for first, end, mark in runs for a, b in self._holdings.of(lease, ((first, end),))]
            self._holdings.begin(lease, self._now_ms())
            self._keep_time()
        if not runs:
            asking.answer(Lent())
            return
        self._asking.lent(asking, sum(b - a for a, b, _ in runs))
        wish = self._choosing.wish(asking, 1, self._now_ms(), alone=False)
        end, of = self._policy.masks.upto(self.partition.next_offset), self._policy.of(asking.filter)
        ready = not self.closed and bool(of.is_ready(wish, self._delay_us(), end))
        told, of_order = lent_runs(runs), self._ready.ordered
        asking.answer(Lent(lease, told, lending.lease_ms, ready, (), *of_order, lending.choice.bytes))
