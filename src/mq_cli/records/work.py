"""`tritonmq work`: a command for each record of a queue group."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

import click

from mq_cli.commands import argument, command, flag, option, several
from mq_cli.connection import BOOTSTRAP, Connection
from mq_cli.interrupts import handling
from mq_cli.managing.queue import check_declared, say_what_waits
from mq_cli.output import counted, say
from mq_cli.records.messages import value_bytes
from mq_cli.values import COMMAND, SOME_SECONDS, Seconds, checking_what_was_typed

if TYPE_CHECKING:
    from mq_client import LeasedRecord, Queue, TopicDescription

GIVE_UP_S: Final = 10.0
"""For so long, once it is to end, brokers may take to answer."""

RELEASES: Final = 75
"""EX_TEMPFAIL of sysexits.h: not now."""

_LINE_S: Final = 3.0
"""How long the line at the start may wait for leaders: commands are run without it too."""

_LOOK_MS: Final = 200.0
_ERROR_BYTES: Final = 240
_READ_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class How:
    """How many records are worked on at once, for how long, which, and when it ends."""

    concurrency: int = option("Commands at the same time.", "-c", type=click.IntRange(1, 1_000), default=1)
    lease_s: float | None = option(
        "How long one command may take before its record is lent to others.  [default: as the group says]",
        "--lease",
        type=Seconds(1, 43_200),
        metavar="SECONDS",
    )
    priority: int = option(
        "While members of a higher priority are there, lower ones wait.", type=click.IntRange(0, 31), default=0
    )
    filter: str | None = option('Only records that match, such as "n > 5".', metavar="TEXT")
    count_max: int | None = option("Exit after N records.", "--max", type=click.IntRange(1), metavar="N")
    idle_s: float | None = option(
        "Exit when no record has come for this time.", "--timeout", type=SOME_SECONDS, metavar="SECONDS"
    )
    declare: bool = flag("Declare GROUP, with the default settings, if it is not declared.")


@command()
def work(
    topic: str = argument(),
    group: str = argument(),
    command: tuple[str, ...] = COMMAND,
    how: How = several(How),
    connection: Connection = BOOTSTRAP,
) -> None:
    """Run COMMAND for each record of the queue group GROUP of TOPIC, with the record's value on its standard input.

    Exit code 0 settles the record. 75 gives it back, and it is lent again at once. Any other one counts as a failure,
    with the end of the command's standard error as its error: the record is lent again later. After delivery_limit
    failures (10) it is a dead letter: it goes to the topic TOPIC.dead, unless the queue's dead_letter says otherwise.
    Rows of a topic with columns come as JSON.

    The command finds TRITONMQ_TOPIC, TRITONMQ_PARTITION, TRITONMQ_OFFSET, TRITONMQ_DELIVERIES, TRITONMQ_FAILURES and
    TRITONMQ_KEY (if the record has a key) in its environment.

    Ctrl-C starts no more commands and waits for those that run; what was lent besides is given back. A second Ctrl-C
    ends the commands and gives their records back, and a third one kills them. If no broker answers, it exits 10 s
    after the first one, or with the second one, and says how many outcomes are not known.

    Example: tritonmq work thumbnails workers --concurrency 4 -- ./make-thumbnail
    """
    from mq_client import Queue

    with checking_what_was_typed():
        queue = Queue(
            **connection.for_client(),
            topic=topic,
            group=group,
            in_flight_max=how.concurrency,
            working=how.concurrency,
            priority=how.priority,
            filter=how.filter,
            lease_ms=None if how.lease_s is None else int(how.lease_s * 1000),
        )
    with connection.admin() as admin:
        described = admin.describe_topic(topic)
        check_declared(admin, topic, group, declare=how.declare)
    with connection.admin(_LINE_S) as admin:
        say_what_waits(admin, topic, group)
    workers = _Workers(queue, command, _shape(described), how, connection.environment())
    try:
        workers.run()
    finally:
        queue.close(timeout_ms=workers.patience_ms)
    workers.check_end()


def _shape(described: TopicDescription) -> Callable[[Any], Any] | None:
    """What makes JSON of a row; None on a topic without columns."""
    if not described.typed:
        return None
    from mq_cli.records.map_objects import row_shape

    return row_shape(described.schema)


class _Workers:
    """Owns the threads, each of which runs one command at a time."""

    def __init__(
        self,
        queue: Queue,
        command: Sequence[str],
        shape: Callable[[Any], Any] | None,
        how: How,
        environment: Mapping[str, str],
    ) -> None:
        self._queue = queue
        self._command = command
        self._shape = shape
        self._environment = environment
        self._how = how
        self._left = how.count_max
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended: set[subprocess.Popen[bytes]] = set()
        self._signals = 0
        self._give_up_at = math.inf
        self._in_hand = 0  # records whose command runs, or whose outcome is not committed
        self._unknown = 0
        self._died: BaseException | None = None

    def run(self) -> None:
        """Until there is nothing more to do, or a signal. Raises what ended a worker."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._how.concurrency)]
        with self._hearing_signals():
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():  # so that signals are heard
                    thread.join(_LOOK_MS / 1000)
        if self._died is not None:
            raise self._died

    def _work(self) -> None:
        waited_s = 0.0
        try:
            while self._take_turn():
                record = self._queue.take(_LOOK_MS)
                if record is not None:
                    waited_s = 0.0
                    with self._counted():
                        self._run_for(record)
                    continue
                self._give_turn_back()
                waited_s += _LOOK_MS / 1000
                if self._how.idle_s is not None and waited_s >= self._how.idle_s:
                    return
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._died = self._died or error
            self._stopping.set()

    def _take_turn(self) -> bool:
        with self._lock:
            if self._stopping.is_set() or self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def _give_turn_back(self) -> None:
        with self._lock:
            if self._left is not None:
                self._left += 1

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._in_hand += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_hand -= 1

    def _run_for(self, record: LeasedRecord) -> None:
        from mq_client import LeaseLost

        code, error, ended = self._run_command(record)
        where = f"{record.topic} partition {record.partition} offset {record.offset}"
        try:
            if code == 0:
                self._wait_for(record.ack())
            elif code == RELEASES:
                self._wait_for(record.release())
            elif ended:
                say(f"{where}: its command was ended, and it is given back")
                self._wait_for(record.release())
            else:
                say(f"{where}: {error}")
                self._wait_for(record.fail(error))
        except LeaseLost:
            say(f"{where}: it took longer than its lease, so others may have been lent it: give --lease, or lease_ms")

    def _wait_for(self, outcome: Future[None]) -> None:
        """Until it is committed. Not for long once this is to end."""
        until = math.inf
        while time.monotonic() < min(until, self._give_up_at):
            if self._stopping.is_set():
                until = min(until, time.monotonic() + GIVE_UP_S)
            with contextlib.suppress(TimeoutError):
                outcome.result(_LOOK_MS / 1000)
                return
        with self._lock:
            self._unknown += 1

    @property
    def patience_ms(self) -> float | None:
        """How long giving back what is held may take; None: as long as usual."""
        if self._unknown:
            return _LOOK_MS
        return GIVE_UP_S * 1000 if self._signals else None

    def check_end(self) -> None:
        """Raises what the user is to be told of how it ended."""
        if self._unknown:
            raise click.ClickException(
                f"no broker has answered: what became of {counted(self._unknown, 'record')} is not known. It is lent "
                "again when its lease runs out, unless the outcome has arrived"
            )
        if self._signals > 1:
            raise click.Abort

    def _run_command(self, record: LeasedRecord) -> tuple[int, str, bool]:
        """The exit code, what is to be kept of the error, and whether we have ended it."""
        value = record.value if self._shape is None else self._shape(record.value)
        child = subprocess.Popen(  # noqa: S603 - to run it is what the user asks for
            self._command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._environment, **_variables(record)},
            start_new_session=True,  # a Ctrl-C is for us
        )
        with self._lock:
            self._running.add(child)
        assert child.stdin is not None
        assert child.stderr is not None
        feeding = threading.Thread(target=_feed, args=(child.stdin, value_bytes(value)), daemon=True)
        feeding.start()
        tail = _pass_on(child.stderr)
        code = child.wait()
        with self._lock:
            self._running.discard(child)
            ended = child in self._ended and code < 0
        how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        return code, f"{how}: {tail}" if tail else how, ended

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """The first one lets the commands end, the second one ends them, the third one kills them."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1
            self._stopping.set()
            if self._signals == 1:
                running, in_hand = len(self._running), self._in_hand
                if running:
                    say(f"waiting for {counted(running, 'command')} to end; once more ends them")
                elif in_hand:
                    say(f"waiting for the outcome of {counted(in_hand, 'record')}; once more ends this at once")
                return
            if not self._running:
                self._give_up_at = time.monotonic()
            for child in list(self._running):
                self._ended.add(child)
                child.terminate() if self._signals == 2 else child.kill()

        with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), stop)):
            yield


def _variables(record: LeasedRecord) -> dict[str, str]:
    found = {
        "TRITONMQ_TOPIC": record.topic,
        "TRITONMQ_PARTITION": str(record.partition),
        "TRITONMQ_OFFSET": str(record.offset),
        "TRITONMQ_DELIVERIES": str(record.deliveries),
        "TRITONMQ_FAILURES": str(record.failures),
    }
    if isinstance(record.key, bytes) and b"\0" not in record.key:  # what no environment can hold
        found["TRITONMQ_KEY"] = os.fsdecode(record.key)
    return found


def _feed(stdin: IO[bytes], value: bytes) -> None:
    """A command need not read what it is given."""
    with contextlib.suppress(OSError):
        stdin.write(value)
    with contextlib.suppress(OSError):
        stdin.close()


def _pass_on(stderr: IO[bytes]) -> str:
    """What the command says goes to our standard error; the end of it."""
    end = b""
    with stderr:
        while part := os.read(stderr.fileno(), _READ_BYTES):
            sys.stderr.buffer.write(part)
            sys.stderr.buffer.flush()
            end = (end + part)[-_READ_BYTES:]
    text = end.decode(errors="replace").strip()
    encoded = text.encode()
    if len(encoded) <= _ERROR_BYTES:
        return text
    return "..." + encoded[-_ERROR_BYTES + 3 :].decode(errors="ignore")
