"""Watching where partitions end: over a broker's stream port where it can be reached (streams.py), else by gRPC."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from mq_client.cluster import streams
from mq_client.cluster.channels import NOBODY, Client
from mq_client.cluster.channels import open_watch_offsets as open_by_grpc
from mq_client.cluster.streams import ByGrpcInstead, Duplex, NoStreamPort
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.streams import Kind, parsed, say

log = logging.getLogger(__name__)


class StreamWatch:
    """One call over a stream port, as a call of gRPC: iterated once for its answers, by a thread of its own, and
    cancelled from any."""

    def __init__(self, address: str, request: pb.WatchOffsetsRequest, client: Client, stream_address: str) -> None:
        self._stream_address = stream_address
        self._duplex = Duplex(*streams.dial(stream_address, client), address)
        opened = streams.open_message("WatchOffsets")
        self._duplex.send([*opened, *say(Kind.MESSAGE, request.SerializeToString()), *say(Kind.END)])

    def __iter__(self) -> Iterator[pb.WatchOffsetsResponse]:
        try:
            while (message := self._duplex.receive()).kind is Kind.MESSAGE:
                yield parsed(message.body, pb.WatchOffsetsResponse)
        except TritonMQError as error:
            if streams.is_for_grpc(error, self._stream_address):
                raise Unreachable(f"{error}; gRPC is tried") from error
            raise
        finally:
            self._duplex.release()

    def cancel(self) -> None:
        self._duplex.close()


def open_watch_offsets(
    address: str, request: pb.WatchOffsetsRequest, client: Client = NOBODY, stream_address: str = ""
) -> Any:
    """A call to the broker at `address`, iterated for `pb.WatchOffsetsResponse`; `cancel` ends it. Raises
    `TritonMQError`, or what gRPC raises."""
    if streams.usable(stream_address):
        try:
            return StreamWatch(address, request, client, stream_address)
        except NoStreamPort as error:
            log.debug("%s; by gRPC instead", error)
            streams.check_not_required(stream_address)
            return ByGrpcInstead(open_by_grpc(address, request, client), stream_address)
    return open_by_grpc(address, request, client)
