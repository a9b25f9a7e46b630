package tritonmq

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"tritonmq/clients/go/pb"
)

const (
	subscriptionBytes = 16 << 20
	settleEvery       = 200 * time.Millisecond
	lookEvery         = 5 * time.Second  // who leads, even if nothing seems wrong: a stopped process keeps its streams
	inUseFor          = 20 * time.Second // a broker notices after 15 s that a member's machine was lost
	lastWord          = 2 * time.Second  // for brokers to end streams on which the last was said
	memberKeyBytes    = 16
	placesAtOnce      = 10_000 // partitions that one request may name
)

type subscribeOptions struct {
	group, member string
	start         func(*pb.SubscribePartition)
	bytes         int64
}

// SubscribeOption says more of a subscription.
type SubscribeOption func(*subscribeOptions)

// Group has the subscription be a member of this group. Each partition is given to one member at a time, and the
// brokers keep the group's place: what was settled. Without a group the subscription is given every record.
func Group(name string) SubscribeOption {
	return func(o *subscribeOptions) { o.group = name }
}

// Member names this member of its group. A random name is taken otherwise. While another live process has the name,
// the subscription ends with MEMBER_IN_USE after 20 s.
func Member(id string) SubscribeOption {
	return func(o *subscribeOptions) { o.member = id }
}

// From says where to begin in a partition in which the group has no place, or always without a group: Earliest,
// Latest (the default), or an offset, which is moved to the nearer end of the log if it is outside.
func From(start int64) SubscribeOption {
	return func(o *subscribeOptions) {
		o.start = func(p *pb.SubscribePartition) {
			switch start {
			case Earliest:
				p.Start = &pb.SubscribePartition_Earliest{Earliest: true}
			case Latest:
				p.Start = &pb.SubscribePartition_Latest{Latest: true}
			default:
				p.Start = &pb.SubscribePartition_Offset{Offset: start}
			}
		}
		if start < Earliest {
			o.start = nil
		}
	}
}

// FromTime begins at the first record that was appended at that time or later.
func FromTime(when time.Time) SubscribeOption {
	return func(o *subscribeOptions) {
		o.start = func(p *pb.SubscribePartition) {
			p.Start = &pb.SubscribePartition_TimestampUs{TimestampUs: when.UnixMicro()}
		}
	}
}

// BufferBytes bounds what each broker may have pushed that was not taken yet. 16 MiB unless given.
func BufferBytes(count int64) SubscribeOption {
	return func(o *subscribeOptions) { o.bytes = count }
}

// Message is one record as it was delivered. Of a topic with columns Row has its values, as a batch of one row, and
// Record is empty but for the time at which it was appended. A row need not be released.
type Message struct {
	Topic     string
	Partition int32
	Offset    int64
	Record
	Row arrow.RecordBatch

	place *place
	life  int
}

// Subscription is given the records of its topics as they are committed. It is safe for use by many goroutines.
type Subscription struct {
	client    *Client
	options   subscribeOptions
	memberKey []byte
	ctx       context.Context // ends with the subscription
	cancel    context.CancelFunc
	running   sync.WaitGroup
	failed    chan struct{} // something is to be opened again
	taking    sync.Mutex    // taken before mu

	mu       sync.Mutex // taken before the client's
	views    map[string]*topic
	places   map[placeKey]*place
	sessions map[string]*session
	held     map[string]int64 // bytes that are here of what each broker has pushed, on whichever stream
	chunks   []*chunk
	news     chan struct{} // closed, and made anew, when something has changed
	err      error         // why it is over
	closed   bool
}

// Subscribe returns once the leader of each partition has said where it begins, or that another member has it. The
// subscription ends with ctx. Close it.
func (c *Client) Subscribe(ctx context.Context, topics []string, options ...SubscribeOption) (*Subscription, error) {
	chosen := subscribeOptions{bytes: subscriptionBytes, member: randomName()}
	From(Latest)(&chosen)
	for _, option := range options {
		option(&chosen)
	}
	if chosen.start == nil || chosen.bytes < 1 || chosen.member == "" || len(topics) == 0 {
		return nil, newError(pb.ErrorCode_INVALID_SETTING,
			"a subscription has a topic, begins at Earliest, Latest or an offset, and has BufferBytes above 0 and a Member")
	}
	s := &Subscription{
		client: c, options: chosen, memberKey: make([]byte, memberKeyBytes), failed: make(chan struct{}, 1),
		views: map[string]*topic{}, places: map[placeKey]*place{}, sessions: map[string]*session{},
		held: map[string]int64{}, news: make(chan struct{}),
	}
	_, _ = rand.Read(s.memberKey) // never fails
	asking, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	for _, name := range topics {
		view, err := c.topicNow(asking, name)
		if err != nil {
			return nil, err
		}
		s.views[name] = view
		for number := range view.leaders {
			s.places[placeKey{name, int32(number)}] = newPlace(name, int32(number), false)
		}
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.running.Go(s.follow)
	if err := s.waitOpened(asking); err != nil {
		s.cancel()
		s.running.Wait()
		return nil, err
	}
	return s, nil
}

func randomName() string {
	var made [16]byte
	_, _ = rand.Read(made[:]) // never fails
	return hex.EncodeToString(made[:])
}

func (s *Subscription) waitOpened(ctx context.Context) error {
	for {
		s.mu.Lock()
		var missing []string
		var last error
		for _, place := range s.places {
			if !place.answered {
				missing = append(missing, fmt.Sprintf("%s-%d", place.topic, place.partition))
				if place.last != nil {
					last = place.last
				}
			}
		}
		err, news := s.err, s.news
		s.mu.Unlock()
		if err != nil || len(missing) == 0 {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if CodeOf(last) == pb.ErrorCode_MEMBER_IN_USE {
				return last
			}
			if last == nil {
				last = newError(pb.ErrorCode_NOT_LEADER, "no broker has answered")
			}
			slices.Sort(missing)
			return newError(pb.ErrorCode_OUTCOME_UNKNOWN, "%s could not be subscribed to in time, last: %s",
				strings.Join(missing[:min(len(missing), 10)], ", "), last.Error())
		}
	}
}

// Records gives records as they come, each partition's in order, until the subscription is closed. It ends with an
// error when ctx of Subscribe ends, or when the subscription cannot go on: all that came before was given by then.
func (s *Subscription) Records() iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for {
			message, err := s.next()
			if errors.Is(err, errStopped) {
				return
			}
			if !yield(message, err) || err != nil {
				return
			}
		}
	}
}

// next waits for one record. errStopped: the subscription was closed.
func (s *Subscription) next() (Message, error) {
	s.taking.Lock()
	defer s.taking.Unlock()
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return Message{}, errStopped
		}
		if err := s.ctx.Err(); err != nil {
			s.mu.Unlock()
			return Message{}, err
		}
		if len(s.chunks) > 0 && s.chunks[0].messages != nil {
			message := s.take()
			s.mu.Unlock()
			return message, nil
		}
		if len(s.chunks) > 0 {
			first := s.chunks[0]
			s.mu.Unlock()
			if err := s.decode(first); err != nil {
				return Message{}, err
			}
			continue
		}
		err, news := s.err, s.news
		s.mu.Unlock()
		if err != nil {
			return Message{}, err
		}
		select {
		case <-news:
		case <-s.ctx.Done():
		}
	}
}

// take hands out the next record of the first chunk. Under mu.
func (s *Subscription) take() Message {
	first := s.chunks[0]
	message := first.messages[first.row]
	first.row++
	if first.row == len(first.messages) {
		s.chunks = s.chunks[1:]
		s.release(first)
	}
	first.place.taken = message.Offset + 1
	message.place, message.life = first.place, first.place.life
	return message
}

// Settle says that the group is done with this record of a partition and with all before it. The brokers hear of it
// within 200 ms, and write it down; Commit waits for that. A record that is not settled is delivered again when its
// member is gone.
//
// The error is LEASE_LOST when the partition was given to another member since, which is given the record too.
func (s *Subscription) Settle(message Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.group == "" || message.place == nil {
		return newError(pb.ErrorCode_INVALID_REQUEST, "only records that a member of a group was given are settled")
	}
	if s.closed {
		return newError(pb.ErrorCode_INVALID_REQUEST, "the subscription is closed: its records are others' by now")
	}
	if message.place.life != message.life || s.places[message.place.key()] != message.place {
		return newError(pb.ErrorCode_LEASE_LOST,
			"topic %q partition %d is another member's by now, which is given offset %d too",
			message.Topic, message.Partition, message.Offset)
	}
	message.place.processed = max(message.place.processed, message.Offset+1)
	return nil
}

// Commit returns nil once the brokers have written down all that was settled before it: the group is not given it
// again. The error is LEASE_LOST when a partition was given to another member before that. When ctx ends or
// Options.Timeout is over it is not known what the brokers have.
func (s *Subscription) Commit(ctx context.Context) error {
	s.mu.Lock()
	places := map[string]map[int32]int64{}
	for _, place := range s.places {
		if place.processed > max(place.began, place.confirmed) {
			if places[place.topic] == nil {
				places[place.topic] = map[int32]int64{}
			}
			places[place.topic][place.partition] = place.processed
		}
	}
	s.mu.Unlock()
	if s.options.group == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.client.options.Timeout)
	defer cancel()
	for topic, offsets := range places {
		if err := s.client.commit(ctx, topic, offsets, s.options.group, s.options.member, s.memberKey); err != nil {
			return err
		}
		s.mu.Lock()
		for partition, offset := range offsets {
			if place := s.places[placeKey{topic, partition}]; place != nil && place.processed >= offset {
				place.confirmed = max(place.confirmed, offset)
			}
		}
		s.mu.Unlock()
	}
	return nil
}

// Close commits, and ends the subscription; its partitions go to the group's other members. The error is Commit's: then
// some records that were settled may be delivered again.
func (s *Subscription) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.tellSettled()
	s.closed, s.chunks = true, nil
	s.changed()
	s.mu.Unlock()
	err := s.Commit(ctx)
	s.mu.Lock()
	var left []*session
	for _, session := range s.sessions {
		session.end()
		left = append(left, session)
	}
	s.mu.Unlock()
	limit := time.After(lastWord)
	for _, session := range left {
		select {
		case <-session.over:
		case <-limit:
		case <-ctx.Done():
		}
	}
	s.cancel()
	s.running.Wait()
	return err
}

// changed wakes who waits for news. Under mu.
func (s *Subscription) changed() {
	close(s.news)
	s.news = make(chan struct{})
}

// fail ends the subscription once what is here was taken. Under mu.
func (s *Subscription) fail(err error) {
	if s.err == nil {
		s.err = err
		for _, session := range s.sessions {
			session.end()
		}
		s.changed()
	}
}
