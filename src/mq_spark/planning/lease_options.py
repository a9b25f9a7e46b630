"""The options of a source that works off a queue group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mq_protocol.errors import InvalidRequest, InvalidSetting
from mq_protocol.names import check_group_name, check_member_id, did_you_mean
from mq_protocol.queues.settings import LEASE_MS_CEILING, LEASE_MS_FLOOR
from mq_spark.planning.option_values import integer

GROUP: Final = "lease.group"
MEMBER: Final = "lease.member"
LEASE_MS: Final = "lease.ms"
LOST: Final = "leaseLost"
ROWS: Final = "lease.rows"
_OTHERS: Final = (MEMBER, LEASE_MS, LOST, ROWS)

LEASE_MS_USUAL: Final = 3_600_000
"""For so long a query that was killed may be away, and finds its micro-batch as it was."""

_MEANINGLESS: Final = {
    "subscribePattern": "name the topics with subscribe",
    "assign": "name the topics with subscribe; the queue lends from all partitions",
    "startingOffsets": "a queue begins where it was declared to: tritonmq queue declare TOPIC GROUP --from",
    "startingTimestamp": "a queue begins where it was declared to: tritonmq queue declare TOPIC GROUP --from",
    "startingOffsetsByTimestamp": "a queue begins where it was declared to: tritonmq queue declare TOPIC GROUP --from",
    "endingOffsets": "a queue lends what is ready",
    "endingTimestamp": "a queue lends what is ready",
    "endingOffsetsByTimestamp": "a queue lends what is ready",
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
    """As whom a query works off which queue group. `member`: the member's id, which begins with `spark-`; empty in a
    batch read, each of which is another member. `rows`: a batch read is lent at most so many. `skip_lost`: go on
    without records that others were lent meanwhile."""

    group: str
    member: str
    lease_ms: int
    skip_lost: bool
    rows: int | None = None


def parse_lease(options: Mapping[str, str], streaming: bool | None) -> LeaseOptions | None:
    """None without `lease.group`. While it is not known yet whether it is a stream, options without `lease.member` are
    those of a batch read: a stream needs that. Raises `InvalidSetting`."""
    if GROUP not in options:
        for name in _OTHERS:
            if name in options:
                raise InvalidSetting(f"{name} has no meaning without {GROUP}: give that too, or leave it out")
        return None
    for name, instead in _MEANINGLESS.items():
        if name in options:
            raise InvalidSetting(f"{name} cannot be used with {GROUP}: {instead}")
    rows = integer(options, ROWS, 1)
    if streaming and MEMBER not in options:
        raise InvalidSetting(
            f"{MEMBER} is missing: name this query, the same at every start, so that it finds again what it was lent"
        )
    if streaming is False and MEMBER in options:
        raise InvalidSetting(
            f"{MEMBER} has no meaning in a batch read, each of which is another member: leave it out, or use "
            "readStream with trigger(availableNow=True), which ends when the queue is worked off"
        )
    if rows is not None and (streaming or MEMBER in options):
        raise InvalidSetting(f"{ROWS} has no meaning in a stream: use maxOffsetsPerTrigger")
    group = options[GROUP]
    _check(GROUP, check_group_name, group)
    member = ""
    if MEMBER in options:
        member = f"spark-{options[MEMBER]}"
        _check(MEMBER, check_member_id, options[MEMBER])
        _check(MEMBER, check_member_id, member)
    lost = options.get(LOST, "fail").strip().lower()
    if lost not in ("fail", "skip"):
        raise InvalidSetting(f"{LOST}={lost!r} is not known{did_you_mean(lost, ('fail', 'skip'))} (fail or skip)")
    lease_ms = integer(options, LEASE_MS, LEASE_MS_FLOOR) or LEASE_MS_USUAL
    if lease_ms > LEASE_MS_CEILING:
        raise InvalidSetting(f"{LEASE_MS}={lease_ms} is too long: give at most {LEASE_MS_CEILING} (12 hours)")
    return LeaseOptions(group, member, lease_ms, skip_lost=lost == "skip", rows=rows)


def _check(option: str, check: Callable[[str], object], value: str) -> None:
    """Raises `InvalidSetting`, which names the option."""
    try:
        check(value)
    except InvalidRequest as error:
        raise InvalidSetting(f"{option}: {error}") from None
