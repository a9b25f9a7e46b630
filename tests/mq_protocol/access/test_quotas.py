"""Quotas in words."""

from __future__ import annotations

import shlex

import pytest

from mq_protocol.access.quotas import (
    MEANINGS,
    MOST,
    RATES,
    SECURED,
    UNLIMITED,
    Quota,
    limit_text,
    parse_limit,
    parse_quota,
    set_command,
)
from mq_protocol.errors import InvalidSetting


@pytest.mark.parametrize(
    ("quota", "text", "limit"),
    [
        (Quota.PRODUCE, "50MiB/s", 50 << 20),
        (Quota.PRODUCE, "50MiB", 50 << 20),
        (Quota.FETCH, "1000/s", 1_000),
        (Quota.FETCH, "1000B/s", 1_000),
        (Quota.REQUESTS, "500/s", 500),
        (Quota.REQUESTS, "500", 500),
        (Quota.STREAMS, "7", 7),
        (Quota.STREAMS, "unlimited", UNLIMITED),
        (Quota.FETCH, "unlimited", UNLIMITED),
    ],
)
def test_a_limit_is_read_and_written_alike(quota: Quota, text: str, limit: int) -> None:
    assert parse_limit(quota, text) == limit
    assert parse_limit(quota, limit_text(quota, limit)) == limit


def test_bytes_are_told_with_their_unit_and_numbers_without() -> None:
    told = [limit_text(quota, 1_000) for quota in (Quota.PRODUCE, Quota.STAGED_BYTES, Quota.REQUESTS, Quota.STREAMS)]
    assert told == ["1000B/s", "1000B", "1000/s", "1000"]
    assert [limit_text(Quota.FETCH, limit) for limit in (1, 1 << 10, 3 << 20)] == ["1B/s", "1KiB/s", "3MiB/s"]


@pytest.mark.parametrize("quota", Quota)
@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "5 apples", "1e9", "/s", "5/m", "unlimited/s", str(MOST + 1), "9" * 5_000]
)
def test_what_is_no_limit_is_refused(quota: Quota, text: str) -> None:
    with pytest.raises(InvalidSetting, match=quota):
        parse_limit(quota, text)


def test_counts_are_no_rates() -> None:
    with pytest.raises(InvalidSetting):
        parse_limit(Quota.STREAMS, "5/s")
    with pytest.raises(InvalidSetting):
        parse_limit(Quota.REQUESTS, "5MiB/s")


def test_a_word_that_is_near_is_named() -> None:
    with pytest.raises(InvalidSetting, match="did you mean 'produce'"):
        parse_quota("prodice")


def test_each_quota_says_what_it_means_and_the_defaults_are_counts() -> None:
    assert set(MEANINGS) == set(Quota)
    assert set(SECURED) == set(Quota) - set(RATES)


def test_the_command_can_be_pasted() -> None:
    words = shlex.split(set_command("User:o'neill x", Quota.PRODUCE, 3 << 20))
    assert words == ["tritonmq", "quota", "set", "User:o'neill x", "--produce", "3MiB/s"]
    assert set_command("User:etl", Quota.STAGED_BYTES, 4 << 30).endswith(" --staged-bytes 4GiB")
    assert parse_limit(Quota.STAGED_BYTES, "4GiB") == 4 << 30
    with pytest.raises(InvalidSetting, match="write 50MiB or"):
        parse_limit(Quota.STAGED_BYTES, "4GiB/s")
