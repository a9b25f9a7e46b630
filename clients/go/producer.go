package tritonmq

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/semaphore"

	"tritonmq/clients/go/pb"
)

// Acks says when a batch counts as written.
type Acks int32

const (
	All    Acks = iota // when all replicas in sync have it
	Leader             // when the leader has it
	None               // at once
)

// ProducerOptions has good zero values.
type ProducerOptions struct {
	Acks Acks
	// Timeout is how long a batch is tried, the wait behind others included. 0: 30 s.
	Timeout time.Duration
	// MaxInFlight bounds the unanswered batches of one partition on their way. 0: 5.
	MaxInFlight int
	// Linger is how long a record waits for more, to be sent as one batch. 0: 2 ms.
	Linger time.Duration
	// BatchBytesMax is the size of a batch of records at which it is sent at once. 0: 1 MiB. A topic with a smaller
	// batch_bytes_max has batches of that.
	BatchBytesMax int
	// BufferBytesMax bounds what is not yet acknowledged; who publishes more waits. 0: 64 MiB.
	BufferBytesMax int64
}

// Producer sends batches. Order is kept within a partition, over retries and changes of leader too. It is safe for
// use by many goroutines.
type Producer struct {
	client  *Client
	options ProducerOptions
	room    *semaphore.Weighted
	ctx     context.Context // ends with the producer
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // taken before a lane's
	lanes  map[laneKey]*lane
	open   map[laneKey]*openBatch
	turn   map[string]int32 // where records without a key go
	closed bool

	streamsMu sync.Mutex // taken after a lane's
	streams   map[string]*stream
}

type laneKey struct {
	topic     string
	partition int32
}

// UUID names a batch for ever. Who sends a batch again, in any language, under the same UUID makes no second copy.
type UUID [16]byte

// NewUUID makes a random one.
func NewUUID() UUID {
	var made UUID
	_, _ = rand.Read(made[:]) // never fails
	made[6], made[8] = made[6]&0x0f|0x40, made[8]&0x3f|0x80
	return made
}

// Place is where a batch is in the log. Offset: of its first record. Duplicate: it was there before this attempt.
type Place struct {
	Partition int32
	Offset    int64
	Duplicate bool
}

// Result is the answer that a batch gets.
type Result struct {
	done  chan struct{}
	place Place
	err   error
}

func newResult() *Result { return &Result{done: make(chan struct{})} }

func failed(err error) *Result {
	r := newResult()
	r.settle(Place{}, err)
	return r
}

func (r *Result) settle(place Place, err error) {
	r.place, r.err = place, err
	close(r.done)
}

// Wait gives the place of what was published, or why it has none. When ctx ends first, sending goes on.
func (r *Result) Wait(ctx context.Context) (Place, error) {
	select {
	case <-r.done:
		return r.place, r.err
	case <-ctx.Done():
		return Place{}, ctx.Err()
	}
}

// NewProducer makes a producer. Close it.
func (c *Client) NewProducer(options ProducerOptions) (*Producer, error) {
	if options.Timeout == 0 {
		options.Timeout = defaultTimeout
	}
	if options.MaxInFlight == 0 {
		options.MaxInFlight = 5
	}
	if options.BufferBytesMax == 0 {
		options.BufferBytesMax = 64 << 20
	}
	if options.Linger == 0 {
		options.Linger = 2 * time.Millisecond
	}
	if options.BatchBytesMax == 0 {
		options.BatchBytesMax = 1 << 20
	}
	if options.Linger < 0 || options.BatchBytesMax < 0 || options.Timeout < 0 ||
		options.MaxInFlight < 0 || options.BufferBytesMax < 0 ||
		options.Acks < All || options.Acks > None {
		return nil, newError(pb.ErrorCode_INVALID_SETTING,
			"a producer's options are not negative, and Acks is All, Leader or None")
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Producer{
		client: c, options: options, room: semaphore.NewWeighted(options.BufferBytesMax), ctx: ctx, cancel: cancel,
		lanes: map[laneKey]*lane{}, open: map[laneKey]*openBatch{}, turn: map[string]int32{}, streams: map[string]*stream{},
	}, nil
}

type publishOptions struct {
	partition int32
	uuid      UUID
	named     bool

	traceparent string
	traced      bool
}

// PublishOption says more of one batch.
type PublishOption func(*publishOptions)

// Partition has a batch go to this partition, in place of partition 0.
func Partition(number int32) PublishOption {
	return func(o *publishOptions) { o.partition = number }
}

// WithUUID names the batch, so that it can be sent again after a crash, or by another program.
func WithUUID(uuid UUID) PublishOption {
	return func(o *publishOptions) { o.uuid, o.named = uuid, true }
}

// PublishBatch sends a batch of rows that has the topic's columns, as one unit. It encodes the batch before it
// returns, and waits while BufferBytesMax are not acknowledged, until ctx ends.
func (p *Producer) PublishBatch(
	ctx context.Context, topic string, batch arrow.RecordBatch, options ...PublishOption,
) *Result {
	chosen := publishOptions{}
	for _, option := range options {
		option(&chosen)
	}
	if !chosen.named {
		chosen.uuid = NewUUID()
	} else if chosen.uuid == (UUID{}) {
		return failed(newError(pb.ErrorCode_INVALID_REQUEST, "the UUID is all zeros, which means none: give NewUUID()"))
	}
	span, err := chosen.span()
	if err != nil {
		return failed(err)
	}
	asking, cancel := context.WithTimeout(ctx, p.options.Timeout)
	defer cancel()
	view, err := p.client.topic(asking, topic)
	if err != nil {
		return failed(err)
	}
	if err := p.client.check(view, chosen.partition); err != nil {
		return failed(err)
	}
	if batch.NumRows() == 0 {
		return failed(newError(pb.ErrorCode_INVALID_REQUEST, "the batch has no rows: leave it out"))
	}
	if sameShape(batch.Schema(), view.schema) != nil { // columns may have been added
		if view, err = p.client.topicNow(asking, topic); err != nil {
			return failed(err)
		}
		if err := sameShape(batch.Schema(), view.schema); err != nil {
			return failed(err)
		}
	}
	payload, err := encode(batch)
	if err != nil {
		return failed(newError(pb.ErrorCode_INVALID_REQUEST, "the batch cannot be encoded: %s", err))
	}
	made := &outgoing{
		view: view, partition: chosen.partition, uuid: chosen.uuid, count: uint32(batch.NumRows()), payload: payload,
		deadline: newDeadline(p.options.Timeout), result: newResult(), span: recorded(span),
	}
	made.room = min(int64(len(payload)), p.options.BufferBytesMax)
	if err := p.room.Acquire(ctx, made.room); err != nil {
		return failed(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.room.Release(made.room)
		return failed(errClosed())
	}
	if before := p.open[laneKey{view.name, made.partition}]; before != nil {
		p.send(before) // what was published first goes first
	}
	p.add(made)
	return made.result
}

func errClosed() *Error {
	return newError(pb.ErrorCode_INVALID_REQUEST, "the producer is closed: make a new one")
}

// add puts a batch behind the others of its partition. Under mu.
func (p *Producer) add(batch *outgoing) {
	key := laneKey{batch.view.name, batch.partition}
	found := p.lanes[key]
	if found == nil {
		found = &lane{producer: p, key: key, wake: make(chan struct{}, 1)}
		p.lanes[key] = found
		p.running.Go(found.run)
	}
	found.add(batch)
}

// Flush waits until everything that was given so far has its answer. The answers themselves are in the Results.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	for _, batch := range p.open {
		p.send(batch)
	}
	var waiting []*Result
	for _, lane := range p.lanes {
		waiting = append(waiting, lane.results()...)
	}
	p.mu.Unlock()
	for _, result := range waiting {
		select {
		case <-result.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close waits as Flush does, and ends the producer. What has no answer when ctx ends is given up.
func (p *Producer) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	p.mu.Lock()
	p.closed = true
	for _, batch := range p.open { // of those who published meanwhile
		p.send(batch)
	}
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
	return err
}
