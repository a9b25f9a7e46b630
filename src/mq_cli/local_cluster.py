"""The promised import name of `LocalCluster`; it lives in mq_dev/local_cluster.py."""

from mq_dev.local_cluster import BrokerProcess, ClusterFailed, LocalCluster

__all__ = ["BrokerProcess", "ClusterFailed", "LocalCluster"]
