"""Who of a group has a partition, and how it is handed over. Members and partitions are stand-ins; time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.groups.cursors import CONSUMER, CursorMoves
from mq_broker.broker.groups.sharing import Share, Shares
from mq_broker.core.machine.state import EPHEMERAL, Cursor
from mq_broker.core.messages import Done, Refused
from mq_protocol.errors import InvalidRequest, MemberInUse, TritonMQError, UnknownGroup
from mq_protocol.limits import GROUP_HANDOVER_MS
from tests.coroutines import virtual_time
from tests.mq_broker.broker.groups.partitions import ANYBODY, Led

HANDOVER_S = GROUP_HANDOVER_MS / 1000


class Reader:
    """A member that notes what it is told. `position` and `settled` are as the test says."""

    def __init__(self, member_id: str, first: int = 0, key: bytes = b"") -> None:
        self.member_id = member_id
        self.member_key = key
        self.mover = ANYBODY
        self.position = self.settled = -1
        self.told: list[str] = []
        self._first = first

    def first_offset(self) -> int:
        return self._first

    def activate(self, offset: int) -> None:
        self.position = self.settled = offset
        self.told.append(f"activate {offset}")

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def deactivate(self) -> None:
        self.told.append("deactivate")

    def end(self, error: TritonMQError) -> None:
        self.told.append(f"end {type(error).__name__}")


class Case:
    """One share of partition 0 by group `g`."""

    def __init__(self, kind: str = CONSUMER) -> None:
        self.led: Any = Led()
        self.share = Share(self.led, "g", kind, CursorMoves())

    def settles(self, member: Reader, offset: int) -> None:
        """As a member's subscription does it."""
        member.settled = offset
        self.share.settle(member, offset)


@virtual_time
async def test_the_first_member_begins_where_it_wants_to_and_that_place_is_written_down(case: Case) -> None:
    a = Reader("a", first=7)
    case.share.join(a)
    assert a.told == ["activate 7"]
    assert [(move.group, move.offset, move.kind, move.forward) for move in case.led.proposed] == [
        ("g", 7, CONSUMER, True)
    ]


@virtual_time
async def test_a_group_with_a_cursor_goes_on_there_and_writes_nothing(case: Case) -> None:
    case.led.cursors["g"] = Cursor(0, CONSUMER, 0)
    a = Reader("a", first=7)
    case.share.join(a)
    assert a.told == ["activate 0"], "0 is a place, too"
    assert case.led.proposed == []


@virtual_time
async def test_a_partition_changes_hands_at_once_where_nothing_is_unsettled(case: Case) -> None:
    b, a = Reader("b"), Reader("a")
    case.share.join(b)
    b.position = 5
    case.settles(b, 5)
    case.share.join(a)
    assert b.told == ["activate 0", "deactivate"]
    assert a.told == ["activate 5"]


@virtual_time
async def test_the_owner_is_paused_once_until_it_has_settled_and_the_next_begins_there(case: Case) -> None:
    b, a, c = Reader("b"), Reader("a"), Reader("c")
    case.share.join(b)
    b.position = 5
    case.share.join(a)
    case.share.join(c)
    assert b.told == ["activate 0", "pause"]
    case.settles(b, 4)
    assert a.told == [], "it holds one more"
    case.settles(b, 5)
    assert b.told == ["activate 0", "pause", "deactivate"]
    assert a.told == ["activate 5"]
    await asyncio.sleep(2 * HANDOVER_S)
    assert a.told == ["activate 5"], "nothing is left of the wait"


@virtual_time
async def test_an_owner_that_does_not_settle_in_time_loses_the_partition_and_its_word(case: Case) -> None:
    b, a = Reader("b"), Reader("a")
    case.share.join(b)
    b.position = 5
    case.settles(b, 2)
    case.share.join(a)
    await asyncio.sleep(HANDOVER_S - 0.01)
    assert a.told == []
    await asyncio.sleep(0.02)
    assert b.told == ["activate 0", "pause", "deactivate"]
    assert a.told == ["activate 2"]
    proposed = list(case.led.offsets)
    case.settles(b, 5)
    assert case.led.offsets == proposed


@virtual_time
async def test_an_owner_whose_successor_goes_again_is_resumed_and_keeps_the_partition(case: Case) -> None:
    b, a = Reader("b"), Reader("a")
    case.share.join(b)
    b.position = 5
    case.share.join(a)
    case.share.leave(a)
    await asyncio.sleep(2 * HANDOVER_S)
    assert b.told == ["activate 0", "pause", "resume"], "the time that was given to it is over without effect"
    case.share.join(a)
    assert b.told[-1] == "pause", "the next wait is one of its own"
    case.settles(b, 5)
    assert a.told == ["activate 5"]


@virtual_time
async def test_when_the_owner_leaves_the_next_begins_at_what_it_settled(case: Case) -> None:
    b, a = Reader("b"), Reader("a")
    case.share.join(b)
    b.position = 9
    case.settles(b, 3)
    case.share.join(a)
    case.share.leave(b)
    assert a.told == ["activate 3"]
    assert "deactivate" not in b.told, "its stream is gone"
    await asyncio.sleep(2 * HANDOVER_S)
    assert a.told == ["activate 3"], "the wait for it has ended"
    assert case.share.members == ["a"]
    a.position = 9
    case.share.join(Reader("0"))
    assert a.told == ["activate 3", "pause"], "and for the next one it waits anew"


@virtual_time
async def test_the_next_begins_where_the_former_did_though_that_place_could_not_be_written_down(case: Case) -> None:
    a, b = Reader("a"), Reader("b", first=50)
    case.share.join(a)
    case.share.join(b)
    case.led.replies[-1](Refused(InvalidRequest("the disk is full")))
    case.share.leave(a)
    assert b.told == ["activate 0"], "and not at its own first offset: what lies between was given to nobody"


@virtual_time
async def test_an_owner_that_comes_again_replaces_what_it_was_and_the_end_of_its_former_stream_takes_nothing_from_it(
    case: Case,
) -> None:
    former, again, b = Reader("a"), Reader("a"), Reader("b")
    case.share.join(former)
    former.position = 9
    case.settles(former, 4)
    case.share.join(b)
    case.share.join(again)
    assert former.told == ["activate 0", "deactivate"]
    assert again.told == ["activate 4"]
    case.share.leave(former)
    case.settles(former, 9)
    assert (again.told, b.told) == (["activate 4"], [])
    assert case.share.members == ["a", "b"]
    waiting = Reader("b")
    case.share.join(waiting)
    assert (b.told, waiting.told, again.told) == ([], [], ["activate 4"]), (
        "one that has nothing is replaced without a word"
    )


@virtual_time
async def test_a_member_with_a_key_is_replaced_and_spoken_for_by_that_key_alone(case: Case) -> None:
    a, again = Reader("a", key=b"key of a"), Reader("a", key=b"key of a")
    case.share.join(a)
    a.position = 9
    for key in (b"", b"another"):
        with pytest.raises(MemberInUse):
            case.share.join(Reader("a", key=key))
        with pytest.raises(MemberInUse):
            case.share.counts("a", key, 5)
    assert a.told == ["activate 0"]
    assert case.share.counts("a", b"key of a", 5)
    case.share.join(again)
    assert again.told == ["activate 5"]
    case.share.leave(again)
    case.share.join(anybody := Reader("a"))
    assert anybody.told == ["activate 5"], "a key is a living member's"


@virtual_time
async def test_what_is_settled_is_moved_forward_only_and_by_the_owner_only(case: Case) -> None:
    a, b = Reader("a"), Reader("b")
    case.share.join(a)
    case.share.join(b)
    case.led.replies[-1](Done(0))
    for member, offset in ((a, 3), (a, 3), (a, 2), (b, 9)):
        case.settles(member, offset)
    assert case.led.offsets == [0, 3]
    case.led.replies[-1](Done(0))
    case.settles(a, 3)
    case.settles(a, 4)
    assert case.led.offsets == [0, 3, 4]


@virtual_time
async def test_nobody_is_given_a_partition_whose_leadership_was_lost(case: Case) -> None:
    case.led.replica.leading = False
    a = Reader("a")
    case.share.join(a)
    assert a.told == []


@virtual_time
async def test_a_word_beside_the_stream_counts_from_the_owner_and_no_further_than_the_log_goes(case: Case) -> None:
    a, b = Reader("a"), Reader("b")
    assert case.share.counts("b", b"", 5), "nobody has it"
    case.share.join(a)
    case.share.join(b)
    assert not case.share.counts("b", b"", 5)
    assert case.share.counts("a", b"", 5)
    assert case.share.counts("a", b"", 3)
    case.share.leave(a)
    assert b.told == ["activate 5"], "the word of 3 took nothing back"
    assert case.share.counts("b", b"", 1_000)
    case.share.join(a)
    case.share.leave(b)
    assert a.told[-1] == "activate 100"


@virtual_time
async def test_a_word_before_anybody_had_the_partition_is_no_place_to_begin_at(case: Case) -> None:
    case.share.counts("a", b"", 5)
    a = Reader("a", first=2)
    case.share.join(a)
    assert a.told == ["activate 2"]


@virtual_time
async def test_a_group_that_is_deleted_ends_all_its_members_and_waits_for_nobody(case: Case) -> None:
    b, a = Reader("b"), Reader("a")
    case.share.join(b)
    b.position = 5
    case.share.join(a)
    case.share.end(UnknownGroup("deleted"))
    await asyncio.sleep(2 * HANDOVER_S)
    assert b.told == ["activate 0", "pause", "end UnknownGroup"]
    assert a.told == ["end UnknownGroup"]


# ---------------------------------------------------------------- all shares of a broker


@pytest.fixture
def all_shares() -> Shares:
    return Shares()


@pytest.fixture
def led() -> Led:
    return Led()


@virtual_time
async def test_members_of_one_group_and_partition_share_and_those_of_others_do_not(
    all_shares: Shares, led: Any
) -> None:
    other: Any = Led(1)
    members = [Reader(name) for name in "abcd"]
    mine = all_shares.join(led, "g", members[0])
    assert all_shares.join(led, "g", members[1]) is mine
    assert all_shares.join(led, "h", members[2]) is not mine
    assert all_shares.join(other, "g", members[3]) is not mine
    assert [member.told for member in members] == [["activate 0"], [], ["activate 0"], ["activate 0"]]
    assert all_shares.members_of(led, "g") == ["a", "b"]
    assert all_shares.members_of(led, "nobody") == []
    assert not all_shares.counts(led, "g", "b", b"", 3)
    assert all_shares.counts(led, "g", "a", b"", 3)
    assert all_shares.counts(led, "nobody", "b", b"", 3)


@virtual_time
async def test_a_group_is_kept_or_ends_with_its_last_member_and_who_means_the_other_is_refused(
    all_shares: Shares, led: Any
) -> None:
    assert all_shares.join(led, "e", Reader("a"), ephemeral=True).kind == EPHEMERAL
    assert all_shares.join(led, "g", Reader("a")).kind == CONSUMER
    with pytest.raises(InvalidRequest, match=r"ends with its last member.*ephemeral=True"):
        all_shares.join(led, "e", Reader("b"))
    with pytest.raises(InvalidRequest, match=r"is kept.*ephemeral=False"):
        all_shares.join(led, "g", Reader("b"), ephemeral=True)
    assert all_shares.join(led, "e", Reader("b"), ephemeral=True).members == ["a", "b"]
    led.cursors["kept"] = Cursor(1, CONSUMER, 0)
    with pytest.raises(InvalidRequest, match="is kept"):
        all_shares.join(led, "kept", Reader("b"), ephemeral=True)


@virtual_time
async def test_the_end_of_a_group_takes_what_was_still_to_be_written_with_it(all_shares: Shares, led: Any) -> None:
    a = Reader("a")
    share = all_shares.join(led, "g", a)
    share.settle(a, 5)
    all_shares.end(led, "g", UnknownGroup("deleted"))
    assert a.told[-1] == "end UnknownGroup"
    led.replies[-1](Done(0))
    assert led.offsets == [0], "5 would bring the group back"
    assert all_shares.members_of(led, "g") == []

    all_shares.join(led, "h", b := Reader("b"))
    all_shares.leave(led, "h", b)
    all_shares.forget(led, "h")
    assert all_shares.join(led, "h", again := Reader("b", first=9)).members == ["b"]
    assert again.told == ["activate 9"], "the place that was under way is forgotten"
    all_shares.end(led, "nobody", UnknownGroup("deleted"))
