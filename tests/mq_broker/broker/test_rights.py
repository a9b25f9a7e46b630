"""Every method, asked by everybody, at a real broker: what is allowed is what the table of rights says, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import RIGHTS
from mq_protocol.access.rights import Kind as Resource
from mq_protocol.errors import NotAuthenticated, PermissionDenied, TritonMQError, UnknownTopic
from mq_protocol.methods import BROKER, Kind, Method
from mq_protocol.wire.envelope import Envelope, decode, encode
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.security.test_rules import Written, oracle
from tests.virtual.world import in_virtual_time

pytestmark = pytest.mark.usefixtures("named")

TOPIC, OTHER, GROUP = "orders-eu", "orders-us", "readers-eu"
KEY = pb.TransactionKey(query_id="app:nightly", sink=TOPIC)
REVOKED = "User:gone"
"""Has every right, and is revoked."""

REQUESTS: dict[str, Any] = {
    "Metadata": pb.MetadataRequest(topics=[TOPIC]),
    "CreateTopic": pb.CreateTopicRequest(name=TOPIC, partitions=1, replicas=1),
    "CreateTopics": pb.CreateTopicsRequest(
        topics=[pb.CreateTopicRequest(name=name, partitions=1, replicas=1) for name in (TOPIC, OTHER)]
    ),
    "DeleteTopic": pb.DeleteTopicRequest(name=TOPIC),
    "AlterTopic": pb.AlterTopicRequest(name=TOPIC),
    "StartMoves": pb.StartMovesRequest(cancel=True),
    "Lead": pb.LeadRequest(topic=TOPIC, broker=1, timeout_ms=1),
    "Recover": pb.RecoverRequest(topic=TOPIC, timeout_ms=1),
    "ListOffsets": pb.ListOffsetsRequest(topic=TOPIC, partitions=[0]),
    "MoveCursors": pb.MoveCursorsRequest(
        group=GROUP,
        kind="spark",
        positions=[pb.CursorPosition(topic=TOPIC), pb.CursorPosition(topic=OTHER)],
    ),
    "DeleteGroup": pb.DeleteGroupRequest(group=GROUP, partitions=[pb.TopicPartition(topic=TOPIC)]),
    "Purge": pb.PurgeRequest(positions=[pb.CursorPosition(topic=TOPIC), pb.CursorPosition(topic=OTHER)]),
    "CancelScheduled": pb.CancelScheduledRequest(topic=TOPIC, uuid=b"u" * 16),
    "AlterQueue": pb.AlterQueueRequest(topic=TOPIC, group="work-eu", settings={"dead_letter": OTHER}),
    "Queues": pb.QueuesRequest(topic=TOPIC),
    "DescribeQueue": pb.DescribeQueueRequest(topic=TOPIC, group=GROUP),
    "SweepQueue": pb.SweepQueueRequest(topic=TOPIC, group=GROUP),
    "Decide": pb.DecideRequest(
        key=KEY,
        manifest=[pb.StagedBatches(topic=TOPIC, uuids=[b"u" * 16], row_count=1), pb.StagedBatches(topic=OTHER)],
    ),
    "TransactionStatus": pb.TransactionStatusRequest(key=KEY),
    "Staged": pb.StagedRequest(topic=TOPIC),
    "Work": pb.WorkRequest(
        sessions=[
            pb.SessionRequest(
                session=1,
                open=pb.WorkOpen(topic=TOPIC, group=GROUP, member="m", member_key=b"k" * 16),
                terms=pb.WorkTerms(lease_ms=1_000),
                settles=[pb.SettleOne(outputs=[pb.StagedBatches(topic=OTHER)])],
            )
        ]
    ),
    "Produce": pb.ProduceHeader(topic=TOPIC, uuid=b"u" * 16, correlation=1, stage=pb.StageOf(key=KEY, run_id="r")),
    "Fetch": pb.FetchRequest(topic=TOPIC),
    "Subscribe": pb.SubscribeRequest(
        open=pb.SubscribeOpen(
            group=GROUP,
            member_id="m",
            member_key=b"k" * 16,
            partitions=[pb.SubscribePartition(topic=TOPIC), pb.SubscribePartition(topic=OTHER)],
        )
    ),
    "WatchOffsets": pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic=TOPIC), pb.TopicPartition(topic=OTHER)]),
    "Lock": pb.LockRequest(name="lock-eu", wait_ms=0),
    "AlterAcls": pb.AlterAclsRequest(remove=[pb.AclRule(principal="*", operation="Read", kind="Topic", name="x")]),
    "CheckAcl": pb.CheckAclRequest(principal="*", operation="Read", kind="Topic", name="x"),
}
"""One of each that names what there is; of the others the empty one."""

NEEDING = [method for method in BROKER.methods.values() if RIGHTS[method.name].needs]


class Need(NamedTuple):
    operation: str
    kind: str
    name: str | None
    """None: any."""


class Case(NamedTuple):
    """Somebody with these rules asks a method. `expected`: None if it is allowed, else the class of the error."""

    method: Method
    who: str
    rules: tuple[Written, ...]
    expected: type[TritonMQError] | None


def request_of(method: Method) -> Any:
    request = REQUESTS.get(method.name)
    return method.request() if request is None else request


def needs_of(method: Method) -> list[Need]:
    """Of the request above, in order. A stream is judged when it is opened, by what it needs first,
    on any name."""
    needs = []
    if method.kind is not Kind.UNARY:
        first = RIGHTS[method.name].needs[0]
        needs.append(Need(first.operation, first.kind, None))
    for need in RIGHTS[method.name].needs:
        names = [None] if need.names is None else [name for name in need.names(request_of(method)) if name]
        needs += [Need(need.operation, need.kind, name) for name in names]
    return needs


def expected(rules: Iterable[Written], who: str, needs: Iterable[Need]) -> type[TritonMQError] | None:
    """By the oracle, which shares nothing with what judges."""
    written = list(rules)
    for operation, kind, name in needs:
        tried = [name] if name is not None else [TOPIC, OTHER, "any-other", "lock-eu"]
        if any(oracle(written, who, operation, kind, each) for each in tried):
            continue
        hidden = kind == "Topic" and operation != "Create" and name is not None
        if hidden and not oracle(written, who, "Describe", kind, str(name)):
            return UnknownTopic
        return PermissionDenied
    return None


def shaped(shape: str, name: str, kind: str) -> str:
    return name if shape == "literal" or kind == Resource.CLUSTER else f"{name[:-1]}*"


def cases_of(method: Method) -> list[Case]:
    needs = needs_of(method)
    found: list[Case] = []

    def add(who: str, rules: Iterable[Written]) -> None:
        user = f"User:{method.name}-{who}"
        mine = tuple(rule._replace(who=user) for rule in rules)
        found.append(Case(method, user, mine, expected(mine, user, needs)))

    def allow(need: Need, shape: str, effect: str = "allow", operation: str = "") -> Written:
        name = shaped(shape, need.name or TOPIC, need.kind)
        return Written("", effect, operation or need.operation, need.kind, name)

    for shape in ("literal", "prefix"):
        granted = [allow(need, shape) for need in needs]
        add(f"allowed-{shape}", granted)
        described = {need.kind for need in needs if need.kind not in (Resource.LOCK,)}
        add(
            f"described-{shape}",
            [allow(need, shape, operation="Describe") for need in needs if need.kind in described],
        )
        for number, need in enumerate(needs):
            others = [rule for place, rule in enumerate(granted) if needs[place] != need]
            add(f"all-but-{number}-{shape}", others)
            add(f"denied-{number}-{shape}", [*granted, allow(need, shape, effect="deny")])
            if need.kind != Resource.LOCK:
                add(f"hidden-{number}-{shape}", [*granted, allow(need, shape, effect="deny", operation="Describe")])
    add("nobody", ())
    found.append(Case(method, "User:ANONYMOUS", (), expected((), "", needs)))
    found.append(Case(method, "Broker:1", (), PermissionDenied))
    everything = tuple(rule._replace(who=REVOKED) for rule in (allow(need, "literal") for need in needs))
    found.append(Case(method, REVOKED, everything, NotAuthenticated))
    found.append(Case(method, ROOT, (), None))
    return found


def rule_of(written: Written) -> pb.AclRule:
    prefix = written.name.endswith("*")
    return pb.AclRule(
        principal=written.who,
        deny=written.effect == "deny",
        operation=written.operation,
        kind=written.kind,
        name=written.name.removesuffix("*"),
        prefix=prefix,
    )


async def outcome(broker: Broker, method: Method, request: Any) -> TritonMQError | None:
    """The error that the method ends with, or None. Of a stream that goes on, what its first answer says."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            if method.kind is Kind.UNARY:
                await broker.ask(method.name, request)
                return None
            return await _first_said(broker, method, request)
    except TritonMQError as error:
        return error


async def _first_said(broker: Broker, method: Method, request: Any) -> TritonMQError | None:
    call = broker.channel.call(method.name)
    produces = method.name == "Produce"
    try:
        await call.write(encode(Envelope(request, (b"x",))) if produces else request.SerializeToString())
        if method.kind is Kind.ANSWERS:
            await call.end()
        answer = await call.read()
    finally:
        call.cancel()
    if produces:
        assert answer is not None
        result = pb.ProduceResponse.FromString(answer).results[0]
        return from_wire(result.error) if result.HasField("error") else None
    if method.name == "Subscribe":
        assert answer is not None
        assert decode(answer, pb.BatchesHeader).header.opened
    return None


def test_every_method_is_asked_of_somebody_with_each_right_and_without_it() -> None:
    """What the next test tries is what it should."""
    for method in BROKER.methods.values():
        assert len(needs_of(method)) >= len([n for n in RIGHTS[method.name].needs if n.names is None])
    for method in NEEDING:
        outcomes = {case.expected for case in cases_of(method)}
        assert {None, PermissionDenied} <= outcomes or {None, UnknownTopic} <= outcomes, method.name
        assert NotAuthenticated in outcomes, method.name
    assert sum(len(cases_of(method)) for method in NEEDING) > 500


@pytest.mark.parametrize("methods", [NEEDING[::2], NEEDING[1::2]], ids=["even", "odd"])
@virtual_time
async def test_a_request_is_allowed_exactly_if_each_of_its_names_is(methods: list[Method], tmp_path: Path) -> None:
    async with judging(tmp_path) as broker:
        root = As(broker, ROOT)
        cases = [case for method in methods for case in cases_of(method)]
        await root.metadata("__transactions")  # makes it
        await root.allow(*(rule_of(rule) for case in cases for rule in case.rules))
        await root.ask("Revoke", pb.RevokeRequest(add=[REVOKED]))
        wrong = []
        for case in cases:
            for topic in (TOPIC, OTHER):
                if not (await root.metadata(topic)).topics:
                    await root.create_topic(topic)
            error = await outcome(As(broker, case.who), case.method, request_of(case.method))
            refused = isinstance(error, PermissionDenied | UnknownTopic | NotAuthenticated)
            found = type(error) if refused else None
            if found is not case.expected:
                wrong.append((case.method.name, case.who, case.rules, case.expected, error))
        assert wrong == []


def test_a_broadcast_group_is_joined_by_who_may_read_the_group(tmp_path: Path) -> None:
    """Else whoever reads the topic joins with a higher priority, and its members are given nothing more."""
    who = "User:reader"
    opened = pb.SubscribeOpen(broadcast="desks", member_id="m", partitions=[pb.SubscribePartition(topic=TOPIC)])

    async def main() -> None:
        async with judging(tmp_path) as broker:
            root, reader = As(broker, ROOT), As(broker, who)
            await root.create_topic(TOPIC)
            await root.allow(pb.AclRule(principal=who, operation="Read", kind="Topic", name=TOPIC))
            subscribe = BROKER.methods["Subscribe"]
            denied = await outcome(reader, subscribe, pb.SubscribeRequest(open=opened))
            assert isinstance(denied, PermissionDenied)
            assert "no right Read on group 'desks'" in str(denied)
            await root.allow(pb.AclRule(principal=who, operation="Read", kind="Group", name="desks"))
            assert await outcome(reader, subscribe, pb.SubscribeRequest(open=opened)) is None

    in_virtual_time(main())


@virtual_time
async def test_topics_are_made_together_by_who_may_make_each_and_nobody_else_hears_which_are_there(
    tmp_path: Path,
) -> None:
    who = "User:maker"
    async with judging(tmp_path) as broker:
        root, maker = As(broker, ROOT), As(broker, who)
        await root.create_topic("hidden-there")
        await root.allow(
            pb.AclRule(principal=who, operation="Create", kind="Topic", name="mine-", prefix=True),
            pb.AclRule(principal=who, operation="Describe", kind="Topic", name="seen"),
        )
        told = []
        for other in ("hidden-there", "hidden-none", "seen"):
            topics = [pb.CreateTopicRequest(name=name, partitions=1, replicas=1) for name in ("mine-1", other)]
            with pytest.raises(PermissionDenied) as denied:
                await maker.ask("CreateTopics", pb.CreateTopicsRequest(topics=topics))
            told.append(str(denied.value).replace(other, ""))
        assert len(set(told)) == 1, told
        assert {topic.name for topic in (await root.metadata()).topics} == {"hidden-there"}
        made = await maker.ask("CreateTopics", pb.CreateTopicsRequest(topics=topics[:1]))
        assert [each.error.code for each in made.topics] == [0]
