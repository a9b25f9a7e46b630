"""Deleting a topic only if it is empty."""

from __future__ import annotations

import asyncio
from pathlib import Path

from click.testing import CliRunner, Result

from mq_cli.managing.topic import topic
from mq_client import Admin
from tests.mq_broker.broker.cluster import standalone


def test_a_topic_that_holds_messages_is_kept_and_an_empty_one_is_deleted_without_asking(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            admin = Admin(broker.address)

            async def delete(name: str) -> Result:
                arguments = ["delete", name, "--if-empty", "--bootstrap", broker.address]
                return await asyncio.to_thread(CliRunner().invoke, topic, arguments)

            for name in ("full", "empty"):
                await broker.create_topic(name)
            await broker.produce("full", 1, 2)
            refused, done = await delete("full"), await delete("empty")
            assert "holds 2 records" in str(refused.exception)
            assert (done.exit_code, done.exception) == (0, None)
            assert "deleted topic empty" in done.output
            assert await asyncio.to_thread(admin.list_topics) == ["full"]
            await asyncio.to_thread(admin.purge, "full")
            assert (await delete("full")).exit_code == 0

    asyncio.run(scenario())
