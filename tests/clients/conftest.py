"""The clusters of tests/cluster, for the tests of clients in other languages."""

from tests.cluster.conftest import pytest_runtest_makereport, start_cluster

__all__ = ["pytest_runtest_makereport", "start_cluster"]
