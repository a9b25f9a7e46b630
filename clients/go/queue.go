package tritonmq

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"strings"
	"sync"
	"time"

	"tritonmq/clients/go/pb"
)

const (
	queueInFlight      = 1_000
	queueBytes         = 16 << 20
	queueKeyBytes      = 32
	declaredWithin     = 10 * time.Second // a leader may not have heard of a queue that was just declared
	watchFor           = 4 * time.Second  // a leader waits for so long before it says that it has nothing
	leaseTimeMin       = time.Second
	leaseTimeMax       = 12 * time.Hour
	settlesAtOnce      = 4_000
	errorTextBytes     = 256 // what a leader keeps of an error
	recordsInAnswerMax = 200_000
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
	view    *topic
	group   string
	options QueueOptions
	key     []byte
	opened  time.Time
	ctx     context.Context // ends with the queue
	cancel  context.CancelFunc
	running sync.WaitGroup
	lending context.Context // ends when no more is to be lent
	stop    context.CancelFunc
	lenders sync.WaitGroup

	mu      sync.Mutex // taken before the client's
	places  []*queuePlace
	turn    int
	held    int // records that have no answered outcome, and credit that leaders were handed
	bytes   int64
	waiting int           // records that are here and were not taken
	news    chan struct{} // closed, and made anew, when something has changed
	err     error
	closed  bool
}

// queuePlace is one partition of a queue. The queue's mu guards it.
type queuePlace struct {
	partition int32
	leases    map[leaseID]*lease
	ready     []*QueueRecord
	inHand    int // of leases with an order: taken, or with an outcome that has no answer
	pieces    []*piece
	wake      chan struct{}
	flying    bool // outcomes are on their way
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
	if options.InFlight < 1 || options.InFlightBytes < 1 || options.Working < 1 ||
		(lasting != 0 && (lasting < leaseTimeMin || lasting > leaseTimeMax)) {
		return nil, newError(pb.ErrorCode_INVALID_SETTING,
			"a queue's options are not negative, InFlight is below 2^31, and Lease is 0 or 1 s to 12 h")
	}
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
		client: c, view: view, group: group, options: options, key: make([]byte, queueKeyBytes), opened: time.Now(),
		news: make(chan struct{}),
	}
	_, _ = rand.Read(q.key) // never fails
	q.ctx, q.cancel = context.WithCancel(ctx)
	q.lending, q.stop = context.WithCancel(q.ctx)
	for partition := range view.leaders {
		q.places = append(q.places, &queuePlace{
			partition: int32(partition), leases: map[leaseID]*lease{}, wake: make(chan struct{}, 1)})
	}
	for _, place := range q.places {
		q.running.Go(func() { q.tell(place) })
		q.lenders.Go(func() { q.lend(place) })
	}
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

	queue *Queue
	lease *lease
	at    int
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
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return nil, ErrClosed
		}
		err, news := q.err, q.news
		if err == nil {
			err = q.ctx.Err()
		}
		if err == nil {
			if record := q.next(); record != nil {
				q.mu.Unlock()
				return record, nil
			}
		}
		q.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-news:
		case <-q.ctx.Done():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// next hands out a record, of the partitions in turn. Under mu.
func (q *Queue) next() *QueueRecord {
	for step := range q.places {
		place := q.places[(q.turn+step)%len(q.places)]
		for len(place.ready) > 0 {
			first := place.ready[0]
			state := first.lease.states[first.at]
			if state == waiting && first.lease.ordered && place.inHand > 0 {
				break // the one before has no answered outcome
			}
			place.ready = place.ready[1:]
			q.waiting--
			if state != waiting {
				continue // lost meanwhile
			}
			first.lease.states[first.at] = begunLately
			if first.lease.ordered {
				place.inHand++
			}
			q.turn = (q.turn + step + 1) % len(q.places)
			if q.waiting == 0 {
				q.changed() // more may be asked for
			}
			return first
		}
	}
	return nil
}

// Close gives back what has no outcome, which counts as no failure, and returns once all outcomes are written down. When
// ctx ends first it is not known of some, and their Wait says so.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.changed()
	q.mu.Unlock()
	q.stop()
	q.lenders.Wait()
	q.mu.Lock()
	for _, place := range q.places {
		for _, lease := range place.leases {
			q.giveBack(lease)
		}
		place.ready = nil
	}
	q.mu.Unlock()
	err := q.drained(ctx)
	if err == nil {
		q.leave(ctx)
	}
	q.cancel()
	q.running.Wait()
	return err
}

// giveBack releases what has no outcome of a lease. Under mu.
func (q *Queue) giveBack(l *lease) {
	var back []int
	for at, state := range l.states {
		if state <= begun {
			back = append(back, at)
		}
	}
	q.say(l, back, word{outcome: pb.Outcome_OUTCOME_RELEASE, delay: -1}, nil)
}

// drained waits until every outcome has an answer.
func (q *Queue) drained(ctx context.Context) error {
	for {
		q.mu.Lock()
		busy := false
		for _, place := range q.places {
			busy = busy || place.flying || len(place.pieces) > 0
		}
		news := q.news
		q.mu.Unlock()
		if !busy {
			return nil
		}
		select {
		case <-news:
		case <-q.ctx.Done():
			return q.ctx.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave tells leaders that this member asks no more.
func (q *Queue) leave(ctx context.Context) {
	var asking sync.WaitGroup
	for _, place := range q.places {
		asking.Go(func() {
			request := q.request(place)
			request.Leaving, request.Filter = true, ""
			if address := q.client.leader(q.view.name, place.partition); address != "" {
				_, _ = ask(ctx, q.client, address, pb.BrokerClient.Lease, request) // else it hears of it in time
			}
		})
	}
	asking.Wait()
}

// changed wakes who waits for news. Under mu.
func (q *Queue) changed() {
	close(q.news)
	q.news = make(chan struct{})
}

// fail ends the queue: nothing is lent any more.
func (q *Queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
		q.stop()
		q.changed()
	}
}

// over is a record's last state. Under mu.
func (q *Queue) over(l *lease, at int, state recordState) {
	before := l.states[at]
	if before >= done {
		return
	}
	if l.ordered && before > waiting {
		l.place.inHand--
	}
	l.states[at] = state
	q.held--
	q.bytes -= l.bytes
	if l.open--; l.open == 0 {
		delete(l.place.leases, l.id)
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
