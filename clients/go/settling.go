package tritonmq

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"tritonmq/clients/go/pb"
)

// Outcome is the answer that an outcome of a record gets.
type Outcome struct {
	done chan struct{}
	err  error
	left int // records without an answer
}

// Wait returns nil once the outcome is written down on the in-sync replicas. The error is LEASE_LOST if the record was
// not this member's any more: others may be given it. When ctx ends first, the outcome is sent on.
func (o *Outcome) Wait(ctx context.Context) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *Outcome) answer(err error) {
	if o == nil || o.left == 0 {
		return
	}
	if o.err == nil {
		o.err = err
	}
	if o.left--; o.left == 0 {
		close(o.done)
	}
}

// word is what is said of records. delay: below 0 for as the queue says.
type word struct {
	outcome pb.Outcome
	text    string
	delay   time.Duration
}

// piece is said by one call of some records of a lease. again: it was sent before, and nobody knows what came of it.
type piece struct {
	lease   *lease
	at      []int // ascending
	word    word
	outcome *Outcome
	again   bool
}

// line is what one request says of a lease: pieces that say the same.
type line struct {
	pieces []*piece
	at     []int // of all of them, ascending
}

// OutcomeOption says more of an outcome.
type OutcomeOption func(*word)

// After has the record not be lent again before that time is over.
func After(delay time.Duration) OutcomeOption {
	return func(w *word) { w.delay = max(delay, 0) }
}

// Ack: the record is done, for good.
func (r *QueueRecord) Ack() *Outcome {
	return r.settle(word{outcome: pb.Outcome_OUTCOME_ACK, delay: -1}, nil)
}

// Fail: the record failed, and is lent again after the queue's retry_ms, or After. After as many failures as the
// queue's delivery_limit says it becomes a dead letter, which tells why.
func (r *QueueRecord) Fail(why string, options ...OutcomeOption) *Outcome {
	return r.settle(word{outcome: pb.Outcome_OUTCOME_FAIL, text: shortened(why), delay: -1}, options)
}

// Release: the record goes back and is lent again, at once or After. That is no failure.
func (r *QueueRecord) Release(options ...OutcomeOption) *Outcome {
	return r.settle(word{outcome: pb.Outcome_OUTCOME_RELEASE, delay: -1}, options)
}

// Reject: the record can never be worked on. It becomes a dead letter at once, which tells why.
func (r *QueueRecord) Reject(why string) *Outcome {
	return r.settle(word{outcome: pb.Outcome_OUTCOME_REJECT, text: shortened(why), delay: -1}, nil)
}

// Extend begins the time of the record's lease anew.
func (r *QueueRecord) Extend() *Outcome {
	return r.settle(word{outcome: pb.Outcome_OUTCOME_EXTEND, delay: -1}, nil)
}

func (r *QueueRecord) settle(said word, options []OutcomeOption) *Outcome {
	for _, option := range options {
		option(&said)
	}
	outcome := &Outcome{done: make(chan struct{}), left: 1}
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch state := r.lease.states[r.at]; {
	case state == lost:
		outcome.answer(q.whyLost(r.lease, r.at))
	case q.ctx.Err() != nil:
		outcome.answer(q.ctx.Err())
	case state > begun && q.closed:
		outcome.answer(newError(pb.ErrorCode_LEASE_LOST, "the queue was closed, and what had no outcome was given back"))
	case state > begun:
		outcome.answer(newError(pb.ErrorCode_INVALID_REQUEST,
			"topic %q partition %d: offset %d has an outcome already: a record has one", r.Topic, r.Partition, r.Offset))
	default:
		q.say(r.lease, []int{r.at}, said, outcome)
	}
	return outcome
}

func (q *Queue) whyLost(l *lease, at int) *Error {
	return newError(pb.ErrorCode_LEASE_LOST, "topic %q partition %d: the record at offset %d is not this member's any more: "+
		"its lease ran out or was ended, and others may be given it. Work faster, call Extend, or give the queue a longer "+
		"lease_ms", q.view.name, l.place.partition, l.offsets[at])
}

// say has an outcome be sent. Under mu.
func (q *Queue) say(l *lease, at []int, said word, outcome *Outcome) {
	if len(at) == 0 {
		return
	}
	if said.outcome != pb.Outcome_OUTCOME_EXTEND {
		for _, each := range at {
			if l.ordered && l.states[each] == waiting {
				l.place.inHand++
			}
			l.states[each] = settling
		}
	}
	for some := range slices.Chunk(at, settlesAtOnce) {
		l.place.pieces = append(l.place.pieces, &piece{lease: l, at: some, word: said, outcome: outcome})
	}
	select {
	case l.place.wake <- struct{}{}:
	default:
	}
}

// tell sends a partition's outcomes to whoever leads it, until the queue ends.
func (q *Queue) tell(p *queuePlace) {
	for failures := 0; q.ctx.Err() == nil; {
		lines, wait := q.linesOf(p)
		if len(lines) == 0 {
			select {
			case <-p.wake:
			case <-time.After(wait):
			case <-q.ctx.Done():
			}
			continue
		}
		if q.settleNow(p, lines) {
			failures = 0
		} else {
			pause(q.ctx, failures)
			failures++
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, each := range p.pieces {
		q.refuse(&line{pieces: []*piece{each}}, newError(pb.ErrorCode_OUTCOME_UNKNOWN,
			"the queue has ended before the leader had answered"))
	}
	p.pieces = nil
	q.changed()
}

// linesOf takes what is to be said now, extensions that are due among it, and gives how long to wait if that is
// nothing.
func (q *Queue) linesOf(p *queuePlace) (lines []*line, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	wait = time.Minute
	for _, lease := range p.leases {
		if !now.Before(lease.extendAt) {
			q.extend(lease, now)
		}
		wait = min(wait, lease.extendAt.Sub(now))
	}
	type same struct {
		lease *lease
		word  word
		again bool
	}
	known := map[same]*line{}
	records := 0
	for len(p.pieces) > 0 && records+len(p.pieces[0].at) <= settlesAtOnce {
		first := p.pieces[0]
		p.pieces = p.pieces[1:]
		key := same{first.lease, first.word, first.again}
		if known[key] == nil {
			known[key] = &line{}
			lines = append(lines, known[key])
		}
		known[key].pieces = append(known[key].pieces, first)
		known[key].at = append(known[key].at, first.at...)
		records += len(first.at)
	}
	for _, each := range lines {
		slices.Sort(each.at)
		each.at = slices.Compact(each.at) // one record may be extended by two calls
	}
	p.flying = len(lines) > 0
	return lines, wait
}

// extend begins the time anew of what waits or was taken lately, so that each record has its whole time from when it
// is taken. Under mu.
func (q *Queue) extend(l *lease, now time.Time) {
	l.extendAt = now.Add(l.time / 3)
	var at []int
	for index, state := range l.states {
		if state <= begunLately {
			at = append(at, index)
			if state == begunLately {
				l.states[index] = begun
			}
		}
	}
	q.say(l, at, word{outcome: pb.Outcome_OUTCOME_EXTEND, delay: -1}, nil)
}

// settleNow asks once. False: some of it is to be asked again, after a pause.
func (q *Queue) settleNow(p *queuePlace, lines []*line) bool {
	request := &pb.SettleRequest{
		Topic: q.view.name, TopicId: q.view.id, Partition: p.partition, Group: q.group, Member: q.options.Member,
		TimeoutMs: uint32(attemptTimeout.Milliseconds()),
	}
	for _, each := range lines {
		request.Settles = append(request.Settles, each.wire())
	}
	address := q.client.leader(q.view.name, p.partition)
	var answer *pb.SettleResponse
	var err error
	if address == "" {
		err = q.lookForLeader(p, nil)
	} else if answer, err = ask(q.ctx, q.client, address, pb.BrokerClient.Settle, request); err != nil {
		err = q.lookForLeader(p, err)
	} else if len(answer.GetAnswers()) != len(lines) {
		err = malformed(address, "%d answers to %d outcomes", len(answer.GetAnswers()), len(lines))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.changed()
	p.flying = false
	whole := true
	for at, each := range lines {
		told := err
		if told == nil {
			told = q.answered(p, address, each, answer.GetAnswers()[at])
		}
		switch {
		case told == nil:
		case q.mayAskAgain(told) || q.ctx.Err() != nil:
			q.putBack(p, each, told)
			whole = false
		default:
			q.refuse(each, told)
		}
	}
	return whole
}

func (l *line) lease() *lease { return l.pieces[0].lease }
func (l *line) word() word    { return l.pieces[0].word }

func (l *line) wire() *pb.SettleOne {
	said := l.word()
	offsets := make([]int64, len(l.at))
	for at, index := range l.at {
		offsets[at] = l.lease().offsets[index]
	}
	one := &pb.SettleOne{Lease: l.lease().wire(), Ranges: toGaps(offsets), Outcome: said.outcome, Error: said.text}
	if said.delay >= 0 {
		one.DelayMs = proto.Uint64(uint64(said.delay.Milliseconds()))
	}
	return one
}

// putBack has these be said again, before all others. What was extended by itself is extended anew. Under mu.
func (q *Queue) putBack(p *queuePlace, l *line, err error) {
	var told *Error
	sent := !errors.As(err, &told) || !told.Definite
	var back []*piece
	for _, piece := range l.pieces {
		if piece.word.outcome == pb.Outcome_OUTCOME_EXTEND && piece.outcome == nil {
			piece.lease.extendAt = time.Now()
			continue
		}
		piece.again = piece.again || sent
		back = append(back, piece)
	}
	p.pieces = append(back, p.pieces...)
}

// refuse: nothing more can be done with these, and they are not settled. Under mu.
func (q *Queue) refuse(l *line, err error) {
	for _, piece := range l.pieces {
		for _, at := range piece.at {
			if piece.word.outcome != pb.Outcome_OUTCOME_EXTEND {
				q.over(piece.lease, at, lost)
			}
			piece.outcome.answer(err)
		}
	}
}

// answered takes what became of one line. An error: nothing of it is known to be done. Only what the leader's answer
// leaves no doubt of counts as settled. Under mu.
func (q *Queue) answered(p *queuePlace, address string, l *line, told *pb.SettleAnswer) error {
	if told.GetError() != nil {
		return fromWire(told.GetError())
	}
	ranges, ok := fromGaps(told.GetLost(), recordsInAnswerMax)
	lostAt, within := l.lease().places(spelledOut(ranges))
	for _, at := range lostAt {
		_, asked := slices.BinarySearch(l.at, at)
		within = within && asked
	}
	if !ok || !within {
		return malformed(address, "it told of lost records that it was not asked about")
	}
	pulled, ok := q.pulledOf(p, told)
	if !ok {
		return malformed(address, "it told of records that went back, and which these are makes no sense")
	}
	extends := l.word().outcome == pb.Outcome_OUTCOME_EXTEND
	again := false
	for _, piece := range l.pieces {
		for _, at := range piece.at {
			_, isLost := slices.BinarySearch(lostAt, at)
			again = again || piece.again && !extends && piece.word.outcome != pb.Outcome_OUTCOME_ACK
			switch {
			case isLost && (!extends || piece.lease.states[at] <= begun):
				q.over(piece.lease, at, lost)
				piece.outcome.answer(q.whyLost(piece.lease, at))
			case !extends:
				q.over(piece.lease, at, done)
				piece.outcome.answer(nil)
			default:
				piece.outcome.answer(nil)
			}
		}
	}
	for _, each := range pulled {
		if each.lease.states[each.at] <= begun { // what has an outcome waits for the answer to that
			q.over(each.lease, each.at, lost)
		}
	}
	if len(lostAt) > 0 || again { // the answer that was lost may have told of others that went back with these
		q.releaseBehind(p)
	}
	return nil
}

type leasedAt struct {
	lease *lease
	at    int
}

// pulledOf gives the records of this member that went back with others, as they come after one of these in the
// queue's order. False: it makes no sense. Under mu.
func (q *Queue) pulledOf(p *queuePlace, told *pb.SettleAnswer) (found []leasedAt, ok bool) {
	for _, each := range told.GetPulled() {
		ranges, ok := fromGaps(each.GetRanges(), recordsInAnswerMax)
		if !ok {
			return nil, false
		}
		lease := p.leases[leaseIDOf(each.GetLease())]
		if lease == nil {
			continue // all of it has its outcome
		}
		places, ok := lease.places(spelledOut(ranges))
		if !ok {
			return nil, false
		}
		for _, at := range places {
			found = append(found, leasedAt{lease, at})
		}
	}
	return found, true
}

// releaseBehind: after a record of an ordered queue was lost, others may be given what comes behind it. Under mu.
func (q *Queue) releaseBehind(p *queuePlace) {
	for _, lease := range p.leases {
		if !lease.ordered {
			continue
		}
		var behind []int
		for at, state := range lease.states {
			if state == waiting {
				behind = append(behind, at)
			}
		}
		q.say(lease, behind, word{outcome: pb.Outcome_OUTCOME_RELEASE, delay: -1}, nil)
	}
}
