"""What links are made over: the link port, where a test says nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mq_broker.rpc.linked import FRAMED, OVER


@pytest.fixture(autouse=True)
def transport(request: pytest.FixtureRequest) -> Iterator[None]:
    former, OVER[0] = OVER[0], getattr(request, "param", FRAMED)
    yield
    OVER[0] = former
