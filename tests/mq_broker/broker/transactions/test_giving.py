"""A query goes on under another user's name: its key is given, at real brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.transactions.giving import Giving
from mq_broker.broker.transactions.requests import key_of, listed_name
from mq_broker.core.entries import Give
from mq_broker.security.names import Principal
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    PermissionDenied,
    StagedBatchMissing,
    Unreachable,
)
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.test_three_brokers import Three, three
from tests.mq_broker.broker.transactions.test_owners import KEY, decide, served, stage
from tests.virtual.world import in_virtual_time

pytestmark = pytest.mark.usefixtures("named")

OLD, NEW, THIEF = "User:etl", "User:etl-2", "User:thief"
NAME = listed_name(KEY.query_id)
FOR_NOW = (NotLeader, OutcomeUnknown, Unreachable, NotEnoughReplicas, CoordinationUnavailable)
"""While leaders change: asked again."""

STATUS = pb.TransactionStatusRequest(key=KEY)


async def give(who: Broker, owner: str = NEW, query: str = NAME, **fields: Any) -> pb.GiveTransactionResponse:
    request = pb.GiveTransactionRequest(query=query, sink="t", owner=owner, **fields)
    answer: pb.GiveTransactionResponse = await who.ask("GiveTransaction", request)
    return answer


def also(root: As, who: str) -> As:
    """Somebody else at the same broker."""
    return As(root.broker, who)


def writes_all(who: str) -> pb.AclRule:
    return pb.AclRule(principal=who, operation="Write", kind="Topic", name="", prefix=True)


@virtual_time
async def test_a_query_goes_on_under_a_new_name_and_its_former_user_is_a_stranger(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, old, thief):
        new = also(root, NEW)
        await root.allow(writes_all(NEW))
        await decide(old, 0, await stage(old, 0, 1), rows=1)
        left = await stage(old, 1, 2)
        with pytest.raises(PermissionDenied):
            await decide(new, 1)
        given = await give(root)
        assert (given.known, given.former) == (True, OLD)
        for stranger in (old, thief):
            for batch_id, run in ((1, "run"), (0, "run"), (0, "another"), (2**62, "run")):
                with pytest.raises(PermissionDenied, match="another user's"):
                    await decide(stranger, batch_id, run=run)
            with pytest.raises(PermissionDenied):
                await stranger.ask("TransactionStatus", STATUS)
        with pytest.raises(StagedBatchMissing):
            await decide(new, 1, left, rows=1, run="second")
        assert (await new.ask("TransactionStatus", STATUS)).batch_id == 0
        await decide(new, 1, await stage(new, 1, 2, run="second"), rows=1, run="second")
        assert await root.numbers("t") == [1, 2], "each once"
        [known] = (await root.ask("Transactions", pb.TransactionsRequest(query=NAME))).known
        assert known.owner == NEW


def test_a_give_may_be_asked_for_again_and_outlasts_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (root, old, _):
            await decide(old, 0, await stage(old, 0, 1), rows=1)
            assert [(await give(root, query=KEY.query_id)).former for _ in range(2)] == [OLD, NEW]
            assert (await give(root, "User:etl-3", query=f"{NAME}:t")).former == NEW
            await give(root)
        async with judging(tmp_path) as broker:
            await until(lambda: led_again(As(broker, ROOT)))
            with pytest.raises(PermissionDenied):
                await decide(As(broker, OLD), 1)
            await As(broker, ROOT).allow(writes_all(NEW))
            await decide(As(broker, NEW), 1)

    async def led_again(root: As) -> bool:
        return bool((await root.ask("Transactions", pb.TransactionsRequest(query=NAME))).known)

    in_virtual_time(main())


def test_who_may_give_is_who_may_alter_the_transaction_and_not_who_owns_it(tmp_path: Path) -> None:
    """Else a user could rid himself of keys that count for his quota, or burden another one with them."""

    async def main() -> None:
        async with served(tmp_path) as (root, old, thief):
            await decide(old, 0, await stage(old, 0, 1), rows=1)
            await root.allow(*rules(THIEF, "Describe", "Write", "Abort"), *rules(OLD, "Describe", "Write", "Abort"))
            for who in (old, thief):
                assert not (await give(who, THIEF)).known
            with pytest.raises(PermissionDenied):
                await decide(thief, 1)
            await root.allow(*rules("User:ops", "Alter"))
            assert (await give(also(root, "User:ops"))).known

    def rules(who: str, *operations: str) -> list[pb.AclRule]:
        return [
            pb.AclRule(principal=who, operation=operation, kind="Transaction", name=KEY.query_id)
            for operation in operations
        ]

    in_virtual_time(main())


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("", "names no user"),
        ("etl", "names no user"),
        ("*", "names no user"),
        ("User:*", "names no user"),
        ("Nobody:etl", "names no principal"),
        ("User:", "name"),
        ("User:e\u202etl", "name"),
        ("User:" + "e" * 300, "name"),
        ("Group:staff", "one user"),
        ("Broker:1", "one user"),
        ("User:ANONYMOUS", "owns nothing"),
    ],
)
@virtual_time
async def test_nobody_is_given_a_key_who_can_own_none(tmp_path: Path, owner: str, words: str) -> None:
    async with served(tmp_path) as (root, old, _):
        await decide(old, 0, await stage(old, 0, 1), rows=1)
        with pytest.raises(InvalidRequest, match=words):
            await give(root, owner)
        await decide(old, 1)


@virtual_time
async def test_attempts_are_denials_and_a_give_is_noted_in_the_audit_log(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, old, thief):
        await decide(old, 0, await stage(old, 0, 1), rows=1)
        with pytest.raises(PermissionDenied):
            await decide(thief, 1)
        with pytest.raises(PermissionDenied):
            await thief.ask("TransactionStatus", STATUS)
        await give(thief, THIEF)
        await thief.ask("AbortTransaction", pb.AbortTransactionRequest(query=NAME, sink="t"))
        await give(old)
        await give(root)
        of_key, rule = f"transaction '{NAME}'", "it is another user's, who decided under it first or was given it"
        expected = [
            ("denied", THIEF, "Decide", "Write", of_key, rule),
            ("denied", THIEF, "TransactionStatus", "Describe", of_key, rule),
            ("denied", THIEF, "GiveTransaction", "Alter", of_key, rule),
            ("denied", THIEF, "AbortTransaction", "Abort", of_key, rule),
            ("denied", OLD, "GiveTransaction", "Alter", of_key, "no right"),
            ("allowed", ROOT, "GiveTransaction", "Alter", f"{of_key}: '{OLD}' -> '{NEW}'", "superuser"),
        ]

        async def are_noted() -> bool:
            text = (tmp_path / "audit.log").read_text()
            assert KEY.query_id not in text
            told = ("verdict", "principal", "method", "operation", "resource", "reason")
            lines = [tuple(json.loads(line).get(name) for name in told) for line in text.splitlines()]
            return [line for line in lines if line[0] == "denied" or (line[3] == "Alter")] == expected

        await until(are_noted)


@virtual_time
async def test_a_give_survives_its_coordinator_killed_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is on its way when the leader goes, and nobody is told what became of it. Asked again it is done,
    whether a successor has the entry or not. At no broker is the key of two users."""
    async with three(tmp_path, authorize=True, superusers=(Principal.parse(ROOT),)) as cluster:
        roots = {number: As(broker, ROOT) for number, broker in cluster.brokers.items()}
        await roots[1].create_topic("t", replicas=3)
        await roots[1].allow(writes_all(OLD), writes_all(NEW), writes_all(THIEF))
        await until(lambda: decided(cluster, OLD, 0))
        on_its_way = asyncio.Event()

        async def propose_only(self: Giving, request: pb.GiveKeyRequest, deadline: float) -> Any:
            partition = await self._transactions.coordinator(key_of(request.key))
            partition.propose(Give(key_of(request.key), request.owner), lambda _: None, deadline)
            on_its_way.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as stalled:
            stalled.setattr(Giving, "give_key", propose_only)
            coordinator = await knows(roots)
            asked = asyncio.create_task(give(roots[coordinator], timeout_ms=2_000))
            async with asyncio.timeout(30):
                await on_its_way.wait()
            await cluster[coordinator].abandon()
            await asyncio.gather(asked, return_exceptions=True)
        alive = {number: root for number, root in roots.items() if number != coordinator}
        await until(lambda: given_to(alive, NEW))
        await until(lambda: is_denied(cluster, coordinator, OLD))
        await until(lambda: is_denied(cluster, coordinator, THIEF))
        await until(lambda: decided(cluster, NEW, 1, but=coordinator))
        await until(lambda: owners_are(alive, {NEW}))


async def decided(cluster: Three, who: str, batch_id: int, *, but: int = 0) -> bool:
    """An empty micro-batch, at whoever coordinates."""
    request = pb.DecideRequest(key=KEY, batch_id=batch_id, run_id=who, timeout_ms=2_000)
    for number, broker in cluster.brokers.items():
        if number == but:
            continue
        with contextlib.suppress(*FOR_NOW):
            await As(broker, who).ask("Decide", request)
            return True
    return False


async def is_denied(cluster: Three, gone: int, who: str) -> bool:
    request = pb.DecideRequest(key=KEY, batch_id=1, run_id="x", timeout_ms=2_000)
    for number, broker in cluster.brokers.items():
        if number == gone:
            continue
        with contextlib.suppress(*FOR_NOW):
            with pytest.raises(PermissionDenied):
                await As(broker, who).ask("Decide", request)
            return True
    return False


async def knows(roots: dict[int, As]) -> int:
    """Which broker coordinates the key."""
    for number, root in roots.items():
        if (await root.ask("Transactions", pb.TransactionsRequest(query=NAME))).known:
            return number
    raise AssertionError("nobody knows the key")


async def given_to(roots: dict[int, As], owner: str) -> bool:
    for root in roots.values():
        with contextlib.suppress(*FOR_NOW):
            if (await give(root, owner, timeout_ms=2_000)).known:
                return True
    return False


async def owners_are(roots: dict[int, As], owners: set[str]) -> bool:
    answers = [await root.ask("Transactions", pb.TransactionsRequest(query=NAME)) for root in roots.values()]
    return {known.owner for answer in answers for known in answer.known} == owners
