"""The gate by itself: in which order it judges, and what it costs nobody."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from pathlib import Path
from typing import Any, cast

import pytest

from mq_broker.rpc import gate as module
from mq_broker.rpc.callers import account, note_caller
from mq_broker.rpc.gate import Gate, UnderWay
from mq_broker.rpc.pacing import paid_for
from mq_broker.security.authority import Asker, Authority
from mq_broker.security.names import Principal, broker_uri, client_uri
from mq_broker.security.quotas import METERS_MIN, Meter
from mq_broker.security.revoked import Revoked
from mq_broker.security.rules import Effect, Rule, RuleBook
from mq_broker.security.tokens import Tokens
from mq_broker.security.verified import Verified
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import NotAuthenticated, PermissionDenied, TritonMQError, UnknownTopic
from mq_protocol.limits import REQUEST_PLACES_MAX
from mq_protocol.methods import BROKER
from tests.coroutines import real_time
from tests.mq_broker.others import Others
from tests.securing import Certs

ETL = Principal("User", "etl")


def rule(operation: Operation, name: str, kind: Kind = Kind.TOPIC, *, prefix: bool = False) -> Rule:
    return Rule(str(ETL), Effect.ALLOW, operation, kind, name, prefix)


class Judging:
    """A gate whose rules a test gives."""

    def __init__(self, *rules: Rule, on: bool = True) -> None:
        self.authority = Authority(on=on)
        self.gate = Gate(self.authority)
        self.version = 0
        self._given = rules

    async def begin(self) -> Asker:
        self.give(*self._given)
        return Asker(ETL, "", self.authority)

    def give(self, *rules: Rule, revoked: frozenset[str] = frozenset()) -> None:
        self.version += 1
        self.authority.take(self.version, RuleBook(rules), Revoked(names=revoked), Tokens())

    async def admit(self, method: str, request: Any) -> None:
        asker = Asker(ETL, "", self.authority)
        await self.gate.door(BROKER.methods[method]).admit(asker, request)


def test_rules_that_were_not_read_yet_allow_nothing() -> None:
    judging = Judging()
    with pytest.raises(UnknownTopic):
        asyncio.run(judging.admit("Fetch", pb.FetchRequest(topic="t")))


def test_where_rights_are_not_judged_everything_is_admitted() -> None:
    judging = Judging(on=False)
    asyncio.run(judging.admit("DeleteTopic", pb.DeleteTopicRequest(name="t")))


class Context:
    """A connection that has proved nothing."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class From(Context):
    """One more, from another port."""

    def __init__(self, port: int) -> None:
        self._port = port

    def peer(self) -> str:
        return f"ipv4:127.0.0.1:{self._port}"


@real_time
async def test_a_revoked_name_and_a_brokers_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    judging = Judging(rule(Operation.READ, "", prefix=True))
    await judging.begin()
    door = judging.gate.door(BROKER.methods["Metadata"])
    context: Any = Context()
    assert door.greet(context).text == "User:ANONYMOUS"
    judging.give(revoked=frozenset({"User:ANONYMOUS"}))
    with pytest.raises(NotAuthenticated):
        door.greet(context)
    certs = Certs(tmp_path / "certs")
    brokers: Any = Proven(broker_uri(1), certs.authority.broker(1, ["127.0.0.1"]).certificate)
    with pytest.raises(PermissionDenied, match="a broker's certificate is no user's"):
        door.greet(brokers)


@real_time
async def test_who_is_revoked_while_the_request_is_read_opens_no_stream() -> None:
    judging = Judging(rule(Operation.WRITE, "t"))
    asker = await judging.begin()
    by_token = Asker(ETL, "", judging.authority, token=Verified(ETL, 9e9, api_token="0" * 16))
    door = judging.gate.door(BROKER.methods["Produce"])
    with pytest.raises(NotAuthenticated, match=r"^not authenticated$"):
        door.under_way(by_token)
    judging.give(revoked=frozenset({str(ETL)}))
    with pytest.raises(NotAuthenticated, match="revoked"):
        door.under_way(asker)
    assert not judging.gate.calls


@real_time
async def test_a_revoked_name_loses_its_open_streams() -> None:
    judging = Judging(rule(Operation.WRITE, "t"))
    asker = await judging.begin()
    door = judging.gate.door(BROKER.methods["Produce"])
    started = asyncio.Event()

    async def stream() -> None:
        with door.under_way(asker):
            started.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(stream())
    await started.wait()
    judging.give(rule(Operation.WRITE, "t"), revoked=frozenset({str(ETL)}))
    with pytest.raises(NotAuthenticated):
        await asyncio.wait_for(running, 10)
    assert not judging.gate.calls


@real_time
async def test_rules_that_change_while_a_long_request_is_judged_count() -> None:
    """Ten thousand names take turns with others, one of whom takes a right away."""
    judging = Judging(rule(Operation.DESCRIBE, "", prefix=True))
    await judging.begin()
    places = [pb.TopicPartition(topic=f"t{number}") for number in range(REQUEST_PLACES_MAX)]
    admitting = asyncio.create_task(judging.admit("WatchOffsets", pb.WatchOffsetsRequest(partitions=places)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not admitting.done(), "others have their turn"
    denied = Rule(str(ETL), Effect.DENY, Operation.DESCRIBE, Kind.TOPIC, "t0")  # which was judged already
    judging.give(rule(Operation.DESCRIBE, "", prefix=True), denied)
    with pytest.raises(UnknownTopic, match="'t0'"):
        await asyncio.wait_for(admitting, 10)


@real_time
async def test_a_request_with_many_names_rests_while_it_is_judged() -> None:
    """Without rests others have a turn for each hundred names."""
    judging = Judging(rule(Operation.DESCRIBE, "", prefix=True))
    await judging.begin()
    places = [pb.TopicPartition(topic=f"t{number}") for number in range(1_500)]
    async with Others() as others:
        await judging.admit("WatchOffsets", pb.WatchOffsetsRequest(partitions=places))
    assert others.turns > 100


@real_time
async def test_all_that_is_under_way_is_judged_again_in_turns_with_others() -> None:
    kept = rule(Operation.READ, "kept")
    judging = Judging(kept, rule(Operation.READ, "lost"))
    asker = await judging.begin()
    outcomes: dict[str, int] = {"kept": 0, "lost": 0}
    all_lost = asyncio.Event()

    async def call(topic: str) -> None:
        try:
            with UnderWay(judging.gate.calls, asker, "Fetch") as under_way:
                under_way.grants[Operation.READ, Kind.TOPIC, topic] = None
                await asyncio.Event().wait()
        except TritonMQError:
            outcomes[topic] += 1
            if outcomes["lost"] == 2_000:
                all_lost.set()

    tasks = [asyncio.create_task(call(topic)) for topic in ("kept", "lost") for _ in range(2_000)]
    await asyncio.sleep(0)
    judging.give(kept)
    await asyncio.wait_for(all_lost.wait(), 10)
    assert outcomes["kept"] == 0
    assert len(judging.gate.calls) == 2_000
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def batch(topic: str, query_id: str = "") -> pb.ProduceHeader:
    if not query_id:
        return pb.ProduceHeader(topic=topic)
    return pb.ProduceHeader(topic=topic, stage=pb.StageOf(key=pb.TransactionKey(query_id=query_id)))


@pytest.mark.parametrize(
    ("query_id", "needed"),
    [
        ("4b7f8c1e-5a57-4d7c-9d2e-0b6a3d1f2c11", None),
        ("write:4b7f8c1e-5a57-4d7c-9d2e-0b6a3d1f2c11", None),
        ("app:nightly", rule(Operation.WRITE, "app:nightly", Kind.TRANSACTION)),
        ("4b7f8c1e-5a57-4d7c-9d2e-0b6a3d1f2c11 ", rule(Operation.WRITE, "4b7f8c1e", Kind.TRANSACTION, prefix=True)),
        (f"work:{'0' * 32}/0/g", rule(Operation.READ, "g", Kind.GROUP)),
    ],
)
@real_time
async def test_a_chosen_name_of_a_transaction_needs_a_right(query_id: str, needed: Rule | None) -> None:
    writes = rule(Operation.WRITE, "t")
    judging = Judging(writes)
    asker = await judging.begin()
    door = judging.gate.door(BROKER.methods["Produce"])
    with door.under_way(asker) as call:
        assert door.admit_batch(call, batch("t")) is None
        for _ in range(2):
            error = door.admit_batch(call, batch("t", query_id))
            assert (error is None) is (needed is None)
        if needed is not None:
            assert isinstance(error, PermissionDenied)
            judging.give(writes, needed)
            assert door.admit_batch(call, batch("t", query_id)) is None
            judging.give(needed)
            assert isinstance(door.admit_batch(call, batch("t", query_id)), UnknownTopic)
        judging.give()
        assert isinstance(door.admit_batch(call, batch("t")), UnknownTopic), "what was judged before counts no more"


class Proven(Context):
    """What a certificate has proved, of a connection from the same address."""

    def __init__(self, uri: str, pem: bytes) -> None:
        self._uri, self._pem = uri, pem

    @classmethod
    def user(cls, certs: Certs, name: str) -> Proven:
        return cls(client_uri(name), Path(certs.user(name).files().certificate).read_bytes())

    def auth_context(self) -> dict[str, list[bytes]]:
        return {
            "transport_security_type": [b"ssl"],
            "ssl_tls_version": [b"TLSv1.3"],
            "peer_uri": [self._uri.encode()],
            "x509_pem_cert": [self._pem],
        }


@real_time
async def test_who_asks_is_remembered_by_connection_and_never_by_address_alone(
    tmp_path: Path,
) -> None:
    certs, others = Certs(tmp_path / "certs"), Certs(tmp_path / "others")
    etl, etl_again, newer, night = (
        Proven.user(certs, "etl"),
        Proven.user(certs, "etl"),
        Proven.user(others, "etl"),  # another certificate, as after it was replaced
        Proven.user(certs, "night"),
    )
    judging = Judging()
    await judging.begin()
    door = judging.gate.door(BROKER.methods["Metadata"])
    greet: Any = door.greet
    first = greet(etl)
    assert greet(etl_again) is first
    another: Any = judging.gate.door(BROKER.methods["ListOffsets"])
    assert another.greet(etl) is not first, "what it is denied is noted with what it asked"
    second = greet(newer)
    assert second is not first
    assert (second.text, second.serial == first.serial) == ("User:etl", False)
    assert greet(night).text == "User:night"
    assert greet(etl).text == "User:etl"
    assert greet(Context()).text == "User:ANONYMOUS"
    assert greet(Context()).serial == "", "not that of who came before"
    for port in range(module.ASKERS_MAX + 1):
        greet(From(port))
    assert len(judging.gate._askers) <= module.ASKERS_MAX


def test_what_a_request_costs_is_put_down_to_its_user_or_to_the_host_of_who_has_no_name(tmp_path: Path) -> None:
    nobody: Any = Context()
    etl: Any = Proven.user(Certs(tmp_path / "certs"), "etl")
    accounts = []
    for context, port in ((nobody, 1), (nobody, 2), (etl, 3)):
        context.peer = lambda port=port: f"ipv4:127.0.0.1:{port}"
        copy_context().run(lambda context=context: (note_caller(context), accounts.append(account())))
    assert accounts == ["ipv4:127.0.0.1", "ipv4:127.0.0.1", "User:etl"]


@real_time
async def test_who_is_remembered_pays_from_the_purse_that_its_name_has_now(tmp_path: Path) -> None:
    """A connection may rest for so long that its meter is dropped, and another one of that name have a new one."""
    certs = Certs(tmp_path / "certs")
    judging = Judging()
    await judging.begin()
    quotas, greet = judging.gate.quotas, cast("Any", judging.gate.door(BROKER.methods["Metadata"]).greet)
    former = greet(Proven.user(certs, "etl")).meter
    for number in range(10 * METERS_MIN):
        quotas.meter(1e9, f"User:{number}")
    newer = quotas.meter(1e9, "User:etl")
    assert newer is not former
    assert greet(Proven.user(certs, "etl")).meter is newer


@real_time
async def test_who_is_remembered_is_revoked_at_once_all_the_same(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    etl: Any = Proven.user(certs, "etl")
    judging = Judging()
    await judging.begin()
    door = judging.gate.door(BROKER.methods["Metadata"])
    serial = door.greet(etl).serial
    assert serial
    for revoked in ("User:etl", serial):
        judging.authority.take(9, RuleBook(), Revoked().changed([revoked], []), Tokens())
        with pytest.raises(NotAuthenticated, match="revoked"):
            door.greet(etl)
        judging.give()
        assert door.greet(etl).text == "User:etl"


@real_time
async def test_a_request_that_is_not_paid_for_at_once_is_not_taken_without_a_wait() -> None:
    loop = asyncio.get_running_loop()
    meter = Meter(str(ETL))
    assert paid_for(meter), "nothing bounds it"
    meter.limit(loop.time(), {Quota.REQUESTS: 1})
    taken = 0
    while paid_for(meter):
        taken += 1
        assert meter.delay(loop.time(), Quota.REQUESTS) == 0
    assert taken >= 1


@real_time
async def test_a_task_that_was_ended_goes_on_uncancelled() -> None:
    judging = Judging()
    asker = await judging.begin()

    async def ended() -> None:
        with UnderWay(judging.gate.calls, asker, "Fetch") as under_way:
            asyncio.get_running_loop().call_soon(under_way.end, PermissionDenied("gone"))
            await asyncio.Event().wait()

    async def call() -> str:
        with pytest.raises(PermissionDenied):
            await ended()
        await asyncio.sleep(0)  # a cancelled task would end here
        return "answered"

    assert await asyncio.wait_for(asyncio.create_task(call()), 10) == "answered"
