"""The `tritonmq` command. Thin: it reads options, asks mq_client or starts mq_broker, and writes what came of it."""

import mq_client  # noqa: F401 - before mq_broker imports gRPC: see mq_client/forks.py
