"""gRPC's health service (grpc.health.v1) at the clients' port, for probes and proxies that know it.

The service "" lives as long as it answers. `tritonmq.v1.Broker` is serving once the broker is ready. `Watch` is not
served: a stream for each stranger who asks is more than a probe needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health_pb2

from mq_protocol.methods import BROKER

REQUEST_BYTES_MAX: Final = 1 << 10
SERVICE: Final = "grpc.health.v1.Health"


def health_handler(why_not: Callable[[], str]) -> grpc.GenericRpcHandler[Any, Any]:
    """`why_not`: why the broker is not ready; empty if it is."""

    async def check(data: bytes, context: aio.ServicerContext[Any, Any]) -> bytes:
        try:
            request = health_pb2.HealthCheckRequest.FromString(data[: REQUEST_BYTES_MAX + 1])
        except DecodeError:
            request = None
        if request is None or len(data) > REQUEST_BYTES_MAX:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no question for a health service")
        if request.service not in ("", BROKER.name):
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there are the services '' (lives) and {BROKER.name} (ready)"
            )
        ready = not request.service or not why_not()
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        answer: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
        return answer

    return grpc.method_handlers_generic_handler(SERVICE, {"Check": grpc.unary_unary_rpc_method_handler(check)})
