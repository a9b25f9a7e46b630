package tritonmq

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	"tritonmq/clients/go/pb"
)

// stream is one Produce call to one broker, which all lanes share whose partitions it leads. It sends in the order
// in which it is given requests; nobody waits for the network but its own goroutines.
type stream struct {
	producer *Producer
	address  string
	wake     chan struct{}

	mu      sync.Mutex
	next    uint64
	queue   []*pb.ProduceRequest // bounded by what lanes have in flight
	waiting map[uint64]attempt
	ended   *Error
}

type attempt struct {
	lane  *lane
	batch *outgoing
}

// stream gives the one to a broker that is open, or opens one.
func (p *Producer) stream(address string) *stream {
	p.streamsMu.Lock()
	defer p.streamsMu.Unlock()
	if found := p.streams[address]; found != nil {
		return found
	}
	made := &stream{producer: p, address: address, wake: make(chan struct{}, 1), waiting: map[uint64]attempt{}}
	p.streams[address] = made
	p.running.Go(made.run)
	return made
}

// send queues a request and gives its correlation. On a stream that has ended meanwhile it is told as broken.
func (s *stream) send(l *lane, batch *outgoing, header *pb.ProduceHeader) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	header.Correlation = s.next
	if s.ended != nil {
		go l.broken(batch, s.next, s.ended) // not at once: the caller has the lane's lock
		return s.next
	}
	s.waiting[s.next] = attempt{l, batch}
	s.queue = append(s.queue, &pb.ProduceRequest{Header: header, Payload: batch.payload})
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return s.next
}

func (s *stream) run() {
	ctx, cancel := context.WithCancel(s.producer.ctx)
	defer cancel()
	write := func(call grpc.BidiStreamingClient[pb.ProduceRequest, pb.ProduceResponse]) {
		s.producer.running.Go(func() { s.write(call) })
	}
	err := talk(ctx, s.producer.client, s.address, pb.BrokerClient.Produce, write, s.hear)
	var told *Error
	if !errors.As(err, &told) {
		told = newError(pb.ErrorCode_UNREACHABLE, "the stream to the broker at %s ended: %v", s.address, err)
	}
	s.producer.streamsMu.Lock()
	if s.producer.streams[s.address] == s {
		delete(s.producer.streams, s.address)
	}
	s.producer.streamsMu.Unlock()
	s.mu.Lock()
	s.ended = told
	waiting := s.waiting
	s.waiting, s.queue = nil, nil
	s.mu.Unlock()
	for correlation, attempt := range waiting {
		attempt.lane.broken(attempt.batch, correlation, told)
	}
}

func (s *stream) hear(answer *pb.ProduceResponse) error {
	for _, result := range answer.GetResults() {
		s.mu.Lock()
		found, known := s.waiting[result.GetCorrelation()]
		delete(s.waiting, result.GetCorrelation())
		s.mu.Unlock()
		if known {
			found.lane.answered(found.batch, result.GetCorrelation(), result)
		}
	}
	return nil
}

// write sends what is queued until the call ends. What went wrong is heard by whoever receives.
func (s *stream) write(call grpc.BidiStreamingClient[pb.ProduceRequest, pb.ProduceResponse]) {
	for {
		s.mu.Lock()
		requests := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, request := range requests {
			if call.Send(request) != nil {
				return
			}
		}
		select {
		case <-s.wake:
		case <-call.Context().Done():
			return
		}
	}
}
