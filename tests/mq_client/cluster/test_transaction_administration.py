"""What an administrator is told of transactions, and aborts."""

from __future__ import annotations

from typing import Any

import pytest

from mq_client.administration import transaction_admin
from mq_client.administration.admin import Admin
from mq_client.errors import (
    InvalidRequest,
    OutcomeUnknown,
    UnknownTransaction,
    Unreachable,
)
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.administrating import GONE, answers, say
from tests.mq_client.cluster.scripted import Scripted, topic_info


@pytest.fixture
def admin(scripted: Scripted) -> Admin:
    """Of three brokers; all of them know topic `t` of one partition, led by 1."""
    made = Admin("b:1", timeout_ms=20_000)
    made._connection = scripted
    say(scripted, topic_info(1))
    scripted.learn(topic_info(1))
    scripted.clock.now += 1
    return made


def staged(query: str = "q", sink: str = "s", topic: str = "t", partition: int = 0, **more: Any) -> pb.StagedSum:
    given = {"batches": 1, "rows": 10, "bytes": 100, "since_us": 50, "first_batch_id": 1, "last_batch_id": 2, **more}
    return pb.StagedSum(query=query, sink=sink, topic=topic, partition=partition, **given)


def known(query: str = "q", sink: str = "s", **more: Any) -> pb.KnownTransaction:
    return pb.KnownTransaction(query=query, sink=sink, **{"batch_id": 1, "published": True, **more})


def transactions(scripted: Scripted, said: dict[str, Any]) -> None:
    scripted.answers["Transactions"] = lambda address, request: said.get(address, pb.TransactionsResponse())


def test_what_brokers_know_of_a_query_is_put_together(admin: Admin, scripted: Scripted) -> None:
    transactions(
        scripted,
        {
            "b:1": pb.TransactionsResponse(
                known=[known(changed_us=5, batch_id=3)], staged=[staged(partition=1)], left_out=2
            ),
            "b:2": pb.TransactionsResponse(
                known=[known(changed_us=7, batch_id=4)], staged=[staged(since_us=20)], left_out=1
            ),
            "b:3": GONE,
        },
    )
    [found] = admin.transactions()
    assert (found.query, found.sink, found.key, found.batch_id, found.changed_us) == ("q", "s", "q:s", 4, 7)
    assert [(part.partition, part.since_us) for part in found.staged] == [(0, 20), (1, 50)]
    assert (found.batches, found.bytes, found.since_us, found.pins) == (2, 200, 20, False)
    assert (found.silent, found.left_out) == (("b:3",), 3)


def test_queries_are_listed_with_what_pins_a_journal_first_then_by_size_and_name(
    admin: Admin, scripted: Scripted
) -> None:
    parts = [staged("a", bytes=5), staged("b", bytes=9), staged("c", bytes=1, pins=True), staged("d", bytes=5)]
    transactions(scripted, {"b:1": pb.TransactionsResponse(known=[known("e", "")], staged=parts)})
    found = admin.transactions()
    assert [each.query for each in found] == ["c", "b", "a", "d", "e"]
    assert [(found[0].batch_id, found[0].published, found[0].pins), (found[4].key, found[4].since_us)] == [
        (-1, True, True),
        ("e", 0),
    ]


def test_if_no_broker_answers_about_transactions_that_is_the_error(admin: Admin, scripted: Scripted) -> None:
    transactions(scripted, dict.fromkeys(("b:1", "b:2", "b:3"), GONE))
    with pytest.raises(Unreachable, match=r"^gone"):
        admin.transactions()
    transactions(scripted, {"b:2": InvalidRequest("no")})
    with pytest.raises(InvalidRequest):
        admin.transactions()


def test_a_query_that_only_a_silent_broker_may_know_is_not_said_to_be_unknown(admin: Admin, scripted: Scripted) -> None:
    transactions(scripted, {"b:3": GONE})
    with pytest.raises(Unreachable, match=r"no answer from b:3, and the others know nothing of 'q'"):
        admin.transactions("q")
    assert admin.transactions() == []
    transactions(scripted, {})
    assert admin.transactions("q") == []


def test_a_query_is_aborted_at_a_broker_that_knows_of_it(admin: Admin, scripted: Scripted) -> None:
    transactions(scripted, {"b:2": pb.TransactionsResponse(known=[known(batch_id=7)], staged=[staged()])})
    done = pb.AbortTransactionResponse(known=True, batch_id=7, published=True, discarded=3, unreached=["b:9"])
    requests = answers(scripted, "AbortTransaction", done)
    found = admin.abort_transaction("q")
    assert (found.query, found.sink, found.batch_id, found.published, found.discarded, found.unreached) == (
        "q",
        "s",
        7,
        True,
        3,
        ("b:9",),
    )
    assert (requests[0].query, requests[0].sink, requests[0].timeout_ms) == ("q", "s", 18_000)
    assert scripted.addresses_asked()[-1] == "b:2"


def test_an_abort_is_asked_for_again_until_it_is_done_or_its_time_is_over(admin: Admin, scripted: Scripted) -> None:
    transactions(scripted, {"b:1": pb.TransactionsResponse(staged=[staged()])})
    unknown = pb.AbortTransactionResponse(known=False)
    requests = answers(
        scripted, "AbortTransaction", OutcomeUnknown("late"), unknown, pb.AbortTransactionResponse(known=True)
    )
    admin.abort_transaction("q")
    assert len(requests) == 3
    answers(scripted, "AbortTransaction", unknown)
    began = scripted.clock.now
    with pytest.raises(UnknownTransaction, match="q:s was not found again"):
        admin.abort_transaction("q")
    assert scripted.clock.now - began == pytest.approx(20.0)
    answers(scripted, "AbortTransaction", GONE)
    with pytest.raises(Unreachable):
        admin.abort_transaction("q")
    answers(scripted, "AbortTransaction", InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        admin.abort_transaction("q")


def test_an_abort_says_which_query_is_meant(admin: Admin, scripted: Scripted) -> None:
    transactions(scripted, {"b:1": pb.TransactionsResponse(known=[known(sink="s2"), known(sink="")])})
    with pytest.raises(InvalidRequest, match="'q' writes to several sinks: choose one of q:, q:s2"):
        admin.abort_transaction("q")
    transactions(scripted, {})
    with pytest.raises(UnknownTransaction, match="no query has staged or decided anything as 'q'"):
        admin.abort_transaction("q")
    with pytest.raises(InvalidRequest, match="name the query to abort"):
        admin.abort_transaction("")
    assert transaction_admin.TransactionDescription("q", "").since_us == 0


def test_a_key_is_given_at_a_broker_that_knows_of_it_and_asked_for_until_it_is(
    admin: Admin, scripted: Scripted
) -> None:
    transactions(scripted, {"b:2": pb.TransactionsResponse(known=[known(batch_id=7, owner="User:etl")])})
    assert [each.owner for each in admin.transactions()] == ["User:etl"]
    requests = answers(
        scripted,
        "GiveTransaction",
        OutcomeUnknown("late"),
        pb.GiveTransactionResponse(known=False),
        pb.GiveTransactionResponse(known=True, former="User:etl"),
    )
    found = admin.give_transaction("q", "User:etl-2")
    assert (found.query, found.sink, found.owner, found.former) == ("q", "s", "User:etl-2", "User:etl")
    assert len(requests) == 3
    assert (requests[0].query, requests[0].sink, requests[0].owner) == ("q", "s", "User:etl-2")
    assert scripted.addresses_asked()[-1] == "b:2"
    answers(scripted, "GiveTransaction", InvalidRequest("no"))
    with pytest.raises(InvalidRequest, match="no"):
        admin.give_transaction("q", "etl")


def test_what_nobody_has_decided_is_nobodys_to_give(admin: Admin, scripted: Scripted) -> None:
    transactions(scripted, {"b:3": pb.TransactionsResponse(staged=[staged()])})
    with pytest.raises(UnknownTransaction, match="nobody has decided anything under q:s"):
        admin.give_transaction("q", "User:etl")
    with pytest.raises(InvalidRequest, match="name the query to give"):
        admin.give_transaction("", "User:etl")
