"""A broker whose disk is slow: each sync takes a second, and a small queue stands before it. All else is the product's
own. Run like the `tritonmq` command: `python -m tests.alerts.slow_broker broker --id 1 …`."""

from __future__ import annotations

import time

from mq_broker.storage.files import OsFiles
from mq_broker.storage.journal import writer
from mq_broker.storage.opening import directory
from mq_cli.main import main

SYNC_S = 1.0
QUEUE_BYTES_MAX = 8 << 20


class SlowFiles(OsFiles):
    """The second is the disk's, not a wait for something."""

    def sync(self, fd: int) -> None:
        time.sleep(SYNC_S)
        super().sync(fd)


if __name__ == "__main__":
    writer.OsFiles = directory.OsFiles = SlowFiles  # type: ignore[misc]
    writer.WRITER_PENDING_BYTES_MAX = QUEUE_BYTES_MAX  # type: ignore[misc]
    main()
