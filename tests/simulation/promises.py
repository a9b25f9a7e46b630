"""What clients were answered, held against what is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_broker.core.entries import Append, Decide, Discard, Schedule, Stage
from mq_broker.core.messages import Decided, Done, Propose, RecordsThere

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.oracle import Oracle


def check_written(oracle: Oracle, host: Host, propose: Propose, index: int) -> None:
    """acks=leader: the leader's own disk has it, though others may not."""
    journal = host.journal
    if host.replica.identity.log_id != journal.log_id:
        return  # damaged a moment ago, as in `acknowledged`
    if index > journal.durable_end or (
        index > journal.durable_base and journal.durable_entry(index).uuid != propose.uuid
    ):
        raise oracle.violation(
            host.partition,
            f"batch {propose.uuid!r} is acknowledged as written at {index}, and is not surely kept: "
            f"{journal.durable_end} is",
        )


def check_promise(oracle: Oracle, host: Host, propose: Propose, result: Done | Decided | RecordsThere) -> None:
    """What the answer says is what the log has."""
    life = oracle.life_of(host)
    match propose.operation, result:
        case ((Append() | Stage() | Schedule()), Done(index, base_offset)):
            at = life.uuid_at.get(propose.uuid)
            if at != index:
                raise oracle.violation(
                    host.partition, f"batch {propose.uuid!r} is acknowledged at {index}, committed is it at {at}"
                )
            if isinstance(propose.operation, Append) and life.placed.get(index) != base_offset:
                raise oracle.violation(
                    host.partition,
                    f"batch {propose.uuid!r} is acknowledged at offset {base_offset}, it is at "
                    f"{life.placed.get(index)}",
                )
        case Append() as append, RecordsThere(records):
            told = {append.uuids()[record.position]: record.offset for record in records}
            wrong = {uuid: offset for uuid, offset in told.items() if life.record_at.get(uuid) != offset}
            if wrong:
                raise oracle.violation(
                    host.partition,
                    f"records are said to be at {wrong}: they are at {[life.record_at.get(u) for u in wrong]}",
                )
        case Decide(key, batch_id) as decide, Decided(row_count):
            decided = life.decided.get((key, batch_id))
            if decided is None or not decided.row_count == row_count == decide.row_count:
                raise oracle.violation(
                    host.partition, f"{propose.operation} is answered {result}, decided is {decided}"
                )
        case Discard(uuids=uuids), Done(index, duplicate=False):
            discard = life.committed[index - 1].operation if index <= life.end else None
            if not isinstance(discard, Discard) or not set(discard.uuids) <= set(uuids):
                raise oracle.violation(
                    host.partition, f"{propose.operation} is acknowledged at {index}, and is not there"
                )
        case _, Done(index, duplicate=False):
            if index > life.end or life.committed[index - 1].operation != propose.operation:
                raise oracle.violation(
                    host.partition, f"{propose.operation} is acknowledged at {index}, and is not there"
                )
        case _:
            pass


HARMLESS_ALARMS = ("the disk refused entries", "the log has a new id", "nothing was committed for")
BESIDE_A_RECOVERY = ("was recovered from another log", "would cut committed entry", "lacks what is committed here")
AFTER_A_RESTORATION = ("was the coordination service restored",)


def is_of_the_world(alarm: str, *, recovered: bool, restored: bool) -> bool:
    """Whether faults of the world cause it; any other says that a rule was broken. `recovered`: of a replica that goes
    on as if the partition had not been recovered (rule 15)."""
    known = HARMLESS_ALARMS + BESIDE_A_RECOVERY * recovered + AFTER_A_RESTORATION * restored
    return any(text in alarm for text in known)
