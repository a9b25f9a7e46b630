"""A `Work` entry's meta and a queue group's part of a snapshot, as protobuf and back.

Ranges of offsets are alternating gaps and lengths. What is read is bounded and checked: numbers that contradict each
other raise `ValueError`, and what only a later version can have written raises `LaterWork`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from mq_broker.core.entries import UUID_BYTES, Work
from mq_broker.core.work.endings import Ending, How
from mq_broker.core.work.ranges import RANGES_MAX, from_gaps, to_gaps
from mq_broker.core.work.state import FrozenGroups, FrozenWork, Mark, Outgoing, Totals, WorkState
from mq_broker.core.work.steps import (
    ERROR_BYTES_MAX,
    Accept,
    Begin,
    Drop,
    End,
    Lease,
    LeaseId,
    OutputLine,
    Park,
    Reason,
    Reject,
    Reset,
    Return,
    Send,
    Sent,
    Step,
    ranges_of,
)
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import NAME_CHARACTERS_MAX, OFFSET_MAX

T = TypeVar("T")

_CHUNK_BYTES: Final = 512
_OUTGOING_AT_A_TIME: Final = 100
_RUNS_AT_A_TIME: Final = 2_000
_CHUNKS_AT_A_TIME: Final = 64
_LEASES_AT_A_TIME: Final = 500


class LaterWork(Exception):
    """A step, or a reason, that this version does not know."""


# ------------------------------------------------------------------ entries


def work_to_wire(work: Work) -> bytes:
    """The meta of the entry."""
    return pb.WorkMeta(group=work.group, life=work.life, steps=map(_step_to_wire, work.steps)).SerializeToString()


def _step_to_wire(step: Step) -> pb.WorkStep:
    gaps = to_gaps(ranges_of(step))
    match step:
        case Begin(offset, recovery):
            return pb.WorkStep(begin=pb.WorkBegin(offset=offset, recovery=recovery), ranges=gaps)
        case Lease(member=member):
            return pb.WorkStep(lease=pb.WorkLease(member=member), ranges=gaps)
        case Accept(late=late):
            return pb.WorkStep(accept=pb.WorkAccept(late=None if late is None else _lease_to_wire(late)), ranges=gaps)
        case Drop(reason=reason):
            return pb.WorkStep(drop=pb.WorkDrop(reason=reason), ranges=gaps)
        case Return(_, charged, due_us, error, said):
            back = pb.WorkReturn(charged=charged, due_us=due_us, error=error, said=said)
            return pb.WorkStep(give_back=back, ranges=gaps)
        case Reject(_, error):
            return pb.WorkStep(reject=pb.WorkReject(error=error), ranges=gaps)
        case Send(_, reason, n, lines, member, number):
            send = pb.WorkSend(reason=reason, n=n, lines=map(_line_to_wire, lines), member=member, number=number)
            return pb.WorkStep(send=send, ranges=gaps)
        case Sent(n):
            return pb.WorkStep(sent=pb.WorkSent(n=n))
        case Park():
            return pb.WorkStep(park=pb.WorkPark(), ranges=gaps)
        case Reset():
            return pb.WorkStep(reset=pb.WorkReset(), ranges=gaps)
        case End():
            return pb.WorkStep(end=pb.WorkEnd())


def work_from_wire(meta: bytes) -> Work:
    """What `work_to_wire` made. Raises `DecodeError`, `ValueError` and `LaterWork`."""
    message = pb.WorkMeta.FromString(meta)
    if not 0 < len(message.group) <= NAME_CHARACTERS_MAX:
        raise ValueError(f"a group's name has {len(message.group)} characters")
    if sum(len(step.ranges) for step in message.steps) > 2 * RANGES_MAX:
        raise ValueError(f"an entry has more than {RANGES_MAX} ranges")
    return Work(message.group, message.life, tuple(map(_step, message.steps)))


def _step(step: pb.WorkStep) -> Step:
    ranges = from_gaps(step.ranges)
    match step.WhichOneof("step"):
        case "begin":
            return Begin(_number(step.begin.offset), _number(step.begin.recovery), ranges)
        case "lease":
            return Lease(ranges, _member(step.lease.member))
        case "accept":
            return Accept(ranges, _lease(step.accept.late) if step.accept.HasField("late") else None)
        case "drop":
            return Drop(ranges, _reason(step.drop.reason))
        case "give_back":
            back = step.give_back
            return Return(ranges, back.charged, _number(back.due_us), _error(back.error), back.said)
        case "reject":
            return Reject(ranges, _error(step.reject.error))
        case "send":
            send = step.send
            member = _member(send.member) if send.member else ""
            return Send(ranges, _reason(send.reason), _number(send.n), _lines(send.lines), member, _number(send.number))
        case "sent":
            return Sent(_number(step.sent.n))
        case "park":
            return Park(ranges)
        case "reset":
            return Reset(ranges)
        case "end":
            return End()
        case _:
            raise LaterWork("it has a step that this version does not know")


def _number(value: int) -> int:
    if not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value} is out of range")
    return value


def _reason(value: int) -> Reason:
    try:
        return Reason(value)
    except ValueError:
        raise LaterWork(f"reason {value} is not known to this version") from None


_MEMBER_CHARACTERS_MAX: Final = 2 * NAME_CHARACTERS_MAX + 16
"""Of its id, and the name of its user."""


def _member(name: str) -> str:
    if not 0 < len(name) <= _MEMBER_CHARACTERS_MAX:
        raise ValueError(f"a member's name has {len(name)} characters")
    return name


def _error(text: str) -> str:
    if len(text.encode()) > ERROR_BYTES_MAX:
        raise ValueError(f"the text of an error has more than {ERROR_BYTES_MAX} bytes")
    return text


def _line_to_wire(line: OutputLine) -> pb.OutputLine:
    return pb.OutputLine(topic_id=line.topic_id, partition=line.partition, uuids=b"".join(line.uuids))


def _lines(lines: Iterable[pb.OutputLine]) -> tuple[OutputLine, ...]:
    return tuple(map(_line, lines))


def _line(line: pb.OutputLine) -> OutputLine:
    joined = line.uuids
    if len(joined) % UUID_BYTES or line.partition < 0:
        raise ValueError("an output has a partition or a UUID that is none")
    uuids = tuple(joined[at : at + UUID_BYTES] for at in range(0, len(joined), UUID_BYTES))
    return OutputLine(line.topic_id, line.partition, uuids)


# ------------------------------------------------------------------ snapshots


def groups_to_wire(groups: FrozenGroups) -> Iterator[pb.WorkPart]:
    """The parts of a snapshot that tell them. Each is small; the first one of a group has its name."""
    for group, frozen in groups:
        base, full, chunks = frozen.settled
        totals = frozen.totals
        yield pb.WorkPart(
            group=group,
            life=frozen.life,
            base=base,
            frontier=frozen.frontier,
            last_n=frozen.last_n,
            recovery=frozen.recovery,
            begun_epoch=frozen.begun[0],
            begun_entry=frozen.begun[1],
            full=to_gaps(full),
            accepted=totals.accepted,
            dead=totals.dead,
            returned=totals.returned,
            charged=totals.charged,
            dropped=[pb.WorkDropped(reason=reason, count=count) for reason, count in totals.dropped],
            floor=_lease_to_wire(frozen.endings[0]),
        )
        for some in _in_pieces(chunks, _CHUNKS_AT_A_TIME):
            bits = b"".join(bits.to_bytes(_CHUNK_BYTES, "little") for _, bits in some)
            yield pb.WorkPart(chunks=[chunk for chunk, _ in some], bits=bits)
        for held in _in_pieces(frozen.members, _RUNS_AT_A_TIME):
            yield pb.WorkPart(members=[_lease_to_wire(lease, member) for lease, member in held])
        number = {lease: at for at, (lease, _) in enumerate(frozen.members)}
        for lent in _in_pieces(frozen.leases, _RUNS_AT_A_TIME):
            yield pb.WorkPart(
                lent=to_gaps((low, end) for low, end, _ in lent), lent_by=[number[id_] for *_, id_ in lent]
            )
        for marked in _in_pieces(frozen.marks, _RUNS_AT_A_TIME):
            kinds = {mark: at for at, mark in enumerate(dict.fromkeys(mark for *_, mark in marked))}
            yield pb.WorkPart(
                marked=to_gaps((low, end) for low, end, _ in marked),
                mark=[kinds[mark] for *_, mark in marked],
                marks=map(_mark_to_wire, kinds),
            )
        for sent in _in_pieces(frozen.outbox, _OUTGOING_AT_A_TIME):
            yield pb.WorkPart(outbox=[_outgoing_to_wire(n, outgoing) for n, outgoing in sent])
        for taken in _in_pieces(frozen.taken, _RUNS_AT_A_TIME):
            yield pb.WorkPart(taken=[pb.WorkTaken(member=member, number=n) for member, n in taken])
        for ended in _in_pieces(frozen.endings[1], _LEASES_AT_A_TIME):
            yield pb.WorkPart(ended=[_ended_to_wire(lease, runs) for lease, runs in ended])


def groups_from_wire(parts: Iterable[pb.WorkPart]) -> FrozenGroups:
    """What `groups_to_wire` was given. Raises `ValueError` and `LaterWork`; also if a state contradicts itself."""
    groups: dict[str, FrozenWork] = {}
    gathered: _Gathered | None = None
    for part in parts:
        if part.group:
            if gathered is not None:
                groups[gathered.group] = gathered.frozen()
            if part.group in groups:
                raise ValueError("a queue group is there twice")
            gathered = _Gathered(part)
        if gathered is None:
            raise ValueError("a part of a queue group comes before its name")
        gathered.take(part)
    if gathered is not None:
        groups[gathered.group] = gathered.frozen()
    return tuple(groups.items())


class _Gathered:
    """Owns what was read of one group."""

    def __init__(self, head: pb.WorkPart) -> None:
        self.group = head.group
        self._head = head
        self._chunks: list[tuple[int, int]] = []
        self._members: list[tuple[LeaseId, str]] = []
        self._lent: list[tuple[int, int, LeaseId]] = []
        self._marked: list[tuple[int, int, Mark]] = []
        self._outbox: dict[int, Outgoing] = {}
        self._taken: dict[str, int] = {}
        self._ended: list[tuple[LeaseId, tuple[tuple[int, int, Ending], ...]]] = []

    def take(self, part: pb.WorkPart) -> None:
        """Raises `ValueError` where columns are not of one length, or one points at what is not there."""
        bits = part.bits
        if len(bits) != _CHUNK_BYTES * len(part.chunks):
            raise ValueError("settled offsets have not as many bits as chunks")
        for at, chunk in enumerate(part.chunks):
            chunk_bits = bits[at * _CHUNK_BYTES : (at + 1) * _CHUNK_BYTES]
            self._chunks.append((_number(chunk), int.from_bytes(chunk_bits, "little")))
        for held in part.members:
            self._members.append((_lease(held), _member(held.member)))
        leases = [_at(self._members, number)[0] for number in part.lent_by]
        self._lent += [(*run, lease) for run, lease in zip(from_gaps(part.lent), leases, strict=True)]
        kinds = list(map(_mark, part.marks))
        marks = [_at(kinds, number) for number in part.mark]
        self._marked += [(*run, mark) for run, mark in zip(from_gaps(part.marked), marks, strict=True)]
        for sent in part.outbox:
            self._outbox[_number(sent.n)] = Outgoing(_lines(sent.lines), from_gaps(sent.ranges), _reason(sent.reason))
        for taken in part.taken:
            self._taken[_member(taken.member)] = _number(taken.number)
        self._ended += map(_ended, part.ended)

    def frozen(self) -> FrozenWork:
        """Raises `ValueError` if it contradicts itself."""
        head = self._head
        dropped = tuple((_reason(line.reason), line.count) for line in head.dropped)
        frozen = FrozenWork(
            head.life,
            (_number(head.base), from_gaps(head.full), tuple(self._chunks)),
            _number(head.frontier),
            tuple(self._members),
            tuple(self._lent),
            tuple(self._marked),
            tuple(self._outbox.items()),
            _number(head.last_n),
            tuple(self._taken.items()),
            Totals(head.accepted, dropped, head.dead, head.returned, head.charged),
            _number(head.recovery),
            (head.begun_epoch, head.begun_entry),
            (_lease(head.floor), tuple(self._ended)),
        )
        WorkState.thawed(frozen)
        return frozen


def _in_pieces(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[at : at + size] for at in range(0, len(values), size))


def _at(values: Sequence[T], number: int) -> T:
    if number >= len(values):
        raise ValueError("a run of offsets points at what is not there")
    return values[number]


def _lease_to_wire(lease: LeaseId, member: str = "") -> pb.WorkHeld:
    return pb.WorkHeld(leader_epoch=lease.leader_epoch, entry=lease.entry, step=lease.step, member=member)


def _lease(lease: pb.WorkHeld) -> LeaseId:
    return LeaseId(lease.leader_epoch, lease.entry, lease.step)


def _ended_to_wire(lease: LeaseId, runs: Sequence[tuple[int, int, Ending]]) -> pb.WorkEnded:
    return pb.WorkEnded(
        lease=_lease_to_wire(lease),
        ranges=to_gaps((low, end) for low, end, _ in runs),
        how=[ending.how for *_, ending in runs],
        deliveries=[ending.deliveries for *_, ending in runs],
    )


def _ended(ended: pb.WorkEnded) -> tuple[LeaseId, tuple[tuple[int, int, Ending], ...]]:
    if any(how > max(How) for how in ended.how):
        raise LaterWork("a lease ended in a way that this version does not know")
    endings = [Ending(How(how), number) for how, number in zip(ended.how, ended.deliveries, strict=True)]
    runs = zip(from_gaps(ended.ranges), endings, strict=True)
    return _lease(ended.lease), tuple((*run, ending) for run, ending in runs)


def _mark_to_wire(mark: Mark) -> pb.WorkMark:
    return pb.WorkMark(
        deliveries=mark.deliveries,
        failures=mark.failures,
        due_us=mark.due_us,
        rejected=mark.rejected,
        parked=mark.parked,
        error=mark.error,
    )


def _mark(mark: pb.WorkMark) -> Mark:
    return Mark(mark.deliveries, mark.failures, _number(mark.due_us), mark.rejected, mark.parked, _error(mark.error))


def _outgoing_to_wire(n: int, outgoing: Outgoing) -> pb.WorkOutgoing:
    lines = map(_line_to_wire, outgoing.lines)
    return pb.WorkOutgoing(n=n, lines=lines, ranges=to_gaps(outgoing.ranges), reason=outgoing.reason)
