"""Partitions as the gathering sees them, and a broker that holds them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mq_broker.broker.metrics.observing import Observing
from mq_broker.core.machine.state import Cursor


def part(topic: str = "t", number: int = 0, **given: Any) -> Any:
    """A replica of broker 1, which leads it with all of brokers 1 to 3 in sync; its log is offsets 10 to 99."""
    fields: dict[str, Any] = {
        "leader": 1,
        "serving": True,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "least": 2,
        "moving_to": (),
        "cursors": {},
        "staged": {},
        "asleep": True,
        "unheard_ms": {},
        "work": {},
        "retention_ms": None,
        "keeping": None,
        **given,
    }
    moving = {number: SimpleNamespace(target=fields["moving_to"])} if fields["moving_to"] else {}
    machine = SimpleNamespace(
        staged=fields["staged"],
        work=fields["work"],
        due_times=[each for each in fields["staged"].values() if each.due_us],
        cursors={group: Cursor(offset, "spark", 70 + offset) for group, offset in fields["cursors"].items()},
    )
    return SimpleNamespace(
        number=number,
        topic=SimpleNamespace(
            spec=SimpleNamespace(name=topic, moving=moving),
            settings=SimpleNamespace(min_insync_replicas=fields["least"], retention_ms=fields["retention_ms"]),
        ),
        closed=False,
        serving=fields["serving"],
        leading=fields["leader"] == 1,
        rest=SimpleNamespace(asleep=fields["asleep"]),
        next_offset=100,
        index=SimpleNamespace(log_start_offset=10, bytes_total=5_000),
        replica=SimpleNamespace(
            leader=fields["leader"],
            leader_epoch=4,
            replicas=fields["replicas"],
            isr=fields["isr"],
            high_watermark=321,
            machine=machine,
        ),
        unheard_ms=fields["unheard_ms"],
        journal=SimpleNamespace(keeping=fields["keeping"]),
        lag=lambda offset: (100 - offset, 1_000 * (100 - offset)),
    )


def topic(name: str, *assignment: tuple[int, ...]) -> Any:
    """As the cluster knows it: the brokers of each of its partitions."""
    return SimpleNamespace(spec=SimpleNamespace(name=name, assignment=assignment))


def observing(
    data: Path,
    *parts: Any,
    members: dict[str, list[str]] | None = None,
    topics: tuple[Any, ...] = (),
    labels: dict[str, str] | None = None,
) -> Observing:
    """Broker 1 of three, of which it has a link to 2. Its open replicas are `parts`. `labels`: of groups."""
    open_here = {(each.topic.spec.name, each.number): each for each in parts}
    shell: Any = SimpleNamespace(
        broker=1,
        incarnation=7,
        partitions=lambda: list(parts),
        links=SimpleNamespace(connected=lambda: [2]),
        hosted=lambda asked, number: open_here.get((asked.spec.name, number)),
    )
    cluster: Any = SimpleNamespace(brokers={1: None, 2: None, 3: None})
    known = members or {}
    return Observing(
        shell, cluster, data, ("c-1", "r"), lambda _part, group: known.get(group, []), lambda: "file",
        topics=lambda: topics, label_of=lambda group: (labels or {}).get(group, ""),
    )  # fmt: skip
