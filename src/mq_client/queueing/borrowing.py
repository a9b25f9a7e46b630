"""A member of a queue group for threads that wait: it is lent what is ready now, and says what becomes of it.

By a session whose credit is not renewed. Between two questions the session stays open, without credit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Final, Literal

from mq_client.cluster.client import Client
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.loop import EventLoop, this_process
from mq_client.cluster.requests import ask_leaders
from mq_client.errors import InvalidRequest, OutcomeUnknown, TritonMQError
from mq_client.queueing.leases import from_gaps
from mq_client.queueing.work_streams import Told, WorkStream, work_streams
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import from_wire

HEARD_MAX: Final = 1_000
"""What a session was told and nobody has heard yet. More is passed over: a question that waits for it ends in time."""


@dataclass(slots=True)
class _Answer:
    """What the leader said to one question. Errors are raised."""

    partition: int
    lent: pb.LeaseResponse = field(default_factory=pb.LeaseResponse)
    settled: list[pb.SettleAnswer] = field(default_factory=list)
    error: pb.Error = field(default_factory=pb.Error)

    def HasField(self, field_name: Literal["error"]) -> bool:  # noqa: N802 - as protobuf has it
        return False


class Borrower:
    """Owns the session with whoever led the partition when it was asked last. One question at a time.

    Every question is asked again, of whoever leads by then, until its deadline. Raises what that does not mend, and
    `OutcomeUnknown`.
    """

    def __init__(
        self, connection: Connection, opened: pb.WorkOpen, terms: pb.WorkTerms, loop: EventLoop | None = None
    ) -> None:
        """`opened`: as whom, of which partition. `terms`: on which; rows of what is lent are not sent. `loop`: where
        the session is held; None: this process's."""
        self._connection = connection
        self._loop = loop
        self._opened = opened
        self._terms = pb.WorkTerms()
        self._terms.CopyFrom(terms)
        self._terms.without_rows = True
        self._session: _Session | None = None
        self._closed = False

    def lend(self, records: int, held: Sequence[pb.LeaseId], deadline: Deadline) -> pb.LeaseResponse:
        """Be lent up to so many records, as many as are ready and one lease may have; nothing, if nothing is ready.
        `held`: all leases that the member knows of. What else it has goes back before."""

        def ask(session: _Session, limit: Deadline) -> _Answer:
            answer = _Answer(self._opened.partition)
            credit = pb.WorkCredit(records=session.lent + records, once=True)
            for said in session.ask(pb.SessionRequest(check=held, credit=credit), limit):
                if said.HasField("lease"):
                    answer.lent = said.lease
                    session.lent += sum(end - first for first, end in from_gaps(said.lease.ranges, records))
                if said.HasField("credit"):
                    break
            return answer

        return self._ask(ask, deadline).lent

    def settle(self, settles: Sequence[pb.SettleOne], deadline: Deadline) -> list[pb.SettleAnswer]:
        """What became of each, in order. Raises what one of them was refused with. Nothing goes back that is not
        named."""

        def ask(session: _Session, limit: Deadline) -> _Answer:
            first = session.settled + 1
            session.settled += len(settles)
            told: dict[int, pb.SettleAnswer] = {}
            for said in session.ask(pb.SessionRequest(settles=settles), limit):
                answers = {each.number - first: each.answer for each in said.answers}
                told |= {at: answer for at, answer in answers.items() if 0 <= at < len(settles)}
                if len(told) == len(settles):
                    break
            refused = next((each.error for each in told.values() if each.HasField("error")), None)
            if refused is not None:
                raise from_wire(refused)
            return _Answer(self._opened.partition, settled=[told[at] for at in range(len(settles))])

        return self._ask(ask, deadline).settled if settles else []

    def close(self) -> None:
        """What a lasting member has stays its own; what another one has goes back."""
        self._closed = True
        self._leave()

    def _ask(self, ask: Callable[[_Session, Deadline], _Answer], deadline: Deadline) -> _Answer:
        partition = self._opened.partition

        def at(address: str, _: list[int], limit: Deadline) -> Sequence[_Answer]:
            try:
                return (ask(self._session_with(address), limit),)
            except BaseException:
                self._leave()  # its answer may come yet, and is not the next question's
                raise

        return ask_leaders(self._connection, self._opened.topic, [partition], at, deadline)[partition]

    def _session_with(self, address: str) -> _Session:
        if self._closed:
            raise InvalidRequest("this member of the queue group was closed")
        session = self._session
        if session is None or session.address != address or session.is_over():
            self._leave()
            session = self._session = _Session(address, self._connection.client, self._loop or this_process())
            session.say(pb.SessionRequest(open=self._opened, terms=self._terms))
        return session

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class _Session:
    """One session, seen from a thread that is not the event loop's. `lent`, `settled`: how many records it was lent and
    how many outcomes were said, since it began."""

    def __init__(self, address: str, client: Client, loop: EventLoop) -> None:
        self.address = address
        self.lent = self.settled = 0
        self._client = client
        self._loop = loop
        self._heard: Queue[pb.SessionResponse | TritonMQError] = Queue(HEARD_MAX)
        self._stream: WorkStream | None = None
        self._number = 0

    def say(self, request: pb.SessionRequest) -> None:
        self._loop.call(self._say, request)

    def ask(self, request: pb.SessionRequest, limit: Deadline) -> Iterator[pb.SessionResponse]:
        """What it is told from then on. Raises why it is over, and `OutcomeUnknown` past the limit."""
        self.say(request)
        while True:
            try:
                said = self._heard.get(timeout=limit.remaining_s)
            except Empty:
                raise OutcomeUnknown(f"the broker at {self.address} did not answer in time: ask again") from None
            if isinstance(said, TritonMQError):
                raise said
            if said.HasField("error"):
                raise from_wire(said.error)
            yield said

    def is_over(self) -> bool:
        """Asked between two questions, when nothing else that it was told matters any more."""
        while not self._heard.empty():
            said = self._heard.get()
            if isinstance(said, TritonMQError) or said.HasField("error"):
                return True
        return False

    def close(self) -> None:
        self._loop.call(self._close)

    # ------------------------------------------------------------------ on the loop

    def _say(self, request: pb.SessionRequest) -> None:
        if self._stream is None:
            self._stream = work_streams(self._loop).to(self.address, self._client)
            self._number = self._stream.open(self._hear)
        request.session = self._number
        self._stream.say(request)

    def _hear(self, told: Told | TritonMQError) -> None:
        with suppress(Full):
            self._heard.put_nowait(told if isinstance(told, TritonMQError) else told.said)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.say(pb.SessionRequest(session=self._number, close=True))
            self._stream.forget(self._number)
