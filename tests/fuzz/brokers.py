"""A broker under requests of every method by the grammar of mq.proto: `python -m tests.fuzz.brokers --minutes 10`.

It lives, fails within itself at none of them, and does not grow. Nobody is denied anything here: each request reaches
what carries it out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from google.protobuf.message import DecodeError, Message

from mq_client import Admin
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InternalError, TritonMQError
from mq_protocol.methods import BROKER, Kind, Method
from tests.fuzz.altering import message
from tests.fuzz.filters import ROWS, SCHEMA
from tests.fuzz.requests import request
from tests.mq_broker.broker.channel import Channel
from tests.mq_cli.processes import Command

AT_ONCE: Final = 12
CALL_S: Final = 1.0
WARM_SHARE: Final = 0.3
"""After this part of the time what is made by names has been made: from then on the broker is not to grow."""

GROWTH_BYTES_MAX: Final = 64 << 20
BATCH: Final = ROWS.serialize().to_pybytes()


@dataclass
class Outcome:
    """What became of the requests. `answers`: how many, by the name of the error. `failures`: those at which the
    broker failed within itself, as method, error and request. `grown_bytes`: by how much it grew."""

    answers: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str, bytes]] = field(default_factory=list)
    grown_bytes: int = 0


@contextlib.contextmanager
def broker(data: Path) -> Iterator[tuple[str, Command]]:
    """A broker that stands alone, with two topics."""
    address = f"127.0.0.1:{free_port()}"
    with Command("broker", "--id", "1", "--listen", address, "--data", str(data), "--standalone") as running:
        running.remark_with("serves")
        with Admin(address) as admin:
            admin.create_topic("t")
            admin.create_topic("rows", schema=SCHEMA)
        yield address, running


async def attack(address: str, process: psutil.Process, seed: int, seconds: float) -> Outcome:
    """Asks the broker for so long. `process` is the broker's."""
    outcome = Outcome()
    begun, before = time.monotonic(), 0

    async def ask_on(number: int, channel: Channel, until: float) -> None:
        chance = random.Random(seed * AT_ONCE + number)
        methods = list(BROKER.methods.values())
        while time.monotonic() < until and process.is_running():
            await _ask(channel, chance.choice(methods), chance, outcome)

    for share in (WARM_SHARE, 1.0):
        channel = Channel(address)
        async with asyncio.TaskGroup() as tasks:
            for number in range(AT_ONCE):
                tasks.create_task(ask_on(number, channel, begun + share * seconds))
        with contextlib.suppress(psutil.NoSuchProcess):
            after = process.memory_info().rss
            outcome.grown_bytes, before = after - (before or after), after
        seed += 1
    return outcome


async def _ask(channel: Channel, method: Method, chance: random.Random, outcome: Outcome) -> None:
    """One call; of a conversation, some requests and what is answered first."""
    call = channel.call(method.name)
    data = _asked(method, chance)
    try:
        async with asyncio.timeout(CALL_S):
            await call.say(*data)
            for _ in range(chance.choice((0, 0, 1, 3)) if method.kind is Kind.CONVERSATION else 0):
                await call.say(*_asked(method, chance))
            if method.kind is not Kind.CONVERSATION:
                await call.end()
            answer = await call.read()
    except TritonMQError as error:
        outcome.answers[type(error).__name__] += 1
        if isinstance(error, InternalError):
            outcome.failures.append((method.name, str(error), data[0]))
    except TimeoutError:
        outcome.answers["no answer yet"] += 1
    else:
        outcome.answers["an answer"] += 1
        if told_within := _internal(method, answer):
            outcome.failures.append((method.name, told_within, data[0]))
    finally:
        call.cancel()


def _asked(method: Method, chance: random.Random) -> tuple[bytes, bytes]:
    """A request, and its payload."""
    return _produced(chance) if method.name == "Produce" else (request(method, chance), b"")


def _produced(chance: random.Random) -> tuple[bytes, bytes]:
    if chance.random() < 0.2:
        return request(BROKER.methods["Produce"], chance), b""
    header: Any = message(pb.ProduceHeader, chance)
    header.topic, header.partition = chance.choice((("rows", 0), ("t", 0)))
    header.uuid, header.record_count = chance.randbytes(16), chance.choice((len(ROWS), 1))
    return header.SerializeToString(), BATCH


def _internal(method: Method, answer: object) -> str:
    """The text of an error of ours within an answer that says the broker failed."""
    if not isinstance(answer, bytes):
        return ""
    try:
        told = _errors(method.response.FromString(answer))
        return next((error.message for error in told if error.code == pb.INTERNAL), "")
    except DecodeError as error:
        return f"an answer that is no {method.response.__name__}: {error}"


def _errors(told: Any) -> Iterator[pb.Error]:
    if isinstance(told, pb.Error):
        yield told
        return
    for described, value in told.ListFields():
        if described.message_type is None or described.message_type.GetOptions().map_entry:
            continue
        for each in value if described.is_repeated else (value,):
            if isinstance(each, Message):
                yield from _errors(each)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.brokers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as data, broker(Path(data)) as (address, running):
        process = psutil.Process(running.pid)
        outcome = asyncio.run(attack(address, process, given.seed, 60 * given.minutes))
        lives = running.process.poll() is None
    told = ", ".join(f"{count} {name}" for name, count in outcome.answers.most_common())
    print(f"seed {given.seed}: {told}; grown by {outcome.grown_bytes >> 20} MiB; {'lives' if lives else 'HAS ENDED'}")
    for method, error, data_ in outcome.failures[:10]:
        print(f"{method}: {error}: {data_[:200]!r}")
    return 0 if lives and not outcome.failures and outcome.grown_bytes < GROWTH_BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
