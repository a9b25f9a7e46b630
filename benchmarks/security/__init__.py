"""What security costs, measured beside plain text: `python -m benchmarks.security`."""

import mq_client  # noqa: F401 - before anything imports gRPC
