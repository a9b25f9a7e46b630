"""Narrower plans than those that seeds make by themselves: each brings about, again and again, what is rare otherwise.

They are for hunting: a planted fault may name the one under which it shows (planted.py). They ask of the core nothing
that other plans do not, so as it is it must be clean under them too. A seed without a profile plans what it always did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

from mq_broker.core.messages import ReplicaSettings
from tests.simulation.cluster import Plan, Report, simulate

Narrow: TypeAlias = Callable[[Random, Plan], Plan]


def plan_of(seed: int, profile: str = "") -> Plan:
    """What this seed plans; under that profile, if one is named."""
    plan = Plan.of(seed)
    if not profile:
        return plan
    return replace(PROFILES[profile](Random(f"{profile} {seed}"), plan), profile=profile)


def _quiet(chance: Random, plan: Plan, brokers: int, minimum: int, **settings: int) -> Plan:
    """The seed's plan with one partition on so many brokers, disks that sync, and nothing that goes wrong yet."""
    own = {"replica_lag_ms_max": 1_000, "leader_stuck_ms": 60_000, **settings}
    return replace(
        plan,
        brokers=brokers,
        partitions=1,
        durability="fsync",
        settings=ReplicaSettings(
            tuple(range(1, brokers + 1)),
            minimum,
            append_entries_max=plan.settings.append_entries_max,
            append_in_flight_max=plan.settings.append_in_flight_max,
            resend_ms=300,
            **own,  # type: ignore[arg-type]
        ),
        session_ms=2_000,
        trouble_ms=30_000,
        faults=(),
        pace_ms=chance.choice((30, 100, 300)),
        leaders_hit=0.0,
        rough=0.0,
        answers_lost=0.0,
        retains_ms=0.0,
        shortens=0.0,
        total_losses=0,
        rollbacks=0,
        restores=0,
        moves_ms=0.0,
    )


def simulate_under(profile: str, seed: int) -> Report:
    """Run one seed, under that profile if one is named."""
    return simulate(seed, plan_of(seed, profile))


_BRIEF = ("kill", "restart_at_once", "pause", "disk_slow", "slow_link", "cut_pair")


def _unanswered(chance: Random, plan: Plan) -> Plan:
    """The leader stays, its followers come and go, and the service that is told of it is slow and loses every third
    answer."""
    brokers = chance.choice((2, 3, 3, 4))
    return replace(
        _quiet(chance, plan, brokers, max(1, brokers - 2), replica_lag_ms_max=500),
        faults=_BRIEF,
        fault_every_ms=400,
        trouble_ms=60_000,
        leaders_spared=True,
        answers_lost=chance.choice((0.2, 0.35)),
        service_ms=chance.choice((300.0, 800.0)),
    )


def _joiners(chance: Random, plan: Plan) -> Plan:
    """As before with a service that is quick, and a broker dies while nobody knows whether it is named in sync."""
    brokers = chance.choice((2, 3, 3, 4))
    return replace(
        _quiet(chance, plan, brokers, max(1, brokers - 2), replica_lag_ms_max=500),
        faults=_BRIEF,
        fault_every_ms=400,
        trouble_ms=60_000,
        leaders_spared=True,
        joiners_hit=True,
        answers_lost=chance.choice((0.35, 0.5)),
    )


def _replaced_logs(chance: Random, plan: Plan) -> Plan:
    """Logs are damaged while their process goes on, none may be dropped, links repeat what those logs said, the service
    is slow."""
    brokers = chance.choice((2, 3))
    return replace(
        _quiet(chance, plan, brokers, brokers),
        faults=("damage", "sync_fails", "coordination_slow"),
        fault_every_ms=chance.choice((400, 1_000)),
        leaders_spared=True,
        rough=chance.choice((0.2, 0.4)),
    )


def _full_disks(chance: Random, plan: Plan) -> Plan:
    """The disk of a leader that has nobody to send to is full again and again."""
    brokers = chance.choice((1, 2))
    return replace(
        _quiet(chance, plan, brokers, 1),
        faults=("disk_full", "disk_full", "isolate") if brokers > 1 else ("disk_full",),
        fault_every_ms=chance.choice((1_000, 2_500)),
        leaders_hit=0.7,
    )


def _deposed(chance: Random, plan: Plan) -> Plan:
    """A leader that only clients reach is replaced, goes on unawares, and comes back to a leader whose journal begins
    later."""
    brokers = chance.choice((3, 3, 4, 5))
    return replace(
        _quiet(chance, plan, brokers, brokers // 2 + 1),
        faults=("isolate_from_all",),
        fault_every_ms=chance.choice((2_500, 5_000)),
        trouble_ms=60_000,
        pace_ms=chance.choice((100, 300, 1_000)),
        leaders_hit=0.9,
        retains_ms=300.0,
        shortens=0.3,
    )


def _recoveries(chance: Random, plan: Plan) -> Plan:
    """Again and again all named logs are lost, or their ends, shortly after journals began anew in the midst of
    micro-batches."""
    return replace(
        _quiet(chance, plan, 2, 1),
        trouble_ms=60_000,
        pace_ms=chance.choice((100, 300)),
        retains_ms=1_500.0,
        total_losses=8,
        losses_partial=True,
        publish_ms=1_000.0,
    )


def _rolled_back(chance: Random, plan: Plan) -> Plan:
    """Again and again all stop, and one comes back with an older copy of its directory, which is named all the same."""
    brokers = chance.choice((3, 3, 5))
    return replace(
        _quiet(chance, plan, brokers, brokers // 2 + 1),
        faults=("kill", "transfer_leadership", "blip"),
        fault_every_ms=2_500,
        trouble_ms=60_000,
        rollbacks=5,
    )


def _restored(chance: Random, plan: Plan) -> Plan:
    """Again and again the coordination service is put back to an older copy, under brokers that run and that stop."""
    brokers = chance.choice((3, 3, 4, 5))
    return replace(
        _quiet(chance, plan, brokers, brokers // 2 + 1),
        faults=("kill", "transfer_leadership", "blip", "isolate", "session_expires"),
        fault_every_ms=1_500,
        trouble_ms=60_000,
        leaders_hit=0.7,
        restores=5,
    )


def _hasty_moves(chance: Random, plan: Plan) -> Plan:
    """The partition is taken from brokers as soon as others are in sync, whether or not one of the former leads it
    still."""
    brokers = chance.choice((3, 4, 5))
    return replace(
        _quiet(chance, plan, brokers, 1),
        faults=("kill", "transfer_leadership", "blip"),
        fault_every_ms=2_500,
        moves_ms=1_000.0,
        hasty=True,
    )


def _liar(chance: Random, plan: Plan) -> Plan:
    """Somebody whom brokers take for one of them says what no broker would. Nothing is promised then but that nobody
    dies of it."""
    brokers = chance.choice((2, 3, 3))
    quiet = _quiet(chance, plan, brokers, chance.choice((1, brokers)))
    return replace(
        quiet,
        settings=replace(quiet.settings, dedup_uuids_max=chance.choice((3, 100))),
        faults=(
            "kill",
            "restart_at_once",
            "power_loss_of_all",
            "blip",
            "disk_full",
            "damage",
            "transfer_leadership",
            "clean_stop",
        ),
        fault_every_ms=chance.choice((1_500, 4_000)),
        trouble_ms=15_000,
        shortens=chance.choice((0.0, 0.02, 0.1)),
        lies_ms=chance.choice((2.0, 10.0, 50.0)),
    )


def _narrow_windows(chance: Random, plan: Plan) -> Plan:
    """Few UUIDs are remembered, and not for long; journals begin anew again and again, and brokers with them."""
    brokers = chance.choice((1, 2, 3))
    return replace(
        _quiet(
            chance,
            plan,
            brokers,
            1,
            dedup_uuids_max=chance.choice((700, 100_000)),
            dedup_ms=chance.choice((20_000, 30_000)),
        ),
        faults=("restart_at_once",),
        fault_every_ms=4_000,
        trouble_ms=60_000,
        pace_ms=10,
        retains_ms=1_000.0,
        shortens=0.3,
    )


PROFILES: dict[str, Narrow] = {
    "unanswered": _unanswered,
    "joiners": _joiners,
    "replaced-logs": _replaced_logs,
    "full-disks": _full_disks,
    "deposed": _deposed,
    "recoveries": _recoveries,
    "rolled-back": _rolled_back,
    "restored": _restored,
    "hasty-moves": _hasty_moves,
    "liar": _liar,
    "narrow-windows": _narrow_windows,
}
