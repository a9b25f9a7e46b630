"""What it costs a broker to read one of 20 columns from a segment: as it is done today, and if only the wanted bytes
were read and checked. `python -m benchmarks.projected_reads`; processor time and clock in ms a stored MB, least of
seven.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from mq_broker.broker.data.pushdown import Pushdown
from mq_broker.core.entries import Append, Entry
from mq_broker.core.messages import Published
from mq_broker.storage.codec.frame import Place, checksum, decode_frame, encode
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.wire.ipc_message import Table, read_record_batch_message

ROWS: Final = 6_553
COLUMNS: Final = 20
WANTED: Final = 7
FRAMES: Final = 200
SERIES: Final = 7

SCHEMA: Final = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(COLUMNS)])
PLACE: Final = Place("ab" * 16, 0)


class Segment:
    """Owns the file: frames of 1 MiB, of 20 columns each."""

    def __init__(self, fd: int) -> None:
        chance = np.random.default_rng(1)
        columns = [pa.array(chance.integers(0, 1 << 60, ROWS)) for _ in range(COLUMNS)]
        payload = memoryview(encode_batch(pa.record_batch(columns, schema=SCHEMA)))
        size = len(payload)
        entry = Entry(1, 1, 1, Append(), os.urandom(16), ROWS, size, size)
        frame = b"".join(encode(PLACE, entry, [payload]).parts)
        for _ in range(FRAMES):
            os.write(fd, frame)
        os.fsync(fd)
        self.fd, self.frame_bytes = fd, len(frame)
        self.header_bytes = len(frame) - size + 8 + struct.unpack_from("<i", payload, 4)[0]
        self.metadata_at = len(frame) - size + 8
        self.buffer_at, self.buffer_bytes = read_record_batch_message(payload).buffers[2 * WANTED + 1]
        request = pb.FetchRequest(topic="t", end_offset=1 << 40, project=True, columns=[SCHEMA.names[WANTED]])
        self._pushdown = Pushdown(SCHEMA, request, typed=True)
        self._batch = Published(0, ROWS, 1, 1, size, size)

    def read(self, at: int) -> None:
        os.pread(self.fd, self.frame_bytes, at)

    def read_and_check(self, at: int) -> memoryview:
        frame = decode_frame(PLACE, memoryview(os.pread(self.fd, self.frame_bytes, at)))
        return memoryview(frame.payload_parts[0])

    def project(self, at: int) -> None:
        """What a broker does today."""
        self._pushdown.apply([(self._batch, self.read_and_check(at))])

    def read_wanted(self, at: int) -> None:
        """The header with what says where columns are, and one column: each read and checked by itself."""
        header = os.pread(self.fd, self.header_bytes, at)
        checksum(0, header)
        batch = Table.root(memoryview(header)[self.metadata_at :]).table(2)
        assert batch is not None
        batch.pairs(2, 10 * COLUMNS)
        column = os.pread(self.fd, self.buffer_bytes, at + self.header_bytes + self.buffer_at)
        checksum(0, column)
        array = pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(column)])
        encode_batch(pa.record_batch([array], names=[SCHEMA.names[WANTED]]))


def measured(segment: Segment, read: Callable[[int], object], *, cold: bool) -> tuple[float, float]:
    megabytes = segment.frame_bytes * FRAMES / 1e6
    found = []
    for _ in range(SERIES):
        if cold:
            os.posix_fadvise(segment.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        processor, clock = time.process_time(), time.perf_counter()
        for number in range(FRAMES):
            read(number * segment.frame_bytes)
        found.append((time.process_time() - processor, time.perf_counter() - clock))
    return tuple(min(each) * 1000 / megabytes for each in zip(*found, strict=True))  # type: ignore[return-value]


def main() -> None:
    with tempfile.TemporaryFile() as file:
        segment = Segment(file.fileno())
        for read in (segment.read, segment.read_and_check, segment.project, segment.read_wanted):
            for cold in (False, True):
                processor, clock = measured(segment, read, cold=cold)
                where = "from disk" if cold else "from the page cache"
                print(f"{read.__name__:15} {where:20} processor {processor:.3f}, clock {clock:.3f} ms a MB", flush=True)


if __name__ == "__main__":
    main()
