"""What a broker logs is changed while it runs, and goes back by itself."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from mq_broker.broker.metrics.log_levels import LogLevels
from mq_cli.managing.cluster import cluster
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import standalone

NAME = "mq_broker.rpc.wire.links"


def level() -> int:
    return logging.getLogger(NAME).level


def request(logger: str = NAME, level: str = "DEBUG", seconds: int = 60) -> pb.SetLogLevelRequest:
    return pb.SetLogLevelRequest(logger=logger, level=level, seconds=seconds)


@virtual_time
async def test_a_level_holds_for_a_while_and_the_one_from_before_comes_back() -> None:
    before, levels = level(), LogLevels()
    answer = await levels.set_log_level(request(), 0.0)
    assert (answer.seconds, level()) == (60, logging.DEBUG)
    await levels.set_log_level(request(level="ERROR", seconds=1), 0.0)
    assert level() == logging.ERROR
    (changed,) = (await levels.log_levels(pb.LogLevelsRequest(), 0.0)).levels
    assert (changed.logger, changed.level, changed.seconds) == (NAME, "ERROR", 1)
    async with asyncio.timeout(10):
        while level() != before:  # noqa: ASYNC110 - what is waited for is the logger's
            await asyncio.sleep(0.01)
    assert not (await levels.log_levels(pb.LogLevelsRequest(), 0.0)).levels
    await levels.set_log_level(request(), 0.0)
    levels.close()
    assert level() == before


@pytest.mark.parametrize(
    "wrong",
    [request(level="LOUD"), request(logger="kazoo"), request(logger="mq_broker.nothing"), request(logger="root"),
     request(seconds=86_401)],
)  # fmt: skip
@virtual_time
async def test_what_a_broker_does_not_have_is_refused_and_makes_no_logger(wrong: pb.SetLogLevelRequest) -> None:
    known = set(logging.root.manager.loggerDict)
    with pytest.raises(InvalidRequest):
        await LogLevels().set_log_level(wrong, 0.0)
    assert set(logging.root.manager.loggerDict) == known


@real_time
async def test_the_commands_change_and_show_one_broker_and_name_those_there_are(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        words = ["log-level", "1", "debug", "--logger", NAME, "--for", "60", "--bootstrap", broker.address]
        done = await asyncio.to_thread(CliRunner().invoke, cluster, words)
        assert (done.exit_code, level()) == (0, logging.DEBUG), done.output
        listing = ["log-levels", "1", "--json", "--bootstrap", broker.address]
        shown = await asyncio.to_thread(CliRunner().invoke, cluster, listing)
        (row,) = json.loads(shown.stdout)
        assert 0 < row.pop("seconds") <= 60
        assert row == {"logger": NAME, "level": "DEBUG"}
        words[1] = "9"
        refused = await asyncio.to_thread(CliRunner().invoke, cluster, words)
        assert "there are [1]" in str(refused.exception)
    assert level() != logging.DEBUG
