package tritonmq

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"tritonmq/clients/go/pb"
)

const (
	settlesAtOnce  = 4_000 // records that one message settles or extends
	settlesBytes   = 256 << 10
	errorTextBytes = 256 // what a leader keeps of an error
)

// Outcome is the answer that an outcome of a record gets.
type Outcome struct {
	done chan struct{}
	err  error
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
	if o != nil {
		o.err = err
		close(o.done)
	}
}

// word is what is said of records. delay: below 0 for as the queue says.
type word struct {
	outcome pb.Outcome
	text    string
	delay   time.Duration
}

var (
	extension = word{outcome: pb.Outcome_OUTCOME_EXTEND, delay: -1}
	release   = word{outcome: pb.Outcome_OUTCOME_RELEASE, delay: -1}
)

// line says the same of records of one lease. again: it was sent before, and nobody knows what came of it.
type line struct {
	lease *lease
	word  word
	again bool
	said  []said // by offset, once it is sent
}

// said is one record of a line. outcome: of whoever has said it.
type said struct {
	record  *QueueRecord
	outcome *Outcome
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
	return r.settle(release, options)
}

// Reject: the record can never be worked on. It becomes a dead letter at once, which tells why.
func (r *QueueRecord) Reject(why string) *Outcome {
	return r.settle(word{outcome: pb.Outcome_OUTCOME_REJECT, text: shortened(why), delay: -1}, nil)
}

// Extend begins the time of the record's lease anew.
func (r *QueueRecord) Extend() *Outcome {
	return r.settle(extension, nil)
}

func (r *QueueRecord) settle(what word, options []OutcomeOption) *Outcome {
	for _, option := range options {
		option(&what)
	}
	outcome, q := &Outcome{done: make(chan struct{})}, r.lease.queue
	heard := q.do(func() {
		if err := r.whyNot(); err != nil {
			outcome.answer(err)
		} else {
			q.say(what, said{r, outcome})
		}
	})
	if !heard {
		<-q.over
		outcome.answer(cmp.Or(r.whyNot(), q.ended))
	}
	return outcome
}

// whyNot says why it can have no outcome.
func (r *QueueRecord) whyNot() error {
	switch {
	case r.state == lost:
		return r.whyLost()
	case r.state > begun && r.lease.queue.isClosing:
		return newError(pb.ErrorCode_LEASE_LOST, "the queue was closed, and what had no outcome was given back")
	case r.state > begun:
		return newError(pb.ErrorCode_INVALID_REQUEST,
			"topic %q partition %d: offset %d has an outcome already: a record has one", r.Topic, r.Partition, r.offset)
	}
	return nil
}

func (r *QueueRecord) whyLost() error {
	return newError(pb.ErrorCode_LEASE_LOST, "topic %q partition %d: the record at offset %d is not this member's any more: "+
		"its lease ran out or was ended, and others may be given it. Work faster, call Extend, or give the queue a longer "+
		"lease_ms", r.lease.queue.view.name, r.lease.place.partition, r.offset)
}

// say has this be sent of a record.
func (q *Queue) say(what word, each said) {
	l := each.record.lease
	if what != extension {
		q.change(each.record, settling)
	}
	p := l.place
	at := len(p.lines) - 1
	if at < 0 || p.lines[at].lease != l || p.lines[at].word != what || p.lines[at].again || len(p.lines[at].said) == settlesAtOnce {
		p.lines = append(p.lines, &line{lease: l, word: what})
		at++
	}
	p.lines[at].said = append(p.lines[at].said, each)
	q.stirred = q.stirred || !p.flying() || q.hurries()
}

func (q *Queue) sayAll(what word, records []*QueueRecord) {
	for _, record := range records {
		q.say(what, said{record, nil})
	}
}

// hurries: the program has nothing else to work on, so outcomes gather no longer while others are on their way.
func (q *Queue) hurries() bool { return q.waiting == 0 && q.begun == 0 }

// speak has a leader hear what is to be said now, as much as one message may say.
func (q *Queue) speak(p *queuePlace) {
	s, records, bytes := p.session, 0, 0
	for len(p.lines) > 0 && records+len(p.lines[0].said) <= settlesAtOnce && bytes < settlesBytes {
		first := p.lines[0]
		p.lines = p.lines[1:]
		records += len(first.said)
		bytes += len(first.word.text)
		slices.SortFunc(first.said, func(a, b said) int { return int(min(max(a.record.offset-b.record.offset, -1), 1)) })
		s.spoken++
		s.unanswered[s.spoken] = first
		s.sent += first.settles()
		s.request().Settles = append(s.request().Settles, first.wire())
	}
}

// extend begins the time anew of what waits or was taken lately, so that each record has its whole time from when it is
// taken. Which leases are gone it asks of those that have others: they may have run out.
func (q *Queue) extend(l *lease, now time.Time) {
	if l.extending || now.Before(l.extendAt) {
		return
	}
	l.extendAt = now.Add(l.time / 3)
	l.extending = len(l.in(waiting, begunLately)) > 0
	q.sayAll(extension, l.in(waiting, begunLately))
	if s := l.place.session; s != nil && len(l.in(begun, begun)) > 0 && len(s.request().Check) < leasesAtOnce {
		s.next.Check = append(s.next.Check, l.wire())
		q.stirred = true
	}
	for _, record := range l.in(begunLately, begunLately) {
		record.state = begun
	}
}

// settles gives how many records have an outcome by this.
func (l *line) settles() int {
	if l.word == extension {
		return 0
	}
	return len(l.said)
}

func (l *line) wire() *pb.SettleOne {
	offsets := make([]int64, len(l.said))
	for at, each := range l.said {
		offsets[at] = each.record.offset
	}
	one := &pb.SettleOne{Lease: l.lease.wire(), Ranges: toGaps(offsets), Outcome: l.word.outcome, Error: l.word.text}
	if l.word.delay >= 0 {
		one.DelayMs = proto.Uint64(uint64(l.word.delay.Milliseconds()))
	}
	return one
}

// putBack has a line be said again, before all others.
func (p *queuePlace) putBack(l *line, sent bool) {
	l.again = l.again || sent
	p.lines = slices.Insert(p.lines, 0, l)
}

// refuse: nothing more can be done with these, and they are not settled.
func (q *Queue) refuse(l *line, err error) {
	l.lease.extending = l.lease.extending && l.word != extension
	for _, each := range l.said {
		if l.word != extension {
			q.end(each.record, lost)
		}
		each.outcome.answer(err)
	}
}

// refuseAll refuses what is to be said of a partition, and what has no answer.
func (q *Queue) refuseAll(p *queuePlace, err error) {
	if p.session != nil {
		q.giveUp(p.session)
	}
	for _, line := range p.lines {
		q.refuse(line, err)
	}
	p.lines = nil
}

// answered takes what became of one line. Only what the leader's answer leaves no doubt of counts as settled.
func (q *Queue) answered(s *workSession, l *line, told *pb.SettleAnswer) {
	err := q.judge(s, l, told)
	switch {
	case err == nil:
		s.place.failures = 0
	case q.mayAskAgain(err):
		var found *Error
		s.place.putBack(l, !errors.As(err, &found) || !found.Definite)
		q.failedAt(s.place, err)
	default:
		q.refuse(l, err)
	}
}

// judge gives an error if nothing of a line is known to be done.
func (q *Queue) judge(s *workSession, l *line, told *pb.SettleAnswer) error {
	if told.GetError() != nil {
		return fromWire(told.GetError())
	}
	gone, ok := l.lease.named(told.GetLost())
	for _, record := range gone {
		ok = ok && slices.ContainsFunc(l.said, func(each said) bool { return each.record == record })
	}
	if !ok {
		return malformed(s.stream.address, "it told of lost records that it was not asked about")
	}
	for _, each := range told.GetPulled() { // they went back too, since they come after one of these in an order
		if lease := s.place.leases[leaseIDOf(each.GetLease())]; lease != nil { // else all of it has its outcome
			pulled, ok := lease.named(each.GetRanges())
			if !ok {
				return malformed(s.stream.address, "it told of records that went back, and which these are makes no sense")
			}
			q.lose(pulled)
		}
	}
	l.lease.extending = l.lease.extending && l.word != extension
	// An answer to this that was lost may have told of others that went back with these
	behind := l.again && l.word != extension && l.word.outcome != pb.Outcome_OUTCOME_ACK
	for _, each := range l.said {
		switch isLost := slices.Contains(gone, each.record); {
		case isLost && (l.word != extension || each.record.state <= begun):
			q.end(each.record, lost)
			behind = true
		case l.word != extension:
			q.end(each.record, done)
		}
		if each.record.state == lost {
			each.outcome.answer(each.record.whyLost())
		} else {
			each.outcome.answer(nil)
		}
	}
	if behind {
		q.releaseBehind(s.place)
	}
	return nil
}

// lose: these are not this member's any more. Of those that have an outcome the answer to that says what became of them.
func (q *Queue) lose(records []*QueueRecord) {
	for _, record := range records {
		if record.state <= begun {
			q.end(record, lost)
		}
	}
}

// releaseBehind: after a record of an ordered queue was lost, others may be given what comes behind it.
func (q *Queue) releaseBehind(p *queuePlace) {
	for _, l := range p.leases {
		if l.ordered {
			q.sayAll(release, l.in(waiting, waiting))
		}
	}
}

// shortened cuts a text to what a leader keeps of it.
func shortened(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > errorTextBytes {
		text = strings.ToValidUTF8(text[:errorTextBytes], "")
	}
	return text
}
