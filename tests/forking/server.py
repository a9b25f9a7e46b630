"""The process that others are forked from: `python -m tests.forking.server DESCRIPTOR`.

On the socket of that descriptor it is sent commands as JSON (arguments, environment, directory), each with four
descriptors: standard input, standard output, standard error, and a socket on which it tells the process's id, and how
it ended.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import NoReturn

from mq_process.grpc_core import refuse_older_tls, wait_without_event_engine, write_nothing

for choose in (write_nothing, wait_without_event_engine, refuse_older_tls):
    choose()  # as `tritonmq broker` does, before gRPC is imported

import mq_broker.broker  # noqa: E402, F401
import mq_cli.machines.broker  # noqa: E402
import mq_cli.main  # noqa: E402

START_BYTES_MAX = 1 << 20
STREAMS = 3


def main() -> None:
    """Until the socket's other end is closed; in a fork: that command, to its end."""
    starts = socket.socket(fileno=int(sys.argv[1]))
    woken, wakes = socket.socketpair()
    for each in (woken, wakes):
        each.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([starts, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            reap(children)
        if starts in ready:
            said, descriptors, _, _ = socket.recv_fds(starts, START_BYTES_MAX, STREAMS + 1)
            if not said:
                return
            child = os.fork()
            if not child:
                for each in (starts, woken, wakes, *children.values()):
                    each.detach()  # else it closes in the end what has its number by then
                become(json.loads(said), descriptors)
            told = socket.socket(fileno=descriptors.pop())
            for descriptor in descriptors:
                os.close(descriptor)
            told.sendall(struct.pack("!i", child))
            children[child] = told


def reap(children: dict[int, socket.socket]) -> None:
    """Tell of all that have ended."""
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with children.pop(child) as told:
            told.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))


def become(start: dict[str, object], descriptors: list[int]) -> NoReturn:
    """The command of `start`: with nothing of the process that it was forked from but what that had imported."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors[:STREAMS]):
        os.dup2(descriptor, number)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.chdir(str(start["directory"]))
    os.environ.clear()
    os.environ.update(start["environment"])  # type: ignore[call-overload]
    faulthandler.enable()
    sys.argv = list(start["arguments"])  # type: ignore[call-overload]
    mq_cli.main.main()
    raise AssertionError("the command returned")


if __name__ == "__main__":
    main()
