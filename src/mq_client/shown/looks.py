"""What people are told of one observation of a cluster: sums by topic and broker, rates, and what is wrong. Pure."""

from __future__ import annotations

import copy
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mq_client.shown.observation import BrokerObservation, ClusterObservation, PartitionObservation
from mq_protocol.names import INTERNAL_PREFIX
from mq_protocol.shown import bytes_text, counted, duration_text

_UNHEARD_MS: Final = 1_000
DISK_FREE_SHARE: Final = 0.10
"""A disk with less room than this is told of."""

FALLS_BEHIND_US: Final = 300_000_000
STANDS_STILL_US: Final = 600_000_000
STAGED_OLD_US: Final = 3_600_000_000
UNPUBLISHED_OLD_S: Final = 300.0
"""As the alert rules have them (deploy/monitoring)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person must look at. `severity`: "page" if records cannot be written or read, or a replica is
    lost; else "ticket". `kind`: what it is about: "brokers", "topics", "groups" or "sinks". `command`: shows more of
    it."""

    severity: str
    kind: str
    text: str
    command: str


class Look:
    """One observation of detail "partitions", as sums, and when it was made. `partitions` are those of users' topics,
    which are listed. What brokers lead and hold, and what is wrong, are of the brokers' own topics too: so does
    `tritonmq cluster status` count."""

    def __init__(self, observed: ClusterObservation, at_s: float) -> None:
        self.observed = observed
        self.at_s = at_s
        self.places: dict[tuple[str, int], int] = {}
        self.ends: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.partitions = [each for each in observed.partitions if not each.topic.startswith(INTERNAL_PREFIX)]
        for each in self.partitions:
            if each.leads:
                topic = each.topic
                self.places[topic, each.partition] = each.log_end_offset
                self.ends[topic] = self.ends.get(topic, 0) + each.log_end_offset
                self.kept[topic] = self.kept.get(topic, 0) + each.log_end_offset - each.log_start_offset
                self.sizes[topic] = self.sizes.get(topic, 0) + each.size_bytes
        self.leads = Counter(each.told_by for each in observed.partitions if each.leads)
        self.holds = Counter(broker for each in observed.partitions for broker in each.replicas)
        self.in_sync = Counter(broker for each in observed.partitions if each.leader for broker in each.isr)
        self.leaderless = [each for each in observed.partitions if not each.leader]
        self.behind = [
            each
            for each in observed.partitions
            if not each.leader or (each.leads and not set(each.replicas) <= set(each.isr))
        ]

    def with_brokers(self, observed: ClusterObservation) -> Look:
        """The same topics and groups beside what brokers have said since, in an observation of detail "broker"."""
        newer = copy.copy(self)
        newer.observed = replace(self.observed, brokers=observed.brokers, silent=observed.silent)
        return newer

    def per_second(self, before: Look | None) -> dict[str, float]:
        """Records that came into each topic since; none of those that were not known then. A partition counts whose
        leader answered both times."""
        if before is None or self.at_s <= before.at_s:
            return {}
        took_s, found = self.at_s - before.at_s, dict.fromkeys(self.ends.keys() & before.ends.keys(), 0.0)
        for place, end in self.places.items():
            came = end - before.places.get(place, end)
            if came > 0 and place[0] in found:
                found[place[0]] += came / took_s
        return found


def problems(look: Look) -> list[Problem]:
    """What a person must look at, the worst first."""
    return sorted(_problems(look), key=lambda each: each.severity != "page")


def kept_closed(brokers: Iterable[BrokerObservation]) -> Iterator[tuple[str, str]]:
    """Of each broker that keeps partitions closed because of what seals them: what is wrong, and what to do."""
    for each in brokers:
        without, altered = (int(each.values.get(f"partitions_{why}", 0)) for why in ("without_key", "altered"))
        if without:
            cure = "its log names the key; start it with --encrypt of the right keys, or make its key service reachable"
            yield f"broker {each.id} lacks the key of {counted(without, 'partition')}", cure
        if altered:
            cure = "its log names them; see `When something does not open` in docs/encryption.md"
            yield f"broker {each.id} keeps {counted(altered, 'partition')} closed: altered on its disk", cure


def _problems(look: Look) -> Iterator[Problem]:
    yield from _of_brokers(look)
    yield from _of_partitions(look)
    yield from _of_groups(look.observed)
    yield from _of_sinks(look.observed)


def _of_brokers(look: Look) -> Iterator[Problem]:
    status = "tritonmq cluster status"
    for address in look.observed.silent:
        yield Problem("page", "brokers", f"the broker at {address} does not answer", status)
    for broker in absent(look):
        held = counted(look.holds[broker], "replica")
        yield Problem("page", "brokers", f"broker {broker} is absent, and holds {held}", status)
    for text, cure in kept_closed(look.observed.brokers):
        yield Problem("page", "brokers", f"{text}: {cure}", "tritonmq doctor")
    for each in look.observed.brokers:
        if each.coordination == "suspended":
            yield Problem("page", "brokers", f"broker {each.id} has no session with ZooKeeper", "tritonmq doctor")
        if each.state != "serving":
            yield Problem("ticket", "brokers", f"broker {each.id} is {each.state}", status)
        lost = sorted(peer for peer, up in each.links.items() if not up)
        if lost:
            peers = ", ".join(map(str, lost))
            yield Problem("ticket", "brokers", f"broker {each.id} has no link to {peers}", "tritonmq doctor")
        free, size = each.values.get("disk_free_bytes"), each.values.get("disk_size_bytes")
        if free is not None and size and free < DISK_FREE_SHARE * size:
            room = f"{bytes_text(int(free))} of {bytes_text(int(size))}"
            yield Problem("ticket", "brokers", f"broker {each.id} has {room} free on its disk", "tritonmq doctor")


def absent(look: Look) -> list[int]:
    """Brokers that hold replicas and of which nothing is registered. None are told while a broker does not answer:
    it may be that one."""
    if look.observed.silent:
        return []
    return sorted(look.holds.keys() - {each.id for each in look.observed.brokers})


def _of_partitions(look: Look) -> Iterator[Problem]:
    status = "tritonmq cluster status"
    if look.leaderless:
        yield Problem("page", "topics", f"{counted(len(look.leaderless), 'partition')} without a leader", status)
    refusing = _sum(look.observed, "partitions_under_min_isr")
    if refusing:
        text = f"{counted(refusing, 'partition')} below min_insync_replicas: writes are refused"
        yield Problem("page", "topics", text, status)
    if look.behind:
        text = f"{counted(len(look.behind), 'partition')} not fully in sync{_unheard(look.behind)}"
        yield Problem("ticket", "topics", text, status)


def _sum(observed: ClusterObservation, value: str) -> int:
    return int(sum(each.values.get(value, 0) for each in observed.brokers))


def _unheard(partitions: Iterable[PartitionObservation]) -> str:
    unheard = max((ms for each in partitions for ms in each.unheard_ms.values()), default=0)
    return f", not heard of for up to {duration_text(unheard)}" if unheard >= _UNHEARD_MS else ""


def _of_groups(observed: ClusterObservation) -> Iterator[Problem]:
    now_us = max((each.now_us for each in observed.brokers), default=0)
    for each in observed.groups:
        idle_us = now_us - each.moved_us if each.moved_us else 0
        if each.lag and idle_us > STANDS_STILL_US:
            what = f"has not moved for {duration_text(idle_us // 1000)}"
        elif each.lag_us > FALLS_BEHIND_US:
            what = f"is {duration_text(each.lag_us // 1000)} behind"
        else:
            continue
        text = f"group {each.label or each.group} {what} in {each.topic}, and has {counted(each.lag, 'record')} to read"
        yield Problem("ticket", "groups", text, f"tritonmq group describe {shell_word(each.group)}")


def _of_sinks(observed: ClusterObservation) -> Iterator[Problem]:
    age_s = max((each.values.get("sink_unpublished_age_seconds", 0) for each in observed.brokers), default=0)
    if age_s > UNPUBLISHED_OLD_S:
        text = f"decided micro-batches have not been published for {duration_text(int(age_s * 1000))}"
        yield Problem("ticket", "sinks", text, "tritonmq transaction list")
    now_us = max((each.now_us for each in observed.brokers), default=0)
    old = [each for each in observed.topics if each.oldest_staged_us and now_us - each.oldest_staged_us > STAGED_OLD_US]
    if old:
        text = f"batches have been staged for more than an hour in {counted(len(old), 'topic')}"
        yield Problem("ticket", "sinks", text, "tritonmq transaction list")


def shell_word(text: str) -> str:
    """The text as one word of a command line."""
    return shlex.quote(text)
