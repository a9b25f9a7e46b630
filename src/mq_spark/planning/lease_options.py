"""The options of a source that works off a queue group. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mq_protocol.errors import InvalidRequest, InvalidSetting
from mq_protocol.names import check_group_name, check_member_id, did_you_mean
from mq_protocol.queue_settings import LEASE_MS_CEILING, LEASE_MS_FLOOR
from mq_spark.planning.option_values import integer

GROUP: Final = "lease.group"
MEMBER: Final = "lease.member"
LEASE_MS: Final = "lease.ms"
LOST: Final = "leaseLost"
_OTHERS: Final = (MEMBER, LEASE_MS, LOST)

LEASE_MS_USUAL: Final = 3_600_000
"""For so long a query that was killed may be away, and finds its micro-batch as it was."""

_MEANINGLESS: Final = {
    "subscribePattern": "name the topics with subscribe",
    "assign": "name the topics with subscribe; the queue lends from all partitions",
    "startingOffsets": "a queue begins where it was declared to: tritonmq queue declare TOPIC GROUP --from",
    "startingTimestamp": "a queue begins where it was declared to: tritonmq queue declare TOPIC GROUP --from",
    "startingOffsetsByTimestamp": "a queue begins where it was declared to: tritonmq queue declare TOPIC GROUP --from",
    "maxBytesPerTrigger": "use maxOffsetsPerTrigger",
    "minOffsetsPerTrigger": "use a longer processingTime trigger",
    "maxTriggerDelay": "use a longer processingTime trigger",
    "filter": "rows that the broker leaves out would count as done; use .filter(...) on the DataFrame",
    "kafka.group.id": "lease.group names the group",
    "groupIdPrefix": "lease.group names the group",
}
"""What cannot be kept to beside lease.group, and what to do instead."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """As whom a query works off which queue group. `member`: the member's id, which begins with `spark-`.
    `skip_lost`: go on without records that others were lent meanwhile."""

    group: str
    member: str
    lease_ms: int
    skip_lost: bool


def parse_lease(options: Mapping[str, str], streaming: bool | None) -> LeaseOptions | None:
    """None without `lease.group`. Raises `InvalidSetting`."""
    if GROUP not in options:
        for name in _OTHERS:
            if name in options:
                raise InvalidSetting(f"{name} has no meaning without {GROUP}: give that too, or leave it out")
        return None
    if streaming is False:
        raise InvalidSetting(
            f"{GROUP} has no meaning in a batch read: use readStream with trigger(availableNow=True), which ends when "
            "the queue is worked off, or leave it out to read without taking anything from the queue"
        )
    for name, instead in _MEANINGLESS.items():
        if name in options:
            raise InvalidSetting(f"{name} cannot be used with {GROUP}: {instead}")
    if MEMBER not in options:
        raise InvalidSetting(
            f"{MEMBER} is missing: name this query, the same at every start, so that it finds again what it was lent"
        )
    group, member = options[GROUP], f"spark-{options[MEMBER]}"
    for name, check, value in ((GROUP, check_group_name, group), (MEMBER, check_member_id, options[MEMBER])):
        try:
            check(value)
        except InvalidRequest as error:
            raise InvalidSetting(f"{name}: {error}") from None
    try:
        check_member_id(member)
    except InvalidRequest as error:
        raise InvalidSetting(f"{MEMBER}: {error}") from None
    lost = options.get(LOST, "fail").strip().lower()
    if lost not in ("fail", "skip"):
        raise InvalidSetting(f"{LOST}={lost!r} is not known{did_you_mean(lost, ('fail', 'skip'))} (fail or skip)")
    lease_ms = integer(options, LEASE_MS, LEASE_MS_FLOOR) or LEASE_MS_USUAL
    if lease_ms > LEASE_MS_CEILING:
        raise InvalidSetting(f"{LEASE_MS}={lease_ms} is too long: give at most {LEASE_MS_CEILING} (12 hours)")
    return LeaseOptions(group, member, lease_ms, skip_lost=lost == "skip")
