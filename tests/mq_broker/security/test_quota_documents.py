"""Quotas as a document: what is written is read again, what a newer version wrote is kept, and nothing strange is
believed."""

from __future__ import annotations

import json

import pytest

from mq_broker.coordination.interface import SECURITY_DOCUMENTS
from mq_broker.security.quotas import DOCUMENT, edited, load
from mq_protocol.access.quotas import MOST, Quota
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, InvalidSetting, TritonMQError

ETL = "User:etl"


def test_the_coordination_service_keeps_the_document() -> None:
    assert DOCUMENT in SECURITY_DOCUMENTS


def test_what_is_set_is_read_again_and_the_rest_stays() -> None:
    data = edited(None, ETL, {"produce": 5, "streams": -1}, ())
    data = edited(data, "*", {"fetch": 9}, ())
    data = edited(data, ETL, {"produce": 6}, ("requests",))
    assert load(data) == {ETL: {Quota.PRODUCE: 6, Quota.STREAMS: -1}, "*": {Quota.FETCH: 9}}
    data = edited(data, ETL, {}, ("produce", "streams"))
    assert load(data) == {"*": {Quota.FETCH: 9}}
    assert edited(data, ETL, {}, ("produce",)) == data


def test_what_an_earlier_release_set_for_a_pattern_is_read_and_can_be_taken_back() -> None:
    data = b'{"quotas":{"User:etl-*":{"produce":5}}}'
    assert load(data) == {"User:etl-*": {Quota.PRODUCE: 5}}
    assert load(edited(data, "User:etl-*", {}, ("produce",))) == {}
    assert load(edited(data, ETL, {"fetch": 1}, ())).keys() == {ETL, "User:etl-*"}


def test_quotas_and_keys_of_a_newer_version_are_kept() -> None:
    newer = {"quotas": {ETL: {"produce": 5, "moonlight": 3}}, "since": 7}
    data = edited(json.dumps(newer).encode(), ETL, {"fetch": 1}, ())
    assert json.loads(data) == {"quotas": {ETL: {"produce": 5, "moonlight": 3, "fetch": 1}}, "since": 7}
    assert load(data) == {ETL: {Quota.PRODUCE: 5, Quota.FETCH: 1}}


@pytest.mark.parametrize(
    ("principal", "limits", "unset"),
    [
        ("etl", {"produce": 1}, ()),
        ("User:*", {"produce": 1}, ()),
        ("Broker:1", {"produce": 1}, ()),
        ("Group:g", {"produce": 1}, ()),
        ("", {"produce": 1}, ()),
        (ETL, {"moonlight": 1}, ()),
        (ETL, {}, ("moonlight",)),
        (ETL, {"produce": 0}, ()),
        (ETL, {"produce": -2}, ()),
        (ETL, {"produce": MOST + 1}, ()),
    ],
)
def test_what_cannot_be_set_is_refused(principal: str, limits: dict[str, int], unset: tuple[str, ...]) -> None:
    with pytest.raises((InvalidRequest, InvalidSetting)):
        edited(None, principal, limits, unset)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"quotas": 3}',
        b'{"quotas": {"User:a": 3}}',
        b'{"quotas": {"User:a": {"produce": "3"}}}',
        b'{"quotas": {"User:a": {"produce": true}}}',
        b'{"quotas": {"User:a": {"produce": 0}}}',
        b'{"quotas": {"User:a": {"produce": 1e400}}}',
        b'{"quotas": {"stranger": {"produce": 3}}}',
        b"[" * 100_000,
    ],
)
def test_a_strange_document_is_not_believed_and_not_written_over(data: bytes) -> None:
    for ask in (lambda: load(data), lambda: edited(data, ETL, {"produce": 1}, ())):
        with pytest.raises(CoordinationUnavailable, match="does not hold quotas") as caught:
            ask()  # type: ignore[no-untyped-call]
        assert isinstance(caught.value, TritonMQError)
