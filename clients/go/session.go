package tritonmq

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"tritonmq/clients/go/pb"
)

// session is one Subscribe stream to one broker, and the credit that is to be given back on it. The subscription's mu
// guards what changes. What is to be said is bounded: places are named once, and credit is a sum.
type session struct {
	subscription *Subscription
	address      string
	wake         chan struct{}
	over         chan struct{} // closed when the stream has ended

	ended   bool // nothing is said on it any more
	owed    int64
	credit  int64
	places  []*pb.SubscribeRequest // to open and to close
	settled map[placeKey]int64
}

func newSession(s *Subscription, address string) *session {
	credit := s.options.bytes - s.held[address]
	made := &session{
		subscription: s, address: address, wake: make(chan struct{}, 1), over: make(chan struct{}),
		owed: min(0, credit), credit: max(0, credit), settled: map[placeKey]int64{},
	}
	s.running.Go(made.run)
	return made
}

// -- under mu

// open asks for these: from where this subscription is, else from where it is to start. What is asked for in a group
// becomes its place if it has none, since a leader died before it was written down: all that is not settled.
func (s *session) open(places []*place) {
	options := &s.subscription.options
	for some := range slices.Chunk(places, placesAtOnce) {
		opening := &pb.SubscribeOpen{Group: options.group, MemberId: options.member}
		if options.group != "" {
			opening.MemberKey = s.subscription.memberKey
		}
		for _, place := range some {
			wanted := &pb.SubscribePartition{
				Topic: place.topic, Partition: place.partition, TopicId: s.subscription.views[place.topic].id}
			switch {
			case place.position >= 0 && options.group != "":
				wanted.Start = &pb.SubscribePartition_Offset{Offset: place.processed}
			case place.position >= 0:
				wanted.Start = &pb.SubscribePartition_Offset{Offset: place.position}
			case place.added:
				wanted.Start = &pb.SubscribePartition_Earliest{Earliest: true}
			default:
				options.start(wanted)
			}
			opening.Partitions = append(opening.Partitions, wanted)
		}
		s.places = append(s.places, &pb.SubscribeRequest{Open: opening})
	}
	s.poke()
}

func (s *session) close(p *place) {
	if s.ended {
		return
	}
	delete(s.settled, p.key())
	s.places = append(s.places, &pb.SubscribeRequest{Close: &pb.SubscribeClose{
		Partitions: []*pb.TopicPartition{{Topic: p.topic, Partition: p.partition}}}})
	s.poke()
}

func (s *session) settle(p *place) {
	p.told = p.toSettle()
	s.settled[p.key()] = p.told
	s.poke()
}

// giveBack gives credit for a batch that was taken, in portions: a request for each small one would cost more than it.
func (s *session) giveBack(count int64) {
	if s.ended {
		return
	}
	if s.owed += count; s.owed*4 >= s.subscription.options.bytes {
		s.credit += s.owed
		s.owed = 0
		s.poke()
	}
}

// end has the last be said; the broker ends the stream once it has heard all before it.
func (s *session) end() {
	s.ended = true
	s.poke()
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next takes what is to be said. last: nothing comes behind it.
func (s *session) next() (requests []*pb.SubscribeRequest, last bool) {
	s.subscription.mu.Lock()
	defer s.subscription.mu.Unlock()
	requests, s.places = s.places, nil
	if s.credit > 0 {
		requests = append(requests, &pb.SubscribeRequest{Credit: &pb.SubscribeCredit{Bytes: uint64(s.credit)}})
		s.credit = 0
	}
	settled := make([]*pb.CursorPosition, 0, len(s.settled))
	for key, offset := range s.settled {
		settled = append(settled, &pb.CursorPosition{Topic: key.topic, Partition: key.partition, Offset: offset})
	}
	clear(s.settled)
	for some := range slices.Chunk(settled, placesAtOnce) {
		requests = append(requests, &pb.SubscribeRequest{Settled: some})
	}
	return requests, s.ended
}

// -- its goroutines

func (s *session) run() {
	defer close(s.over)
	ctx, cancel := context.WithCancel(s.subscription.ctx)
	defer cancel()
	write := func(call grpc.BidiStreamingClient[pb.SubscribeRequest, pb.BatchesResponse]) {
		s.subscription.running.Go(func() { s.write(call) })
	}
	err := talk(ctx, s.subscription.client, s.address, pb.BrokerClient.Subscribe, write, s.hear)
	s.subscription.sessionEnded(s, err)
}

func (s *session) hear(message *pb.BatchesResponse) error {
	if told := message.GetHeader().GetError(); told != nil {
		return fromWire(told)
	}
	s.subscription.mu.Lock()
	defer s.subscription.mu.Unlock()
	for _, told := range message.GetHeader().GetOpened() {
		if err := s.subscription.opened(s, told); err != nil {
			return err
		}
	}
	return s.subscription.pushed(s, message)
}

// write says what is to be said until the call ends. What went wrong is heard by whoever receives.
func (s *session) write(call grpc.BidiStreamingClient[pb.SubscribeRequest, pb.BatchesResponse]) {
	for {
		requests, last := s.next()
		for _, request := range requests {
			if call.Send(request) != nil {
				return
			}
		}
		if last {
			_ = call.CloseSend() // whoever receives hears how it ends
			return
		}
		select {
		case <-s.wake:
		case <-call.Context().Done():
			return
		}
	}
}

// sessionEnded: a stream broke. Its partitions are opened again wherever they are led by now, unless nobody would grant
// that.
func (s *Subscription) sessionEnded(from *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := from.ended
	from.ended = true
	if s.sessions[from.address] != from {
		return // another has taken its place
	}
	delete(s.sessions, from.address)
	for _, place := range s.places {
		if place.address == from.address {
			place.address, place.active, place.last = "", false, err
		}
	}
	if CodeOf(err) != pb.ErrorCode_OK && !isRetriable(err) && !was {
		s.fail(err)
	}
	s.lookAgain()
}
