"""One heartbeat for a pair of brokers: since when it speaks for all that they have in common."""

from __future__ import annotations

from mq_broker.broker.host.contacts import Contacts


def test_a_contact_lasts_from_the_first_beat_to_the_end_of_the_link() -> None:
    contacts = Contacts(0)
    assert contacts.since(2) is None
    contacts.beat(2, 10, dropped=False)
    contacts.beat(2, 1_010, dropped=False)
    assert (contacts.since(2), contacts.since(3)) == (10, None)
    contacts.ended(2)
    assert contacts.since(2) is None
    contacts.beat(2, 5_000, dropped=False)
    assert contacts.since(2) == 5_000, "the next link, and perhaps the next life of that broker"


def test_a_contact_begins_anew_where_something_was_dropped() -> None:
    contacts = Contacts(0)
    contacts.beat(2, 10, dropped=False)
    contacts.beat(2, 1_010, dropped=True)
    assert contacts.since(2) == 1_010


def test_who_has_not_beaten_for_long_is_silent() -> None:
    contacts = Contacts(0, patience_ms=3_000)
    contacts.beat(2, 0, dropped=False)
    contacts.beat(3, 0, dropped=False)
    heard = {
        now: contacts.silent(now) for now in range(1_000, 6_000, 1_000) if not contacts.beat(3, now, dropped=False)
    }
    assert heard == {1_000: [], 2_000: [], 3_000: [], 4_000: [2], 5_000: [2]}
    contacts.ended(2)
    assert contacts.silent(6_000) == [], "a link that is down already"


def test_who_slept_itself_blames_nobody() -> None:
    contacts = Contacts(0, patience_ms=3_000)
    contacts.beat(2, 0, dropped=False)
    assert contacts.silent(60_000) == []
    assert contacts.since(2) == 0, "what was sent meanwhile is on its way"
    assert [contacts.silent(now) for now in (61_000, 62_000, 63_000, 64_000)] == [[], [], [], [2]]


def test_a_pause_of_half_the_patience_is_no_sleep() -> None:
    for pause_ms, slept in ((1_500, False), (1_501, True)):
        contacts = Contacts(0, patience_ms=3_000)
        contacts.beat(2, 0, dropped=False)
        assert contacts.silent(1_000) == []
        assert contacts.silent(2_000) == []
        assert contacts.silent(2_000 + pause_ms) == ([] if slept else [2])


def test_when_a_broker_last_beat_is_known_after_its_link_ended() -> None:
    contacts = Contacts(0)
    never = contacts.last_beat_ms(2)
    assert never < -1_000_000
    contacts.beat(2, 70, dropped=False)
    contacts.ended(2)
    assert contacts.last_beat_ms(2) == 70
    assert contacts.last_beat_ms(3) == never
