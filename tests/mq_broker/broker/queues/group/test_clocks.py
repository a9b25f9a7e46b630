"""When leases run out, by a clock that the test sets, and whose they are."""

from __future__ import annotations

from mq_broker.broker.queues.group import members as members_module
from mq_broker.broker.queues.group.clocks import Clocks
from mq_broker.broker.queues.group.members import Members
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Lease, LeaseId, Return

LEASE_MS = 6_400
"""Its deadlines are rounded up to a tenth of a second."""


def test_leases_that_ended_are_forgotten_once_they_are_most() -> None:
    """As many as are alive may be kept beside them, and a thousand."""
    clocks = Clocks()
    leases = [LeaseId(1, entry, 0) for entry in range(1_003)]
    for lease in leases[:-1]:
        clocks.start(lease, [(0, 1)], LEASE_MS, 0)
    clocks.prune(leases[:1])
    assert len(clocks) == 1_002, "as many as that may be kept"
    clocks.start(leases[-1], [(0, 1)], LEASE_MS, 3_000)
    assert len(clocks.expired(6_400, 2_000)) == 1_002
    clocks.prune([leases[1], leases[-1]])
    assert len(clocks) == 1_003, "the more leases there are, the more may be kept"
    clocks.prune(leases[-1:])
    assert (len(clocks), clocks.due(9_399), clocks.expired(9_400, 10)) == (1, False, [(leases[-1], [(0, 1)])])


# ---------------------------------------------------------------- whose leases they are


def state(*members: str) -> WorkState:
    """Each member has one lease of two records."""
    made = WorkState(1, 0)
    for number, member in enumerate(members):
        made.apply(Lease(((2 * number, 2 * number + 2),), member), LeaseId(1, number, 0), 1_000)
    return made


def test_leases_of_members_that_never_ask_again_are_forgotten_once_they_are_most() -> None:
    known = state("here")
    members = Members(known)
    members.lent("here", LeaseId(1, 0, 0))
    for entry in range(1, 3_000):
        gone = LeaseId(1, entry, 0)
        known.apply(Lease(((2, 4),), f"gone-{entry}"), gone, 1_000)
        members.lent(f"gone-{entry}", gone)
        known.apply(Return(((2, 4),)), LeaseId(1, entry, 1), 1_000)
        assert len(members._leases) <= 2 * 2 + 1_000
    assert list(members.leases("here")) == [LeaseId(1, 0, 0)]


def test_what_a_member_can_have_begun_is_as_much_as_it_works_on_until_it_is_heard_of_again() -> None:
    members = Members(state())
    assert members.begun("a", [(3, 6)]) == [(3, 4)], "one, unless it says otherwise"
    assert members.begun("a", [(3, 6)]) == [(3, 4)], "asked again"
    assert members.begun("a", [(9, 12)]) == []
    members.heard_of("a", 4)
    assert members.begun("a", [(1, 3), (5, 6)]) == [(1, 3), (5, 6)]
    assert members.begun("a", [(7, 12)]) == [(7, 8)]
    members.heard_of("a")
    assert members.begun("a", [(20, 40)]) == [(20, 24)]
    members.heard_of("b", 0)
    assert members.begun("b", [(0, 9)]) == [(0, 1)]
    members.heard_of("c", 1 << 31)
    assert members.begun("c", [(0, 1 << 20)]) == [(0, members_module.WORKING_MAX)]


def test_a_process_is_replaced_once_another_was_seen_under_its_name() -> None:
    members = Members(state())
    for key in (b"one", b"", b"one", b"two"):
        assert not members.is_replaced("a", key)
        members.seen("a", key)
    members.seen("b", b"two")
    assert [members.is_replaced("a", key) for key in (b"one", b"two", b"")] == [True, False, False]
    assert not members.is_replaced("b", b"one")
    later = [b"later-%d" % number for number in range(members_module.REPLACED_MAX)]
    for key in later:
        members.seen("a", key)
    replaced = [members.is_replaced("a", key) for key in (b"one", b"two", *later)]
    assert replaced == [False, *[True] * members_module.REPLACED_MAX, False]


def test_the_processes_of_so_many_members_are_remembered_those_seen_last() -> None:
    members = Members(state())
    others = [f"m{number}" for number in range(members_module.KEYS_MAX - 2)]
    for member in ("a", "b", *others, "a", "c"):
        members.seen(member, b"one")
    known = [members.is_another(member, b"two") for member in ("a", "b", *others, "c")]
    assert known == [True, False, *[True] * (members_module.KEYS_MAX - 1)]


def test_what_is_charged_of_members_is_forgotten_once_they_have_nothing_any_more() -> None:
    known = state()
    members = Members(known)
    for entry in range(200):
        lease = LeaseId(1, entry, 0)
        known.apply(Lease(((2, 4),), f"gone-{entry}"), lease, 1_000)
        members.lent(f"gone-{entry}", lease)
        assert members.begun(f"gone-{entry}", [(2, 4)]) == [(2, 3)]
        known.apply(Return(((2, 4),)), LeaseId(1, entry, 1), 1_000)
    assert len(members._silent) <= 17
