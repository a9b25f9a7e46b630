"""Faults to plant in queue groups: each breaks one clause of their rules."""

from __future__ import annotations

from tests.simulation.real.fault import Fault

QUEUES = (
    Fault(
        "what is judged before a trim is committed is written behind it",
        "broker.queues.gathering:Gathering._gather",
        "if self.partition.replica.trimming:",
        "if False:",
        ("queue", "purge", "lead"),
        (("core.machine.admission:_judge_work", "if overlay.trims:", "if False:"),),
    ),
    Fault(
        "a lease is told before its entry is committed",
        "broker.queues.gathering:Gathering._propose",
        "self.partition.propose(work, lambda result: self._replied(draft, result), math.inf)",
        "self.partition.propose(work, lambda result: None, math.inf)\n"
        "    self._replied(draft, Done(self.partition.replica.last_index))",
        ("queue", "lead"),
    ),
    Fault(
        "a request is judged without the steps before it in its entry",
        "core.work.settling:_Entry._written",
        "self._touched.assign(touched)",
        "pass",
        ("queue", "lead"),
    ),
    Fault(
        "what was lent to a former request answers a later one",
        "broker.queues.gathering:Gathering._lent",
        "asking, state, queue = lending.asking, self._state, self._queue()",
        "asking = self._asking.get(lending.asking.member, lending.asking)\n"
        "    state, queue = self._state, self._queue()",
        ("queue", "lead"),
    ),
    Fault(
        "a member settles by another lease than the one that it has",
        "core.work.settling:_Entry._judged",
        "theirs = lease == settle.lease and state.leases[lease].member == member",
        "theirs = lease is not None and state.leases[lease].member == member",
        ("queue", "lead"),
    ),
    Fault(
        "anybody settles what is lent",
        "core.work.settling:_Entry._judged",
        "theirs = lease == settle.lease and state.leases[lease].member == member",
        "theirs = lease is not None",
        ("queue", "lead"),
    ),
    Fault(
        "a late acknowledgement is welcome though another lease has ended since",
        "core.work.settling:_Entry._judge_ended",
        "last = mark is not None and mark.deliveries == ending.deliveries",
        "last = mark is not None",
        ("queue", "lead"),
    ),
    Fault(
        "outputs are decided with records that others have",
        "core.work.settling:_Entry._settle_with_outputs",
        "held = lease == settle.lease and state.leases[settle.lease].member == member",
        "held = True",
        ("queue", "cut", "isolate"),
    ),
    Fault(
        "clocks go on while their leader stands still",
        "broker.queues.holdings:Holdings.slept",
        "self._clocks.restart(_begun(now_ms))",
        "pass",
        ("queue", "pause"),
    ),
    Fault(
        "an extension is told and not made",
        "broker.queues.clocks:Clocks.extend",
        "if clock is None:",
        "if True:",
        ("queue",),
    ),
    Fault(
        "what a member does not name stays its own",
        "broker.queues.holdings:Holdings.unclaimed",
        "member = asking.member\n",
        "return [], True\n    member = asking.member\n",
        ("queue", "cut"),
    ),
    Fault(
        "a member that names one lease keeps them all",
        "broker.queues.holdings:Holdings._given_back",
        "if held.get(lease) != ())",
        "if not held)",
        ("queue", "cut"),
    ),
    Fault(
        "what a member does not name is charged",
        "broker.queues.holdings:Holdings._given_back",
        "[Settle(lease, member, rests, Release(), said=False)]",
        "[Settle(lease, member, rests, Failed(REPLACED), said=False)]",
        ("queue", "cut"),
    ),
    Fault(
        "a leader lends before its epoch start is committed",
        "broker.queues.working:Working.gathering",
        "if not partition.serving:",
        "if not partition.replica.leading:",
        ("queue", "lead", "busy"),
        (
            (
                "broker.queues.working:Working._look",
                "(partition.serving and partition.replica.leader_epoch == led.epoch)",
                "(partition.replica.leading and partition.replica.leader_epoch == led.epoch)",
            ),
            (
                "broker.queues.working:Working._take_up",
                "if not partition.serving:",
                "if not partition.replica.leading:",
            ),
            ("broker.host.shell:Shell.leader", "found.serving", "found.replica.leading"),
        ),
    ),
    Fault(
        "a new leader keeps no clock of the leases that it finds",
        "broker.queues.holdings:Holdings.take_up",
        "self._clocks.start(lease, [(first, end)], max(lease_ms, INHERITED_LEASE_MS_MIN), _begun(now_ms))",
        "pass",
        ("queue", "lead"),
    ),
    Fault(
        "leases that a new leader finds run out at once",
        "broker.queues.holdings:Holdings.take_up",
        "max(lease_ms, INHERITED_LEASE_MS_MIN)",
        "0",
        ("queue", "lead"),
    ),
    Fault(
        "leases that a new leader finds are given no time to be claimed",
        "broker.queues.holdings:Holdings.take_up",
        "max(lease_ms, INHERITED_LEASE_MS_MIN)",
        "lease_ms",
        ("queue", "lead", "away"),
    ),
    Fault(
        "fresh records are lent though as many runs are kept as may be",
        "core.work.state:WorkState.fresh_room",
        "SPAN_MAX if self.runs < RUNS_MAX else 0",
        "SPAN_MAX",
        ("queue", "tight"),
    ),
    Fault(
        "fresh records are lent however far from the base",
        "core.work.state:WorkState.fresh_room",
        "SPAN_MAX if self.runs < RUNS_MAX else 0",
        "10 * SPAN_MAX if self.runs < RUNS_MAX else 0",
        ("queue", "tight"),
    ),
    Fault(
        "what came back is forgotten once many runs are kept",
        "core.work.state:WorkState._mark",
        "self.marks.assign(made)",
        "self.marks.assign(made if self.runs < RUNS_MAX else [])",
        ("queue", "tight"),
    ),
    Fault(
        "a snapshot leaves out what became of records before",
        "core.work.state:WorkState.frozen",
        "tuple(self.marks)",
        "()",
        ("queue",),
    ),
    Fault(
        "a partition is sent the decisions of a group out of their order",
        "broker.queues.outbox:Outbox._run",
        "chosen = lane.first(alone=alone)",
        "lane.waiting.rotate(1)\n        chosen = lane.first(alone=True)",
        ("queue", "isolate"),
    ),
    Fault(
        "a new leader leaves its predecessor's outbox alone",
        "broker.queues.outbox:Outbox.look",
        "_Group(gathering, state)",
        "_Group(gathering, state, max(state.outbox, default=-1))",
        ("queue", "lead"),
    ),
    Fault(
        "numbers of an outbox are counted without the epoch",
        "broker.queues.gathering:Gathering.__init__",
        "self.epoch << 32",
        "self.epoch << 8",
        ("queue",),
    ),
    Fault(
        "dead letters are let go though their entry may be committed yet",
        "broker.queues.dead_letters:DeadLetters._decide",
        "answer = await sending.answered",
        "await asyncio.wait({sending.answered}, timeout=0.5)\n"
        "        if not sending.answered.done():\n"
        "            self._let_go(group, target, number, key, batch)\n"
        "        answer = await sending.answered",
        ("queue", "slow disk"),
    ),
    Fault(
        "dead letters are staged and sent without their decision",
        "core.work.state:WorkState._send",
        "self._settle(ranges)",
        "self._settle(ranges) if send.member else None",
        ("queue",),
    ),
    Fault(
        "what is staged for a queue group is discarded by its age",
        "broker.queues.leftovers:Leftovers.attempt_status",
        "over = _is_over(partition, state, request.run_id)",
        "over, state = True, None",
        ("queue", "isolate", "sweeps"),
    ),
    Fault(
        "what an outbox names is discarded once its attempt is over",
        "broker.queues.leftovers:Leftovers.attempt_status",
        "kept.update(asked.intersection(line.uuids))",
        "pass",
        ("queue", "sweeps", "slow disk", "lead"),
    ),
    Fault(
        "what was published is forgotten by the outbox before it is",
        "broker.queues.outbox:Outbox._take",
        "if not lines:",
        "if n % 5 == 0:",
        ("queue",),
    ),
)

ORDER = (
    Fault(
        "what goes back leaves later records of its key with their member",
        "core.work.settling:_Entry._give_back",
        "if state.leases[lease].member == settle.member:",
        "if False:",
        ("queue", "order"),
    ),
    Fault(
        "what goes back with others is charged as they are",
        "core.work.settling:_Entry._give_back",
        "[Return(joined((low, high) for low, high, _ in pulled))]",
        "self._steps_of(settle, [(low, high) for low, high, _ in pulled])",
        ("queue", "order"),
    ),
    Fault(
        "a lease that runs out charges records of a key that nobody can have begun",
        "core.work.settling:_Entry._give_back",
        "isinstance(settle.outcome, Failed) and settle.outcome.begun_first",
        "False",
        ("queue", "order"),
    ),
    Fault(
        "an acknowledgement overtakes that of an earlier record of its key",
        "core.work.settling:_Entry.settle",
        "waits = setting.order.overtaking(mine, self._done)",
        "waits = ()",
        ("queue", "order"),
    ),
    Fault(
        "outputs of a record are decided before an earlier one of its key is settled",
        "core.work.settling:_Entry._settle_with_outputs",
        "if order is not None and settle.ranges and order.overtaking(settle.ranges, self._done):",
        "if False:",
        ("queue", "order"),
    ),
    Fault(
        "a late acknowledgement counts though there is an order",
        "core.work.settling:_Entry._judge_ended",
        "isinstance(settle.outcome, Ack) and setting.order is None",
        "isinstance(settle.outcome, Ack)",
        ("queue", "order"),
    ),
    Fault(
        "a member is not told what went back with others",
        "broker.queues.told:answer_to_wire",
        "in answer.pulled:",
        "in answer.pulled[:0]:",
        ("queue", "order"),
    ),
    Fault(
        "a member is told that more went back than did",
        "broker.queues.told:answer_to_wire",
        "ranges=to_gaps(ranges))",
        "ranges=to_gaps(((ranges[0][0], ranges[-1][1] + 1),)))",
        ("queue", "order"),
    ),
    Fault(
        "a record that waits for its time does not hold its key",
        "broker.queues.ordering:ByKey._advance",
        "if lease is None:",
        "mark = state.marks.at(offset)\n"
        "            if lease is None and mark is not None and mark.due_us > self._now_us:\n"
        "                chain.at += 1\n"
        "                continue\n"
        "            if lease is None:",
        ("queue", "order"),
    ),
    Fault(
        "a record is lent by the entry that gives an earlier one of its key back",
        "core.work.settling:_Entry.lend",
        "if order is not None and self._back and wanted:",
        "if False:",
        ("queue", "order", "busy"),
    ),
    Fault(
        "a key is lent to whoever asks for its next record",
        "broker.queues.ordering:ByKey._may",
        "return chain.holder is None or",
        "return True or",
        ("queue", "order"),
        (
            (
                "broker.queues.ordering:ByKey._queue",
                "heap = self._back if chain.holder is None else self._own.setdefault(chain.holder, [])",
                "heap = self._back",
            ),
        ),
    ),
)
