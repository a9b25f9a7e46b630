"""Clusters on one machine, for `tritonmq dev`, tests, benchmarks and notebooks: broker processes and a ZooKeeper
server."""
