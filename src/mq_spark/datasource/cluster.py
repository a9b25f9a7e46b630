"""All that the data source asks of the brokers, on top of mq_client. Owns this process's connections.

Spark's Python workers are kept and swap roles, and some are forked: connections are opened on first use, kept at module level and
keyed by process id, so that a micro-batch finds those of the one before and a fork opens its own.
"""

from __future__ import annotations
