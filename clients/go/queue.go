package tritonmq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tritonmq/clients/go/pb"
)

const (
	queueInFlight  = 1_000
	queueBytes     = 16 << 20
	queueBytesMax  = 1 << 40 // the credit that a leader takes
	queueKeyBytes  = 32
	declaredWithin = 10 * time.Second // a leader may not have heard of a queue that was just declared
	leaseTimeMin   = time.Second
	leaseTimeMax   = 12 * time.Hour
	beat           = 50 * time.Millisecond // how often it is looked what is due
)

// QueueOptions has good zero values.
type QueueOptions struct {
	// InFlight and InFlightBytes bound what this member may hold at once: what waits to be taken, and what was taken
	// and has no outcome. One record may be larger. 0: 1,000 and 16 MiB. Give 1 if a job takes seconds.
	InFlight      int
	InFlightBytes int64
	// Lease is how long one record may be worked on before it is lent to others, from when it is taken: 1 s to 12 h.
	// 0: as the queue says.
	Lease time.Duration
	// Working is how many records the program works on at a time: so many count as failed if it ends without a word.
	// 0: 1.
	Working int
	// Filter has this member be lent only what matches, such as "carrier = 'UA' AND delay > 60".
	Filter string
	// Member names this member. Empty: a random name. One live process may have it.
	Member string
}

// Queue is one member of a queue group: it is lent records, works on them in any order, and says of each one what
// became of it. It is safe for use by many goroutines.
type Queue struct {
	client  *Client
	group   string
	options QueueOptions
	key     []byte
	opened  time.Time
	ctx     context.Context // ends with the queue
	cancel  context.CancelFunc
	running sync.WaitGroup    // all goroutines but run
	calls   chan func()       // run makes them, one after the other
	records chan *QueueRecord // to who takes one
	closed  atomic.Bool
	closing chan struct{} // closed by Close
	failed  chan struct{} // closed once nothing more is to be lent, which err says why
	over    chan struct{} // closed when run has ended

	// Of run, until it is over:
	view      *topic
	places    []*queuePlace
	streams   map[string]*workStream // by the broker's address
	talking   int                    // streams that have not ended
	turn      int                    // the partition of which a record is handed out next
	start     int                    // the first one to have credit while nothing is ready
	giveTo    int                    // the first one to be given credit
	held      credit                 // records without an answered outcome
	waiting   int                    // records that are here and were not taken
	begun     int                    // that were taken, and have no outcome
	stirred   bool                   // there may be something to say
	looking   bool                   // it is asked who leads
	doubted   bool                   // another broker may lead
	lookedAt  time.Time
	isClosing bool
	left      time.Time // when all outcomes had answers, and the leaders were told that this member asks no more
	err       error
	ended     error
}

// queuePlace is one partition of a queue.
type queuePlace struct {
	partition int32
	session   *workSession // with its leader; nil: none
	failures  int
	notBefore time.Time // is its leader spoken to again
	err       error     // why its leader is spoken to no more
	leases    map[leaseID]*lease
	unread    []delivery // leases whose rows are still to be read, one after the other
	reading   bool
	ready     []*QueueRecord
	inHand    int // of leases with an order: taken, or with an outcome that has no answer
	lines     []*line
}

// DeclareQueue makes a group of a topic a queue, which begins at the first record that is kept. Settings are those of
// docs/queues.md, such as lease_ms and delivery_limit. False: it was there already, with these settings.
func (c *Client) DeclareQueue(ctx context.Context, topic, group string, settings map[string]string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	answer, err := askAny(ctx, c, pb.BrokerClient.AlterQueue, &pb.AlterQueueRequest{
		Topic: topic, Group: group, Change: pb.QueueChange_QUEUE_DECLARE, Settings: settings,
		Start: &pb.AlterQueueRequest_Earliest{Earliest: true},
	})
	return answer.GetMade(), err
}

func (c *Client) isDeclared(ctx context.Context, topic, group string) (bool, error) {
	request := &pb.QueuesRequest{Topic: topic}
	for {
		answer, err := askAny(ctx, c, pb.BrokerClient.Queues, request)
		if err != nil {
			return false, err
		}
		for _, found := range answer.GetQueues() {
			if found.GetTopic() == topic && found.GetGroup() == group {
				return true, nil
			}
		}
		if !answer.GetMore() || len(answer.GetQueues()) == 0 {
			return false, nil
		}
		last := answer.GetQueues()[len(answer.GetQueues())-1]
		request.AfterTopic, request.AfterGroup = last.GetTopic(), last.GetGroup()
	}
}

// askAny asks one broker after the other, until ctx ends.
func askAny[Q, R any](ctx context.Context, c *Client, method unary[Q, R], request Q) (R, error) {
	var answer R
	err := retry(ctx, func() error {
		var last error
		for _, address := range c.addresses() {
			if answer, last = ask(ctx, c, address, method, request); last == nil || !isRetriable(last) {
				return last
			}
		}
		return last
	})
	return answer, err
}

// OpenQueue has this program work as a member of a queue. If the group is not declared yet, it is, with the default
// settings. The queue ends with ctx. Close it: what a member holds that is not closed is lent again only when its
// lease has run out.
func (c *Client) OpenQueue(ctx context.Context, topic, group string, options QueueOptions) (*Queue, error) {
	options.InFlight = orDefault(options.InFlight, queueInFlight)
	options.InFlightBytes = orDefault(options.InFlightBytes, queueBytes)
	options.Working = orDefault(options.Working, 1)
	if options.Member == "" {
		options.Member = randomName()
	}
	lasting := options.Lease
	if options.InFlight < 1 || options.InFlight > math.MaxInt32 || options.InFlightBytes < 1 || options.Working < 1 ||
		(lasting != 0 && (lasting < leaseTimeMin || lasting > leaseTimeMax)) {
		return nil, newError(pb.ErrorCode_INVALID_SETTING,
			"a queue's options are not negative, InFlight is below 2^31, and Lease is 0 or 1 s to 12 h")
	}
	options.InFlightBytes = min(options.InFlightBytes, queueBytesMax)
	asking, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	view, err := c.topicNow(asking, topic)
	if err != nil {
		return nil, err
	}
	declared, err := c.isDeclared(asking, topic, group)
	if err == nil && !declared {
		_, err = c.DeclareQueue(asking, topic, group, nil)
	}
	if err != nil {
		return nil, err
	}
	q := &Queue{
		client: c, group: group, options: options, key: make([]byte, queueKeyBytes), opened: time.Now(),
		calls: make(chan func()), records: make(chan *QueueRecord), closing: make(chan struct{}),
		failed: make(chan struct{}), over: make(chan struct{}), streams: map[string]*workStream{},
		start: mathrand.IntN(len(view.leaders)), lookedAt: time.Now(),
	}
	q.giveTo = q.start
	_, _ = rand.Read(q.key) // never fails
	q.ctx, q.cancel = context.WithCancel(ctx)
	q.learn(view)
	go q.run()
	return q, nil
}

func orDefault[N int | int64](given, otherwise N) N {
	if given == 0 {
		return otherwise
	}
	return given
}

// QueueRecord is a record that was lent to this member. It has one outcome: Ack, Fail, Release or Reject. The outcome
// counts once its Wait has returned nil; it need not be waited for. Deliveries says how often the record was lent, this
// time included, and Failures how often it has failed.
type QueueRecord struct {
	Message
	Deliveries, Failures int

	lease  *lease
	offset int64
	state  recordState // of the queue's run
}

// Records gives records as they come, until the queue is closed. It ends with an error when ctx of OpenQueue ends, or
// when the queue cannot go on, since its group was deleted for example.
func (q *Queue) Records() iter.Seq2[*QueueRecord, error] {
	return func(yield func(*QueueRecord, error) bool) {
		for {
			record, err := q.Take(q.ctx)
			if errors.Is(err, ErrClosed) {
				return
			}
			if !yield(record, err) || err != nil {
				return
			}
		}
	}
}

// ErrClosed is what Take fails with once the queue was closed, also while Take waited.
var ErrClosed = newError(pb.ErrorCode_INVALID_REQUEST, "the queue is closed: open a new one")

// Take waits for one record until ctx ends. It fails with ErrClosed once the queue was closed.
func (q *Queue) Take(ctx context.Context) (*QueueRecord, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	select {
	case record := <-q.records:
		return record, nil
	case <-q.closing:
		return nil, ErrClosed
	case <-q.failed:
		return nil, q.err
	case <-q.ctx.Done():
		return nil, q.ctx.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close gives back what has no outcome, which counts as no failure, and returns once all outcomes are written down. When
// ctx ends first it is not known of some, and their Wait says so.
func (q *Queue) Close(ctx context.Context) error {
	if q.closed.Swap(true) {
		return nil
	}
	close(q.closing)
	q.do(func() {
		q.isClosing = true
		for _, place := range q.places {
			for _, lease := range place.leases {
				q.sayAll(release, lease.in(waiting, begun))
			}
		}
	})
	select {
	case <-q.over:
	case <-ctx.Done():
		q.cancel()
		<-q.over
	}
	if !q.left.IsZero() {
		return nil
	}
	return cmp.Or(ctx.Err(), q.ended)
}

// do has the queue's own goroutine make a call. False: the queue ends.
func (q *Queue) do(call func()) bool {
	select {
	case q.calls <- call:
		return true
	case <-q.ctx.Done():
		return false
	}
}

// run owns what the member holds, and what is said to the leaders and heard of them. It ends once all is said after the
// queue was closed, or with its context.
func (q *Queue) run() {
	defer close(q.over)
	ticks := time.NewTicker(beat)
	defer ticks.Stop()
	q.converse()
	for q.ctx.Err() == nil && !q.hasLeft() {
		if q.stirred {
			q.stirred = false
			q.converse()
		}
		record, records := q.next(), q.records
		if record == nil {
			records = nil
		}
		select {
		case records <- record:
			q.taken(record)
		case call := <-q.calls:
			call()
		case now := <-ticks.C:
			q.stirred = true
			for _, place := range q.places {
				for _, lease := range place.leases {
					if !q.isClosing {
						q.extend(lease, now)
					}
				}
			}
		case <-q.ctx.Done():
		}
	}
	q.ended = cmp.Or(q.ctx.Err(), error(ErrClosed))
	q.cancel()
	q.running.Wait()
	for _, place := range q.places {
		q.refuseAll(place, newError(pb.ErrorCode_OUTCOME_UNKNOWN, "the queue has ended before the leader had answered"))
	}
}

// hasLeft: the queue was closed, and nothing is left to say or to hear. Once every outcome has an answer the leaders are
// told that this member asks no more, for which they have a while.
func (q *Queue) hasLeft() bool {
	if !q.left.IsZero() {
		return q.talking == 0 || time.Since(q.left) > lastWord
	}
	for _, place := range q.places {
		if !q.isClosing || len(place.lines) > 0 || place.flying() {
			return false
		}
	}
	q.left, q.stirred = time.Now(), true
	for _, place := range q.places {
		if place.session != nil {
			place.session.request().Close = true
			q.forget(place.session)
		}
	}
	return false
}

// next gives the record that is to be handed out next, of the partitions in turn.
func (q *Queue) next() *QueueRecord {
	if q.isClosing || q.err != nil {
		return nil
	}
	for step := range q.places {
		place := q.places[(q.turn+step)%len(q.places)]
		for len(place.ready) > 0 {
			first := place.ready[0]
			if first.state == waiting {
				if first.lease.ordered && place.inHand > 0 {
					break // the one before has no answered outcome
				}
				return first
			}
			q.unshelve(place) // lost meanwhile
		}
	}
	return nil
}

func (q *Queue) taken(r *QueueRecord) {
	q.change(r, begunLately)
	q.turn = (int(r.lease.place.partition) + 1) % len(q.places)
	q.unshelve(r.lease.place)
}

func (q *Queue) unshelve(p *queuePlace) {
	p.ready = p.ready[1:]
	if q.waiting--; q.waiting == 0 {
		q.stirred = true // more may be asked for
	}
}

// fail ends the queue: nothing is lent any more.
func (q *Queue) fail(err error) {
	if q.err == nil {
		q.err = err
		close(q.failed)
	}
}

// change notes how far a record is now.
func (q *Queue) change(r *QueueRecord, state recordState) {
	count := func(by int) {
		if r.state == begunLately || r.state == begun {
			q.begun += by
		}
		if r.lease.ordered && r.state > waiting && r.state < done {
			r.lease.place.inHand += by
		}
	}
	count(-1)
	r.state = state
	count(1)
}

// end is a record's last state: done or lost.
func (q *Queue) end(r *QueueRecord, state recordState) {
	l := r.lease
	if r.state >= done {
		return
	}
	q.change(r, state)
	q.held = q.held.less(credit{1, l.bytes})
	q.stirred = true
	if l.open--; l.open == 0 {
		delete(l.place.leases, l.id)
	}
}
