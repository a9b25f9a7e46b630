"""Quotas as the coordination service keeps them: one document, `{"quotas": {principal: {quota: limit}}}`.

A quota or a key that this version does not know is kept by every write: a newer broker goes by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mq_broker.security.names import Principal, kind_of_kept
from mq_broker.security.quotas import Limits
from mq_protocol.access.quotas import EVERYBODY, Quota, check_limit, parse_quota
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, TritonMQError, shortened
from mq_protocol.names import quoted

DOCUMENT: Final = "quotas"

_QUOTAS: Final = "quotas"
_NAMES: Final = frozenset(map(str, Quota))
_ERROR_BYTES_MAX: Final = 500


def load(data: bytes) -> Limits:
    """What was set, as far as this version knows it. Raises `CoordinationUnavailable`, which says what is wrong with
    the document."""
    found: dict[str, dict[Quota, int]] = {}
    for principal, limits in _read(data)[_QUOTAS].items():
        found[principal] = {Quota(name): limit for name, limit in limits.items() if name in _NAMES}
    return found


def edited(data: bytes | None, principal: str, set_: Mapping[str, int], unset: Iterable[str]) -> bytes:
    """The document after a change; `data` None: there is none yet. Raises `InvalidRequest` and `InvalidSetting` for
    what cannot be set, `CoordinationUnavailable` for a document that cannot be read."""
    check_principal(principal)
    if set_ and principal != EVERYBODY:
        Principal.parse(principal)  # what is kept of others can be taken away alone
    for name, limit in set_.items():
        check_limit(parse_quota(name), limit)
    document: dict[str, Any] = {_QUOTAS: {}} if data is None else _read(data)
    limits = {**document[_QUOTAS].get(principal, {}), **set_}
    for name in unset:
        limits.pop(parse_quota(name), None)
    if limits:
        document[_QUOTAS][principal] = limits
    else:
        document[_QUOTAS].pop(principal, None)
    return json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def check_principal(principal: str) -> None:
    """Raises `InvalidRequest` for who cannot have quotas."""
    if principal != EVERYBODY and kind_of_kept(principal) != "User":
        raise InvalidRequest(f"quotas are for users, not for {quoted(principal)}: name User:NAME, or * for all others")


def _read(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
        for principal, limits in document[_QUOTAS].items():
            check_principal(principal)
            for name, limit in limits.items():
                if type(limit) is not int:
                    raise ValueError(f"{name} of {principal} is no whole number")
                if name in _NAMES:
                    check_limit(Quota(name), limit)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TritonMQError) as error:
        raise CoordinationUnavailable(
            f"the security document {DOCUMENT} does not hold quotas ({shortened(repr(error), _ERROR_BYTES_MAX)}): "
            "put back what was there"
        ) from error
    found: dict[str, Any] = document
    return found
