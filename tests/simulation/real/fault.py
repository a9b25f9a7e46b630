"""What a fault to plant is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`where` is "module:Class.method" under mq_broker, or from `mq_protocol` on; `old` must occur in its source
    exactly once. `needs`: what must happen for it to show: kinds of the nemesis, or "small segments", "groups",
    "transactions", "queue", "schedules" (some batches are for later), "carry" (so are they, and the journal begins
    later again and again), "tight" (the bounds of queue groups are low), "order" (they are in order by key), "filter"
    (groups have filters, which change), "sieves" (members have filters), "strict", "weighted" or "ignore" (records and
    members have priorities, and groups that setting), "idles" (a group goes when nobody has it open), "reject" or
    "drop_head" (groups have a bound of their length), "bytes" (it is one of bytes), "letters of length" (of what is
    too much), "lives" (some batches have a time to live), "ttl" (groups have), "drop" or "dead" (what becomes of
    records that have expired), "narrow" (little waits in connections), "busy".
    `also`: other places, each with its `old` and `new`, where one edit alone breaks nothing."""

    name: str
    where: str
    old: str
    new: str
    needs: tuple[str, ...] = ()
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def file(self) -> str:
        """Where it is planted, as the README's table says it."""
        return self.where.partition(":")[0].replace(".", "/") + ".py"
