"""Processes of `tritonmq` that begin as forks of one which has imported everything.

Imports are most of what a broker's start costs, and the tests start several hundred brokers. A fork has them, and is a
process like any other from there on: with an id, a session, an environment and standard streams of its own.
`python -m mq_cli.main` itself is started by `tests/mq_cli/test_dev.py`, `make demo` and `make tutorial`.
"""
