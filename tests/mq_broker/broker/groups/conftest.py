"""What tests of groups begin with."""

from __future__ import annotations

import pytest

from tests.mq_broker.broker.groups.test_sharing import Case


@pytest.fixture
def case() -> Case:
    return Case()
