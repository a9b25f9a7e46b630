"""What a simulated disk keeps when the power fails."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.real.disk import Disk
from tests.simulation.real.loop import VirtualLoop


class Log:
    """A file whose first four bytes are on the disk, and whose next four a failed sync was to cover."""

    def __init__(self, root: Path, seed: int) -> None:
        self.loop = VirtualLoop(random.Random(seed))
        self.disk = Disk(root / "data", root / "graves", self.loop, Counter())
        self.path = self.disk.path / "log"
        self.fd = self.disk.open(self.path)
        self.disk.write(self.fd, (b"good",), 0)
        self.disk.sync(self.fd)
        self.disk.sync_directory(self.disk.path)
        self.disk.write(self.fd, (b"lost",), 4)
        self.disk.sync_fails = 1.0
        with pytest.raises(OSError):
            self.disk.sync(self.fd)
        self.disk.sync_fails = 0.0

    def after_power_loss(self) -> bytes:
        self.disk.sync(self.fd)
        self.disk.close(self.fd)
        self.disk.lose_power()
        self.loop.close()
        return Path(self.path).read_bytes()


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda disk, fd: None, {b"good", b"goodlost"}),
        (lambda disk, fd: disk.write(fd, (b"lost",), 4), {b"goodlost"}),
        (lambda disk, fd: disk.write(fd, (b"lo",), 4), {b"goodlo", b"goodlost"}),
        (lambda disk, fd: disk.truncate(fd, 4), {b"good"}),
        (lambda disk, fd: (disk.truncate(fd, 4), disk.write(fd, (b"longer",), 4)), {b"goodlonger"}),
        (lambda disk, fd: (disk.write(fd, (b"lo",), 4), disk.write(fd, (b"st",), 6)), {b"goodlost"}),
    ],
)
def test_what_a_failed_sync_was_to_cover_stays_only_if_it_is_written_or_cut_again(
    tmp_path: Path, change: Callable[[Disk, int], object], kept: set[bytes]
) -> None:
    found = set()
    for seed in range(20):
        log = Log(tmp_path / str(seed), seed)
        change(log.disk, log.fd)
        found.add(log.after_power_loss())
    assert found == kept
