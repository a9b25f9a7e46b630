"""A broker that can be held still between a decision and what follows: the product's own, with three points in its
coordinator.

Run like the `tritonmq` command: `python -m tests.spark.crashes.failing_broker broker --id 1 …`. The points, armed as in
mq_spark/datasource/failpoints.py: `before_publish` (decided, nothing published), `before_publish.<topic>` (the topic's
part is not published), `before_answer` (all is published, the driver not told). Only the coroutine is held, the broker
serves on.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from mq_broker.broker import server
from mq_broker.broker.transactions.coordinator import Transactions
from mq_cli.main import main
from mq_protocol import mq_pb2 as pb
from mq_spark.datasource.failpoints import VARIABLE, claim

_LOOK_S = 0.02


class HeldTransactions(Transactions):
    """What `Transactions` owns."""

    async def decide(self, request: pb.DecideRequest, deadline: float) -> pb.DecideResponse:
        answer = await super().decide(request, deadline)
        await _reached("before_answer")
        return answer

    async def _publish_all(self, publishing: Any) -> None:
        await _reached("before_publish")
        await super()._publish_all(publishing)

    async def _publish_line(self, publishing: Any, line: Any) -> None:
        await _reached(f"before_publish.{line.topic}")
        await super()._publish_line(publishing, line)


async def _reached(point: str) -> None:
    """Whoever comes by while somebody is held waits too: one topic has several partitions."""
    directory = Path(os.environ[VARIABLE])
    mark = claim(directory, point) or directory / f"{point}.reached"
    while mark.exists():  # noqa: ASYNC110 (another process removes it)
        await asyncio.sleep(_LOOK_S)


if __name__ == "__main__":
    server.Transactions = HeldTransactions  # type: ignore[attr-defined]
    main()
