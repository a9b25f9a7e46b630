"""What a broker knows of names and serials that are to be revoked."""

from __future__ import annotations

import pytest

from mq_broker.security.revoked import SEEN_MAX, Known, Seen


@pytest.fixture
def seen() -> Seen:
    made = Seen()
    for name, serial in (("User:etl", "5f3a9c01"), ("User:etl", "5f3a9c02"), ("User:ann", ""), ("Broker:1", "b0")):
        made.note(name, serial)
    return made


@pytest.mark.parametrize(
    ("entry", "known"),
    [
        ("User:etl", Known("User:etl")),
        ("User:ann", Known("User:ann")),
        ("User:ops", Known("User:ops")),
        ("User:elt", Known(near="User:etl")),
        ("User:opps", Known(near="User:ops")),
        ("User:somebody-else", Known()),
        ("5f3a9c01", Known("User:etl")),
        ("b0", Known("Broker:1")),
        ("5f3a9c0", Known(longer=("5f3a9c01", "5f3a9c02"))),
        ("5f", Known(longer=("5f3a9c01", "5f3a9c02"))),
        ("f3a9c01", Known()),
        ("5f3a9c011", Known()),
    ],
)
def test_what_is_known_of_an_entry(seen: Seen, entry: str, known: Known) -> None:
    assert seen.known(entry, {"User:ops"}) == known


def test_the_last_ones_are_kept() -> None:
    seen, last = Seen(), SEEN_MAX + 1
    for number in range(last + 1):
        seen.note(f"User:{number}", f"a{number:09}")
    for who in ("User:{}", "a{:09}"):
        found = [seen.known(who.format(n), ()).whose for n in (0, 1, 2, last)]
        assert found == ["", "", "User:2", f"User:{last}"]
