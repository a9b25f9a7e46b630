"""`make bench`: TritonMQ's figures, each beside the limit of what it stands on, measured in turn in the same run.

Numbers on shared machines drift, so what counts is the ratio of two things measured one after the other, and its
spread. Nothing here asserts a time.
"""

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # the Python of other brokers' clients has nothing of ours
    import mq_client  # noqa: F401 - before anything imports gRPC
