"""One thread looks at the cluster for all who look at the pages, and keeps what it saw."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mq_client import BrokerObservation, ClusterObservation, GroupObservation, TritonMQError
from mq_client.shown.looks import Look, Problem, absent, problems
from mq_console.history import History

log = logging.getLogger(__name__)

PULSE_S: Final = 0.5
"""How often brokers are asked how they are, while somebody looks: pages ask every second, and are to show a death
within two."""

LOOK_S: Final = 2.0
COST_SHARE: Final = 5
"""How often they are asked for everything, while somebody looks: a large cluster more rarely, so that a fifth of the
time at most goes to it."""

UNWATCHED_S: Final = 30.0
WATCHED_FOR_S: Final = 30.0
"""So long after a page was asked for, somebody looks."""

RATE_OVER_S: Final = 6.0
"""Rates are over about this time: shorter ones jump, since brokers give the same answer for half a second."""

PLACES_KEPT_MAX: Final = 10_000
"""Of how many partitions earlier looks are kept for rates: of a large cluster it is the last one alone."""

_BROKERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, also one that is gone. `state`: what it said, or "silent" (it is registered and does not answer) or
    "absent" (it holds replicas and is not registered). `since_s`: for how long it has been so; for the first state that
    was seen, since the console looked first. `observed` is None for one that does not answer."""

    id: int
    address: str
    state: str
    since_s: float
    version: str
    leads: int
    replicas: int
    in_sync: int
    observed: BrokerObservation | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known now. `look` is None until the cluster has answered. `fault`: why it did not answer the last time,
    "" if it did. `rates`: records that come into each topic a second. `catching_up`: of groups that are behind, by
    group and topic, in how many seconds they will have caught up; those that do not are missing. `at_us`: when brokers
    were asked last."""

    look: Look | None
    fault: str
    at_us: int
    rates: Mapping[str, float]
    catching_up: Mapping[tuple[str, str], float]
    brokers: Sequence[Broker]
    problems: Sequence[Problem]


NOTHING: Final = Seen(None, "the cluster has not answered yet", 0, {}, {}, (), ())


class Watcher:
    """Owns the thread, the newest look and the history. `observe(detail)` asks the cluster."""

    def __init__(
        self, observe: Callable[[str], ClusterObservation], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.history = History()
        self._observe = observe
        self._clock = clock
        self._seen = NOTHING
        self._past: deque[Look] = deque()
        self._known: dict[int, tuple[str, str]] = {}
        self._states: dict[int, tuple[str, float]] = {}
        self._asked_at = clock()
        self._look_due_at = 0.0
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread, within the time that a question takes."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)

    def seen(self, wait_s: float = 3.0) -> Seen:
        """The newest. Who asks first, or after a while, waits for a look, so long at most."""
        idle = self._clock() - self._asked_at > WATCHED_FOR_S
        self._asked_at = self._clock()
        if idle:
            self._first.clear()
            self._look_due_at = 0.0
            self._wake.set()
        self._first.wait(wait_s)
        return self._seen

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._first.set()
            watched = self._clock() - self._asked_at <= WATCHED_FOR_S
            self._wake.wait(PULSE_S if watched else UNWATCHED_S)
            self._wake.clear()

    def look(self) -> None:
        """Ask once: for everything if that is due, else the brokers alone. What cannot be asked is kept as it was."""
        began = self._clock()
        due = self._seen.look is None or began >= self._look_due_at
        try:
            observed = self._observe("partitions" if due else "broker")
        except TritonMQError as error:
            self._seen = replace(self._seen, fault=str(error), at_us=_now_us())
            return
        except Exception:
            log.exception("the cluster could not be looked at")  # and the thread goes on: it is the only one
            self._seen = replace(self._seen, fault="a fault of the console: its log has it", at_us=_now_us())
            return
        if due:
            took_s = self._clock() - began
            self._look_due_at = began + max(LOOK_S, COST_SHARE * took_s)
            self._take(Look(observed, began))
        elif self._seen.look is not None:
            if _ids(observed) != _ids(self._seen.look.observed) or observed.silent != self._seen.look.observed.silent:
                self._look_due_at = 0.0  # a broker came or went: who leads now?
            self._seen = self._told(self._seen.look.with_brokers(observed), self._seen.rates, self._seen.catching_up)

    def _take(self, look: Look) -> None:
        before = next((past for past in self._past if look.at_s - past.at_s <= RATE_OVER_S), None)
        before = before or (self._past[-1] if self._past else None)
        rates = look.per_second(before)
        catching_up = {} if before is None else _catching_up(look, before)
        self._past.append(_for_rates(look))
        while len(self._past) > 1 and (
            look.at_s - self._past[0].at_s > RATE_OVER_S or len(look.places) > PLACES_KEPT_MAX // len(self._past)
        ):
            self._past.popleft()
        self._seen = self._told(look, rates, catching_up)
        self.history.note(look.at_s, _noted(look, rates))

    def _told(self, look: Look, rates: Mapping[str, float], catching_up: Mapping[tuple[str, str], float]) -> Seen:
        brokers = self._brokers(look)
        return Seen(look, "", _now_us(), rates, catching_up, brokers, problems(look))

    def _brokers(self, look: Look) -> list[Broker]:
        """Those that answered, those that did not, and those that are missing, by id."""
        observed = {each.id: each for each in look.observed.brokers}
        for each in observed.values():
            if len(self._known) < _BROKERS_MAX or each.id in self._known:
                self._known[each.id] = each.address, each.version
        silent = look.observed.silent
        gone = [broker for broker, (address, _) in self._known.items() if address in silent and broker not in observed]
        gone += [broker for broker in look.holds if broker not in observed and broker not in gone]
        missing = set(absent(look))
        now, rows = self._clock(), []
        for broker in sorted({*observed, *gone}):
            told = observed.get(broker)
            address, version = self._known.get(broker, ("", ""))
            state = told.state if told is not None else "absent" if broker in missing else "silent"
            if self._states.get(broker, ("", 0.0))[0] != state:
                self._states[broker] = state, now
            since_s = now - self._states[broker][1]
            shares = look.leads[broker], look.holds[broker], look.in_sync[broker]
            rows.append(Broker(broker, address, state, since_s, version, *shares, told))
        self._states = {broker: self._states[broker] for broker in {*observed, *gone}}
        return rows


def _now_us() -> int:
    return int(time.time() * 1_000_000)


def _ids(observed: ClusterObservation) -> list[tuple[int, int]]:
    return [(each.id, each.incarnation) for each in observed.brokers]


def _for_rates(look: Look) -> Look:
    """What later rates need of it, and no more."""
    kept = copy.copy(look)
    kept.observed = replace(look.observed, partitions=(), topics=())
    kept.partitions, kept.leaderless, kept.behind, kept.kept, kept.sizes = [], [], [], {}, {}
    return kept


def _catching_up(look: Look, before: Look) -> dict[tuple[str, str], float]:
    """By the lag that is gone since."""
    was: dict[tuple[str, str], GroupObservation] = {(each.group, each.topic): each for each in before.observed.groups}
    took_s, found = look.at_s - before.at_s, dict[tuple[str, str], float]()
    for each in look.observed.groups:
        place = each.group, each.topic
        if each.lag and place in was and was[place].lag > each.lag and took_s > 0:
            found[place] = each.lag * took_s / (was[place].lag - each.lag)
    return found


def _noted(look: Look, rates: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """What the history keeps, the most important first."""
    values: dict[tuple[str, ...], float] = {("records in",): sum(rates.values())}
    for each in look.observed.groups:
        values["lag", each.group, each.topic] = each.lag
        values["lag_us", each.group, each.topic] = each.lag_us
    for topic in sorted(rates, key=lambda name: -rates[name]):
        values["topic", topic] = rates[topic]
    return values
