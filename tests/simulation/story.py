"""The last events of each partition, kept cheaply and told readably when something is wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import groupby

from mq_broker.core.entries import (
    Abort,
    Append,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Publish,
    Schedule,
    Stage,
    Trim,
    Work,
)
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Audit,
    BrokersSeen,
    CasAnswer,
    Done,
    Effect,
    Event,
    Flushed,
    Install,
    InstallSnapshot,
    NodeRead,
    NodeState,
    PeerMessage,
    Propose,
    Published,
    ReadNode,
    Refused,
    Reply,
    RoleChanged,
    Send,
    SoFar,
    Tick,
    Truncate,
    TurnEnded,
    WriteEntries,
    WriteNode,
)

LINES_KEPT = 400
LINES_TOLD = 60


@dataclass(slots=True)
class Line:
    """Something that happened at a broker (0: elsewhere). `view`: epoch, high watermark, flushed, end of the log, after
    it."""

    now_us: int
    broker: int
    event: Event | str
    effects: list[Effect] = field(default_factory=list)
    view: tuple[int, int, int, int] | None = None


class Story:
    """Owns the last lines of each partition: all of them, and apart from those the ones by which something changed."""

    def __init__(self, partitions: int) -> None:
        self._all: list[deque[Line]] = [deque(maxlen=LINES_KEPT) for _ in range(partitions)]
        self._changes: list[deque[Line]] = [deque(maxlen=LINES_KEPT) for _ in range(partitions)]
        self._views: dict[tuple[int, int], object] = {}

    def add(self, partition: int, line: Line) -> None:
        if line.effects or not isinstance(line.event, (Tick, TurnEnded)):
            self._all[partition].append(line)
        key = (partition, line.broker)
        if (
            line.view is None
            or line.view != self._views.get(key)
            or any(not _routine(effect) for effect in line.effects)
        ):
            self._views[key] = line.view
            self._changes[partition].append(line)

    def note(self, now_us: int, text: str) -> None:
        """A fault, or the end of one: part of every partition's story."""
        for partition in range(len(self._all)):
            self._all[partition].append(Line(now_us, 0, text))
            self._changes[partition].append(Line(now_us, 0, text))

    def tell(self, partition: int, views: list[str], *, changes_only: bool = False) -> str:
        """`changes_only`: without heartbeats and requests turned away; for what did not happen rather than for what
        did."""
        lines = (self._changes if changes_only else self._all)[partition]
        return "\n".join([*map(self._line, list(lines)[-LINES_TOLD:]), "", *views])

    def _line(self, line: Line) -> str:
        who = f"broker {line.broker}" if line.broker else "--------"
        what = line.event if isinstance(line.event, str) else self.event(line.event)
        view = "  [epoch {} hw {} flushed {} end {}]".format(*line.view) if line.view else ""
        readable = [effect for effect in line.effects if isinstance(effect, Published)]
        told = [effect for effect in line.effects if not isinstance(effect, Published) or effect in readable[-3:]]
        effects = "".join(f"\n{'':>24}-> {self.effect(effect)}" for effect in told)
        return f"{line.now_us / 1000:>12.3f}  {who}  {what}{view}{effects}"

    # ------------------------------------------------------------------ words

    def event(self, event: Event) -> str:
        match event:
            case AppendEntries() | AppendAck() | InstallSnapshot() | SoFar():
                return self.message(event)
            case Propose(request, operation, uuid=uuid):
                return f"request {request}: {type(operation).__name__} {_name(uuid)}"
            case NodeRead(version, state):
                return f"read node: version {version}, {self.state(state) if state else 'none'}"
            case CasAnswer(token, outcome, version):
                return f"write {token} is {outcome.value}" + (f": version {version}" if version >= 0 else "")
            case BrokersSeen(live):
                return "registered: " + " ".join(f"{name.broker}.{name.incarnation}" for name in live)
            case Flushed(index, epoch):
                return f"flushed {index}/{epoch}"
            case Tick() | TurnEnded():
                return type(event).__name__
            case _:
                return str(event)

    def effect(self, effect: Effect) -> str:
        match effect:
            case WriteEntries(entries):
                return "write " + self.entries(entries)
            case Truncate(last_index):
                return f"truncate to {last_index}"
            case Send(to, message):
                return f"to {to}: {self.message(message)}"
            case Reply(request, Done(index, base_offset, duplicate=duplicate)):
                return f"answer {request}: done at entry {index}, offset {base_offset}" + (
                    ", duplicate" if duplicate else ""
                )
            case Reply(request, Refused(error)):
                return f"answer {request}: {type(error).__name__}"
            case ReadNode():
                return "read the node"
            case WriteNode(version, state):
                return f"write {state.token} if version {version}: {self.state(state)}"
            case Published(base_offset, record_count, index):
                return f"readable: {base_offset}..{base_offset + record_count - 1} from entry {index}"
            case RoleChanged(leader, epoch, leading, ready):
                role = ("leads, ready" if ready else "leads, not ready") if leading else f"follows {leader or 'nobody'}"
                return f"{role} in epoch {epoch}"
            case Install(snapshot, recovery):
                return f"begin anew with a snapshot up to {snapshot.last_index}, recovery {recovery}"
            case Audit(text, alarm):
                return ("ALARM " if alarm else "audit: ") + text
            case _:
                return str(effect)

    def message(self, message: PeerMessage) -> str:
        if isinstance(message, InstallSnapshot):
            what = (
                f"up to {message.snapshot.last_index}/{message.snapshot.last_epoch}"
                if message.snapshot
                else "of its journal"
            )
            return (
                f"#{message.sequence} of {message.leader}.{message.incarnation} epoch {message.leader_epoch}: snapshot "
                f"{what}"
            )
        if isinstance(message, AppendEntries):
            entries = self.entries(message.entries) if message.entries else f"up to {message.last_index}"
            heir = f", successor {message.successor}" if message.successor else ""
            return (
                f"#{message.sequence} of {message.leader}.{message.incarnation} epoch {message.leader_epoch} "
                f"after {message.prev_index}/{message.prev_epoch}: {entries}, hw {message.high_watermark}{heir}"
            )
        if isinstance(message, SoFar):
            return (
                f"of {message.broker}.{message.incarnation} {message.log_id} epoch {message.leader_epoch}: "
                f"{'how far are you? I am at' if message.asks else 'I am at'} {message.last_index}/{message.last_epoch}"
            )
        verdict = f"conflict, try {message.hint_index}/{message.hint_epoch}" if message.conflict else "ack"
        return (
            f"#{message.sequence} {verdict} {message.acknowledged_index}, matched {message.matched_index} "
            f"of {message.follower}.{message.incarnation} {message.log_id} epoch {message.leader_epoch}"
        )

    def state(self, state: NodeState) -> str:
        leader = f"{state.leader.broker}.{state.leader.incarnation}" if state.leader else "none"
        isr = " ".join(f"{broker}({log_id})" for broker, log_id in state.isr)
        return f"leader {leader} epoch {state.leader_epoch} isr {isr} token {state.token}"

    def entries(self, entries: tuple[Entry, ...]) -> str:
        return " ".join(map(self.entry, entries[:6])) + (f" … {self.entry(entries[-1])}" if len(entries) > 6 else "")

    def entry(self, entry: Entry) -> str:
        match entry.operation:
            case EpochStart(offset_floor=floor):
                what = f"epoch-start({floor})" if floor else "epoch-start"
            case Append() | Stage() | Schedule() | Carry():
                what = f"{type(entry.operation).__name__.lower()}({_name(entry.uuid)})"
            case Publish(uuids=uuids) | Discard(uuids=uuids):
                what = f"{type(entry.operation).__name__.lower()}({','.join(map(_name, uuids))})"
            case DeleteGroup(group):
                what = f"delete-group({group})"
            case MoveCursor(group, offset):
                what = f"cursor({group}={offset})"
            case Work(group, life, steps):
                what = f"work({group}/{life}: {len(steps)})"
            case Trim(start):
                what = f"trim({start})"
            case Abort(key) | Fence(key):
                what = f"{type(entry.operation).__name__.lower()}({key.query_id})"
            case Give(key, owner):
                what = f"give({key.query_id} to {owner})"
            case Forget(keys):
                what = f"forget({','.join(key.query_id for key in keys)})"
            case Decide(batch_id=batch_id) | Finish(batch_id=batch_id):
                what = f"{type(entry.operation).__name__.lower()}({batch_id})"
        return f"{entry.index}/{entry.leader_epoch}:{what}"

    def epochs(self, entries: list[Entry]) -> str:
        """A log in short: where each epoch in it begins and ends."""
        runs = []
        for epoch, run in groupby(entries, key=lambda entry: entry.leader_epoch):
            members = list(run)
            runs.append(f"{members[0].index}..{members[-1].index} of {epoch}")
        return ", ".join(runs) or "empty"


def _routine(effect: Effect) -> bool:
    match effect:
        case Send() | ReadNode() | Reply(result=Refused()):
            return True
        case _:
            return False


def _name(uuid: bytes) -> str:
    return uuid.rstrip(b"\0").decode("latin-1") or "-"
