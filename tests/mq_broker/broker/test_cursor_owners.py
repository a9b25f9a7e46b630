"""The cursor by which a query shows how far it is belongs to the user who moved it first, at a real broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import from_wire
from mq_protocol.errors import InvalidRequest, PermissionDenied
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.test_cursors import cursors, is_at, move
from tests.mq_broker.broker.test_member_owners import are_denied
from tests.virtual.world import in_virtual_time

pytestmark = pytest.mark.usefixtures("named")

ANN, BOB = "User:ann", "User:bob"


@contextlib.asynccontextmanager
async def with_both(data: Path) -> AsyncIterator[tuple[As, As, As]]:
    """A superuser, and two users who may read topic `t` in every group."""
    async with judging(data) as broker:
        root = As(broker, ROOT)
        if not (await root.metadata("t")).topics:
            await root.create_topic("t")
            for who in (ANN, BOB):
                for kind in ("Topic", "Group"):
                    await root.allow(pb.AclRule(principal=who, operation="Read", kind=kind, prefix=True))
            await root.produce("t", *range(10))
        yield root, As(broker, ANN), As(broker, BOB)


async def is_led_and_at(broker: Broker, offset: int) -> bool:
    """A new start tells cursors before its leader serves, and moves none until then."""
    return bool(await broker.end("t")) and await is_at(broker, offset)


async def moved(who: Broker, offset: int, **fields: object) -> pb.PartitionOffsets:
    return await move(who, offset, **{"kind": "spark", **fields})  # type: ignore[arg-type]


def test_nobody_else_moves_a_querys_cursor(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_both(tmp_path) as (root, ann, bob):
            await moved(ann, 4)
            attempts: list[dict[str, Any]] = [
                {},
                {"kind": "consumer", "member_id": "m"},
                {"kind": "ephemeral", "member_id": "m"},
                {"kind": "", "reset": True},
                {"kind": "", "reset": True, "unless_read": True},
            ]
            for fields in attempts:
                with pytest.raises(PermissionDenied, match="query of another user"):
                    await moved(bob, 9, **fields)
                assert await cursors(root) == [(4, "spark")], fields
            await moved(ann, 2)
            await moved(ann, 6, reset=True)
            assert await cursors(root) == [(6, "spark")]

    in_virtual_time(main())


def test_nobody_else_consumes_in_the_group_of_a_query(tmp_path: Path) -> None:
    """What it settles would move the query's cursor."""

    async def main() -> None:
        async with with_both(tmp_path) as (root, ann, bob):
            await moved(ann, 4)
            for member in (bob.subscribing(), bob.subscribing()):
                async with member as theirs:
                    await theirs.open("t", group="g", member="m", earliest=True)
                    [opened] = await theirs.read_opened()
                    error = from_wire(opened.error)
                    assert isinstance(error, PermissionDenied)
                    assert "query of another user" in str(error)
            async with ann.subscribing() as mine:
                await mine.open("t", group="g", member="m", earliest=True)
                [opened] = await mine.read_opened()
                assert (opened.active, opened.offset) == (True, 4)
                await mine.read_numbers(10)
                await mine.settle("t", 10)
                await until(lambda: is_at(root, 10))
            assert await cursors(root) == [(10, "consumer")]
            with pytest.raises(InvalidRequest, match="one of consumers"):
                await moved(bob, 9)

    in_virtual_time(main())


def test_a_superuser_moves_it_and_does_not_take_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_both(tmp_path) as (root, ann, bob):
            await moved(root, 1, kind="spark", reset=True)  # before the query is there
            await moved(ann, 4)
            await moved(root, 5)
            await moved(root, 3, kind="", reset=True)
            assert await cursors(root) == [(3, "spark")]
            await moved(ann, 6)
            with pytest.raises(PermissionDenied):
                await moved(bob, 7)

    in_virtual_time(main())


def test_owners_outlast_the_broker_and_do_not_count_where_rights_are_not_judged(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_both(tmp_path) as (_, ann, _bob):
            await moved(ann, 4)
        async with with_both(tmp_path) as (root, ann, bob):
            await until(lambda: is_led_and_at(root, 4))
            with pytest.raises(PermissionDenied):
                await moved(bob, 5)
            await moved(ann, 5)
        async with standalone(tmp_path) as broker:
            await until(lambda: is_led_and_at(broker, 5))
            await moved(broker, 6)

    in_virtual_time(main())


def test_attempts_are_denials_in_the_audit_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_both(tmp_path) as (_, ann, bob):
            await moved(ann, 4)
            with pytest.raises(PermissionDenied):
                await moved(bob, 9)
            async with bob.subscribing() as theirs:
                await theirs.open("t", group="g", member="m", earliest=True)
                await theirs.read_opened()

            reason = "the cursor is of another user's query, who moved it first"
            expected = [(BOB, method, "Read", "group 'g'", reason) for method in ("MoveCursors", "Subscribe")]

            await until(lambda: are_denied(tmp_path, expected))

    in_virtual_time(main())
