"""What is asked of the C library's allocator: buffers of a message's size are used again instead of coming as fresh
pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
from mq_process.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    print(keep_freed_memory())
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    messages = [bytes(3 << 20) for _ in range(8)]
    del messages
before = faults()
for _ in range(10):
    messages = [bytearray(b"x") * (3 << 20) for _ in range(8)]
    del messages
print(faults() - before)
"""


def faults(how: str) -> list[str]:
    run = [sys.executable, "-c", COUNT_FAULTS, how]
    return subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the knob is glibc's")
def test_memory_that_was_freed_is_used_again_without_faults() -> None:
    worked, kept = faults("kept")
    assert worked == "True"
    (given_back,) = faults("given back")
    assert int(kept) * 10 < int(given_back), "messages come in pages that are there"
