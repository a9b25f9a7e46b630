"""What the security floor says."""

from __future__ import annotations

import pytest

from mq_broker.security.floor import Demand, how_to_offer


@pytest.mark.parametrize("missing", [("tls", "authorize"), ("authorize",), ("tls",), tuple(map(str, Demand))])
def test_each_option_is_said_once(missing: tuple[str, ...]) -> None:
    told = how_to_offer(missing)
    assert told.count("--certs DIR") == told.count("--also-plaintext") == 1
    assert told.count("--authorize") == ("tls" not in missing)
    assert ("--zookeeper-auth" in told) is ("zk_auth" in missing)
