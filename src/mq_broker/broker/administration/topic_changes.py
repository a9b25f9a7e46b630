"""What a topic's document becomes when its replicas move, its partitions or columns grow in number or its settings
change. Pure.

Each is given the document as it is and makes the same of what it has made already, so that it can be asked again after
a lost answer (`Topics.edit`). Who carries moves out is moves.py; where replicas should go, rebalancing.py and
placement.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from mq_broker.broker.administration.rebalancing import Members
from mq_broker.coordination.interface import Move, TopicSpec
from mq_protocol.arrow import schema_from_bytes, schema_to_bytes
from mq_protocol.errors import IncompatibleVersion, InvalidRequest, InvalidSetting, UnknownPartition
from mq_protocol.limits import MEMBERS_MAX, PARTITIONS_PER_TOPIC_MAX, REPLICAS_MAX
from mq_protocol.names import SETTINGS, parse_settings
from mq_protocol.sql.ddl import check_column_names
from mq_protocol.sql.evolution import check_extension

# ---------------------------------------------------------------------- moves


def begun(spec: TopicSpec, wanted: Mapping[int, Members], live: Collection[int]) -> TopicSpec:
    """The document once these partitions are on their way. Raises `UnknownPartition`, `InvalidRequest`,
    `InvalidSetting`."""
    assignment, moving = list(spec.assignment), dict(spec.moving)
    for number, target in sorted(wanted.items()):
        if not 0 <= number < len(assignment):
            raise UnknownPartition(f"topic {spec.name} has partitions 0 to {len(assignment) - 1}, not {number}")
        members, present = assignment[number], moving.get(number)
        if present is not None and present.target == target:
            continue
        _check_target(f"{spec.name}-{number}", target, members, live)
        if len(members) + len(target) > MEMBERS_MAX:
            raise InvalidRequest(
                f"{spec.name}-{number} is on {len(members)} brokers, since it was sent on before it had arrived: wait "
                "until it has (`tritonmq cluster moves`), or call the move off"
            )
        assignment[number] = (*members, *(broker for broker in target if broker not in members))
        moving[number] = replace(present, target=target) if present is not None else Move(target, members)
    after = replace(spec, assignment=tuple(assignment), moving=moving)
    copies = {len(members) for members in after.target}
    if copies != {len(members) for members in spec.target}:
        if len(copies) > 1:
            raise InvalidRequest(
                f"every partition of topic {spec.name} has {spec.replicas} replicas: name as many brokers; "
                f"`tritonmq topic alter {spec.name} --replicas N` changes how many"
            )
        parse_settings(spec.settings, copies.pop())
    return after


def _check_target(name: str, target: Members, members: Members, live: Collection[int]) -> None:
    if not target or len(set(target)) != len(target) or len(target) > REPLICAS_MAX:
        raise InvalidRequest(f"{name} cannot be on brokers {list(target)}: name 1 to {REPLICAS_MAX} of them, each once")
    absent = [broker for broker in target if broker not in members and broker not in live]
    if absent:
        raise InvalidRequest(f"{name} cannot move to broker {absent[0]}, which is not live: start it first")


def called_off(spec: TopicSpec, numbers: Collection[int]) -> TopicSpec:
    """The document once these partitions are on their way back to where they came from; those that have arrived
    stay."""
    moving = {
        number: replace(move, target=move.origin) if number in numbers else move
        for number, move in sorted(spec.moving.items())
    }
    return replace(spec, moving=moving)


def arrived(spec: TopicSpec, done: Mapping[int, Move]) -> TopicSpec:
    """The document once these moves are over. One that was given another target meanwhile is not."""
    over = {number for number, move in done.items() if spec.moving.get(number) == move}
    assignment = tuple(spec.moving[n].target if n in over else members for n, members in enumerate(spec.assignment))
    return replace(spec, assignment=assignment, moving={n: move for n, move in spec.moving.items() if n not in over})


def is_complete(move: Move, isr: Collection[int]) -> bool:
    """Whether the target may stand alone: all who came have joined the in-sync set, and no fewer of it are in sync than
    of the origin. A broker of the origin that was dead before need not come back for the others to move."""
    came = [broker for broker in move.target if broker not in move.origin]
    in_sync = sum(broker in isr for broker in move.target)
    before = sum(broker in isr for broker in move.origin)
    return all(broker in isr for broker in came) and 0 < in_sync >= min(len(move.target), before)


# ---------------------------------------------------------------------- partitions, columns and settings


def check_partitions(spec: TopicSpec, partitions: int) -> None:
    """Raises `InvalidRequest` unless the topic may have so many."""
    if partitions < len(spec.assignment):
        raise InvalidRequest(
            f"topic {spec.name} has {len(spec.assignment)} partitions and cannot have fewer: its keys and offsets "
            "would mean other records; make another topic"
        )
    if partitions > PARTITIONS_PER_TOPIC_MAX:
        raise InvalidRequest(f"partitions={partitions} is out of range: at most {PARTITIONS_PER_TOPIC_MAX}")


def with_columns(spec: TopicSpec, wanted: pa.Schema) -> TopicSpec:
    """The document with the schema `wanted`: what it has, and nullable columns behind that. Raises `InvalidRequest` for
    any other change, and for a topic of records."""
    if not spec.schema:
        raise InvalidRequest(
            f"topic {spec.name} holds records, whose columns are fixed: put more into their values or headers, or make "
            "a topic with a schema of its own"
        )
    before = schema_from_bytes(spec.schema)
    check_extension(spec.name, before, wanted)
    if len(wanted) == len(before):
        return spec
    check_column_names(list(wanted)[len(before) :])
    return replace(spec, schema=schema_to_bytes(wanted), earlier=(*spec.earlier, len(before)))


def check_level(settings: Iterable[str], level: int) -> None:
    """Raises `IncompatibleVersion` if a broker of a cluster of that level may not know one of these settings."""
    for name in settings:
        if name in SETTINGS and SETTINGS[name].level > level:
            raise IncompatibleVersion(
                f"the setting {name} needs level {SETTINGS[name].level} of features, and the cluster is at level "
                f"{level}: upgrade all brokers, then run `tritonmq cluster upgrade`"
            )


def with_settings(spec: TopicSpec, given: Mapping[str, str]) -> TopicSpec:
    """The document with these settings; an empty value is the default again. Raises `InvalidSetting` for a setting that
    is unknown, out of range, or cannot be changed while the topic is in use."""
    settings = {name: value for name, value in {**spec.settings, **given}.items() if value}
    before, after = parse_settings(spec.settings, spec.replicas), parse_settings(settings, spec.replicas)
    for name in given:
        if name not in SETTINGS:
            parse_settings({name: "-"}, spec.replicas)  # says which was meant
        if not SETTINGS[name].live and getattr(before, name) != getattr(after, name):
            live = ", ".join(sorted(setting.name for setting in SETTINGS.values() if setting.live))
            raise InvalidSetting(
                f"{name} cannot be changed once the topic is made (those that can: {live}): make another topic and copy"
            )
    return replace(spec, settings=settings)
