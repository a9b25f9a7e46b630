"""How a member's credit goes to the leaders of its partitions."""

from __future__ import annotations

from random import Random

import pytest

from mq_client.queueing.holdings import Credit
from mq_client.queueing.shares import LEASES_EACH, SHARE_BYTES_MIN, STAYS_S, Account, Round, Shares

WHOLE = Credit(600, 60 << 20)
NOTHING = Credit(0, 0)
NOW = 0.0


def accounts(count: int) -> list[Account]:
    return [Account(number) for number in range(count)]


def outs(of: list[Account]) -> list[int]:
    return [account.out for account in of]


def test_bytes_that_lie_idle_with_others_are_taken_back_with_the_records() -> None:
    """A leader that had lent all but one record kept the bytes of all, and another could lend nothing."""
    shares, of = Shares(0), accounts(3)
    of[0].give(600, WHOLE.bytes)
    of[0].note_lent(599, 1_000)
    of[1].ready = True
    shares.hand_out(of, WHOLE, NOTHING, now=NOW, hungry=True)
    assert of[0].recalled == (600, 1_000 + SHARE_BYTES_MIN)
    assert of[1].out_bytes <= 1_000
    of[0].confirm(600)
    shares.hand_out(of, WHOLE, NOTHING, now=NOW, hungry=True)
    assert (of[0].out, of[1].out) == (1, 599)
    assert of[1].out_bytes > 599 * 1_000


def test_a_word_about_credit_that_was_taken_back_before_counts_for_nothing() -> None:
    account = Account(0)
    account.give(5, 100)
    account.recall(0, 0)
    account.confirm(3)
    assert account.out == 5
    account.note_lent(2, 10)
    account.confirm(0)
    assert (account.out, account.recalled) == (0, None)


def test_a_credit_of_one_is_with_one_leader_and_follows_what_is_ready() -> None:
    one = Credit(1, 16 << 20)
    shares, of = Shares(2), accounts(6)
    shares.hand_out(of, one, NOTHING, now=NOW, hungry=True)
    assert outs(of) == [0, 0, 1, 0, 0, 0]
    of[4].ready = True
    shares.hand_out(of, one, NOTHING, now=NOW, hungry=True)
    assert outs(of) == [0, 0, 1, 0, 0, 0]
    of[2].confirm(0)
    shares.hand_out(of, one, NOTHING, now=NOW, hungry=True)
    assert outs(of) == [0, 0, 0, 0, 1, 0]


def lent_to(members: list[tuple[Shares, list[Account]]], now: float) -> set[int]:
    """Each of these settles the one record that it has, and is lent another one. By which partitions."""
    one, lenders = Credit(1, 16 << 20), set()
    for shares, of in members:
        shares.hand_out(of, one, Credit(1 if any(account.sent for account in of) else 0, 0), now=now, hungry=True)
        if not any(outs(of)):  # where it settles another one's time has come: it waits until that is committed
            for account in of:
                account.sent = 0
            shares.hand_out(of, one, NOTHING, now=now, hungry=True)
        [lender] = [account for account in of if account.out]
        for account in of:
            account.sent = int(account is lender)
        lender.note_lent(1, 10)
        shares.round.note_lent()
        lenders.add(lender.partition)
    return lenders


def members_of(round_: Round, count: int) -> list[tuple[Shares, list[Account]]]:
    members = [(Shares(number), accounts(3)) for number in range(count)]
    for shares, of in members:
        shares.round = round_
        round_.members += 1
        for account in of:
            account.ready = True
    return members


def test_members_of_one_record_are_lent_it_by_the_same_partition_and_by_each_in_turn() -> None:
    members = members_of(Round(), 5)
    turns = [lent_to(members, NOW) for _ in range(3 * LEASES_EACH)]
    assert all(len(turn) == 1 for turn in turns)
    of_each = [sum(turn == {partition} for turn in turns) for partition in range(3)]
    assert of_each == [LEASES_EACH] * 3


def test_a_partition_whose_members_work_for_long_comes_first_only_for_a_while() -> None:
    members = members_of(Round(), 2)
    first, second = lent_to(members, NOW), lent_to(members, NOW + STAYS_S)
    assert first != second


def test_what_is_out_is_taken_back_once_the_member_may_hold_less() -> None:
    shares, of = Shares(0), accounts(3)
    shares.hand_out(of, WHOLE, NOTHING, now=NOW, hungry=True)
    for _ in range(2):
        shares.hand_out(of, Credit(250, WHOLE.bytes), NOTHING, now=NOW, hungry=True)
        assert [account.recalled and account.recalled[0] for account in of] == [0, 50, None]
    for account in of[:2]:
        assert account.recalled is not None
        account.confirm(account.recalled[0])
    assert sum(outs(of)) == 250
    shares.hand_out(of, Credit(0, WHOLE.bytes), NOTHING, now=NOW, hungry=True)
    assert [account.recalled and account.recalled[0] for account in of] == [None, 0, 0]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_leaders_do_a_member_never_has_more_than_it_may_and_never_starves(seed: int) -> None:
    random = Random(seed)
    whole = Credit(random.choice((1, 2, 5, 100)), random.choice((1, 1_000, 16 << 20)))
    shares, of = Shares(random.randrange(9)), accounts(random.choice((1, 2, 6)))
    backlog = [random.randrange(50) for _ in of]
    held: list[tuple[int, int, int]] = []
    lent, wanted = 0, sum(backlog)
    for _ in range(20_000):
        records, size = sum(each[1] for each in held), sum(each[2] for each in held)
        shares.hand_out(of, whole, Credit(records, size), now=NOW, hungry=not held or random.random() < 0.5)
        assert sum(outs(of)) + records - sum(account.sent for account in of) <= whole.records
        account = random.choice(of)
        match random.randrange(3):
            case 0:
                if account.recalled is not None:
                    account.confirm(account.recalled[0])
                room = -(-account.out_bytes // 100)  # one record may be more than is left
                some = min(account.out, room, backlog[account.partition], random.randint(1, 9))
                if some:
                    account.note_lent(some, 100 * some)
                    backlog[account.partition] -= some
                    lent += some
                    held.append((account.partition, some, 100 * some))
                account.ready = bool(backlog[account.partition])
            case 1 if held and not any(account.sent for account in of):
                partition, some, _ = random.choice(held)
                of[partition].sent = some
            case _:
                for sent in of:
                    done = next((each for each in held if sent.sent and each[:2] == (sent.partition, sent.sent)), None)
                    if done is not None:
                        held.remove(done)
                    sent.sent = 0
        if lent == wanted:
            return
    raise AssertionError(f"{wanted - lent} records were never lent: {of}")
