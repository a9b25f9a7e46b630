"""Processes of `tritonmq` that begin as forks of one which has imported everything.

A broker's imports take more than a second of processor time, and the tests start several hundred brokers. A fork has
them, and is a process like any other from there on: with an id, a session, an environment and standard streams of its
own. `python -m mq_cli.main` itself is tested where the command line is (`tests/mq_cli`, `make demo`, the tutorial).
"""
