package tritonmq

import (
	"context"
	"slices"
	"sync"
	"time"

	"tritonmq/clients/go/pb"
)

const (
	// Unanswered for so long, it is asked who leads: a stopped process keeps its connections open.
	stall            = 2 * time.Second
	idle             = time.Second // the longest sleep of a lane that has batches
	brokerTimeoutMax = 30 * time.Second
)

// outgoing is a batch on its way. Its lane's lock guards what changes.
type outgoing struct {
	view      *topic
	partition int32
	uuid      UUID
	count     uint32
	payload   []byte
	room      int64
	deadline  deadline
	result    *Result
	records   []*Result // one for each record, of those that were published by themselves
	span      []byte    // that it belongs to, if somebody records it

	flying  *stream // where its attempt is under way; nil: it is to be sent
	attempt uint64  // that attempt's correlation
	sentAt  time.Time
	inDoubt bool // an attempt ended without an answer: it may be in the log
	last    error
}

// lane owns the order of one partition's unanswered batches, oldest first. Several may be in flight. Each names, in
// `after`, the batch before it if that one is unanswered, so that whatever is lost on the way, what arrives is a
// prefix; what does not arrive is sent again, in order, under the same UUIDs.
type lane struct {
	producer *Producer
	key      laneKey
	wake     chan struct{}

	mu        sync.Mutex
	batches   []*outgoing
	failures  int
	notBefore time.Time
	askAgain  bool // the leader known may not lead any more
	address   string
}

func (l *lane) add(batch *outgoing) {
	l.mu.Lock()
	l.batches = append(l.batches, batch)
	l.mu.Unlock()
	l.poke()
}

func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) results() []*Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := make([]*Result, len(l.batches))
	for at, batch := range l.batches {
		found[at] = batch.result
	}
	return found
}

// run sends what is to be sent until the producer ends.
func (l *lane) run() {
	for l.producer.ctx.Err() == nil {
		sleep := l.step()
		select {
		case <-l.wake:
		case <-time.After(sleep):
		case <-l.producer.ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.batches) > 0 {
		l.giveUp(l.batches[0])
	}
}

// step sends what can be sent now and says when to look again.
func (l *lane) step() time.Duration {
	l.mu.Lock()
	for len(l.batches) > 0 && l.batches[0].deadline.over() {
		l.giveUp(l.batches[0])
	}
	if len(l.batches) == 0 {
		l.mu.Unlock()
		return time.Minute
	}
	oldest := l.batches[0]
	doubted := l.askAgain || (oldest.flying != nil && time.Since(oldest.sentAt) > stall)
	l.askAgain = false
	l.mu.Unlock()
	address := l.producer.client.leader(l.key.topic, l.key.partition)
	if doubted || address == "" {
		address = l.lookAgain(oldest)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if address == "" {
		return pauseOf(3)
	}
	l.moveTo(address)
	if wait := time.Until(l.notBefore); wait > 0 {
		return min(wait, idle)
	}
	l.send(address)
	return idle
}

// lookAgain asks who leads. A topic that is gone ends all that waits for it.
func (l *lane) lookAgain(oldest *outgoing) string {
	ctx, cancel := context.WithTimeout(l.producer.ctx, attemptTimeout)
	defer cancel()
	view, err := l.producer.client.refresh(ctx, l.key.topic)
	if err == nil && view.id != oldest.view.id {
		err = newError(pb.ErrorCode_UNKNOWN_TOPIC, "topic %q was deleted and made again", l.key.topic)
	}
	if CodeOf(err) == pb.ErrorCode_UNKNOWN_TOPIC {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, batch := range slices.Clone(l.batches) {
			if batch.view.id == oldest.view.id {
				batch.last = err
				l.giveUp(batch)
			}
		}
		return ""
	}
	return l.producer.client.leader(l.key.topic, l.key.partition)
}

// moveTo calls back what is in flight to another broker than the one that leads now.
func (l *lane) moveTo(address string) {
	if l.address == address {
		return
	}
	for _, batch := range l.batches {
		if batch.flying != nil {
			batch.flying, batch.inDoubt = nil, true
		}
	}
	l.address, l.notBefore = address, time.Time{}
}

func (l *lane) send(address string) {
	inFlight := 0
	for _, batch := range l.batches {
		if batch.flying != nil {
			inFlight++
		}
	}
	var after []byte
	for _, batch := range l.batches {
		if batch.flying == nil {
			if inFlight >= l.producer.options.MaxInFlight {
				return
			}
			inFlight++
			batch.sentAt = time.Now()
			batch.flying = l.producer.stream(address)
			batch.attempt = batch.flying.send(l, batch, l.header(batch, after))
		}
		after = batch.uuid[:]
	}
}

func (l *lane) header(batch *outgoing, after []byte) *pb.ProduceHeader {
	return &pb.ProduceHeader{
		Topic: l.key.topic, Partition: l.key.partition, Uuid: batch.uuid[:], After: after, RecordCount: batch.count,
		Acks: pb.Acks(l.producer.options.Acks), SchemaFingerprint: batch.view.fingerprint,
		TimeoutMs:   uint32(min(batch.deadline.remaining(), brokerTimeoutMax).Milliseconds()),
		Traceparent: batch.span,
	}
}

// answered is called by a stream with a broker's answer to an attempt. Those of attempts that were called back do not
// count: the next one gets the same.
func (l *lane) answered(batch *outgoing, attempt uint64, answer *pb.ProduceResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.poke()
	if batch.flying == nil || batch.attempt != attempt {
		return
	}
	if answer.GetError() != nil {
		l.failed(batch, fromWire(answer.GetError()))
		return
	}
	l.failures, l.notBefore = 0, time.Time{}
	l.settle(batch, Place{l.key.partition, answer.GetBaseOffset(), answer.GetDuplicate()}, nil)
}

// broken is called by a stream that has ended, once for each attempt on it.
func (l *lane) broken(batch *outgoing, attempt uint64, err *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.poke()
	if batch.flying != nil && batch.attempt == attempt {
		l.failed(batch, err)
	}
}

// failed decides what follows from a failed attempt.
func (l *lane) failed(batch *outgoing, err *Error) {
	batch.flying = nil
	batch.inDoubt = batch.inDoubt || !err.Definite
	if err.Code != pb.ErrorCode_OUT_OF_ORDER || batch.last == nil {
		batch.last = err
	}
	switch err.Code {
	case pb.ErrorCode_UNKNOWN_TOPIC, pb.ErrorCode_UNKNOWN_PARTITION, pb.ErrorCode_SCHEMA_MISMATCH:
		l.producer.client.forget(l.key.topic)
	}
	if !err.Retriable {
		if batch.inDoubt && err.Definite {
			l.giveUp(batch) // refused now, but an earlier attempt may be in the log
			return
		}
		l.settle(batch, Place{}, err)
		return
	}
	switch err.Code {
	case pb.ErrorCode_OUT_OF_ORDER: // the batch before it failed, and that failure sets the pace
		if l.batches[0] != batch {
			break
		}
		l.slowDown(0)
	case pb.ErrorCode_NOT_LEADER:
		l.producer.client.noteLeader(l.key.topic, l.key.partition, err)
		l.askAgain = err.LeaderID == 0
		l.slowDown(0)
	case pb.ErrorCode_OVERLOADED, pb.ErrorCode_QUEUE_FULL, pb.ErrorCode_DISK_FULL, pb.ErrorCode_NOT_ENOUGH_REPLICAS:
		l.slowDown(time.Duration(err.retryAfterMs) * time.Millisecond)
	default:
		l.askAgain = true
		l.slowDown(0)
	}
}

// slowDown makes one pause for all that fail together.
func (l *lane) slowDown(atLeast time.Duration) {
	if now := time.Now(); !now.Before(l.notBefore) {
		l.notBefore = now.Add(max(atLeast, pauseOf(l.failures)))
		l.failures++
	}
}

// giveUp ends a batch with what is known of it.
func (l *lane) giveUp(batch *outgoing) {
	if batch.flying != nil {
		batch.inDoubt = true
	}
	where := "no leader was known"
	if batch.last != nil {
		where = batch.last.Error()
	}
	if batch.inDoubt {
		l.settle(batch, Place{}, newError(pb.ErrorCode_OUTCOME_UNKNOWN,
			"batch for topic %q partition %d was sent and not acknowledged, last: %s; it can be sent again with its UUID",
			l.key.topic, l.key.partition, where))
		return
	}
	code := CodeOf(batch.last)
	if code == pb.ErrorCode_OK {
		code = pb.ErrorCode_UNREACHABLE
	}
	err := newError(code, "batch for topic %q partition %d could not be sent: %s", l.key.topic, l.key.partition, where)
	err.Definite = true
	l.settle(batch, Place{}, err)
}

func (l *lane) settle(batch *outgoing, place Place, err error) {
	at := slices.Index(l.batches, batch)
	l.batches = slices.Delete(l.batches, at, at+1)
	batch.flying = nil
	l.producer.room.Release(batch.room)
	batch.result.settle(place, err)
	for at, record := range batch.records {
		own := place
		if err == nil {
			own.Offset += int64(at)
		}
		record.settle(own, err)
	}
}
