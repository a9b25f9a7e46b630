package tritonmq

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"tritonmq/clients/go/pb"
)

const (
	sessionsAtOnce   = 1_000  // that one message may name
	leasesAtOnce     = 10_000 // that it may ask about
	workMessageBytes = 256 << 10
	lookAfter        = 100 * time.Millisecond // another look at who leads, at the earliest
)

// workStream is one Work stream to one broker, with a session for each partition that it leads. It is given the next
// message once the one before was sent, so what is to be said gathers meanwhile.
type workStream struct {
	queue    *Queue
	address  string
	ctx      context.Context
	stop     context.CancelFunc
	messages chan *pb.WorkRequest
	idle     bool                    // the message before was sent
	sessions map[uint32]*workSession // those that are open, by number
	last     uint32                  // the number of the last one that was opened
	due      []*workSession          // those that have something to say
}

// workSession is this member's with the leader of one partition.
type workSession struct {
	stream     *workStream
	number     uint32
	place      *queuePlace
	next       *pb.SessionRequest // what is to be said
	spoken     uint64             // outcomes and extensions so far
	unanswered map[uint64]*line   // by number
	sent       int                // records whose outcomes have no answer
	credit     credit             // what it may be lent in all since it began
	lent       credit
	recalled   int  // what the credit's records will be once the leader says so, after some were taken back; -1: none were
	ready      bool // its leader has more
	stays      int  // how often in a row it was given credit for records that it settles
}

// run hears what the broker says until the stream ends.
func (s *workStream) run() {
	q := s.queue
	write := func(call grpc.BidiStreamingClient[pb.WorkRequest, pb.WorkResponse]) {
		q.running.Go(func() { s.write(call) })
	}
	err := talk(s.ctx, q.client, s.address, pb.BrokerClient.Work, write, func(message *pb.WorkResponse) error {
		q.do(func() {
			if err := s.hear(message); err != nil {
				q.streamEnded(s, err)
			}
		})
		return nil
	})
	q.do(func() {
		q.talking--
		q.streamEnded(s, err)
	})
}

// write sends message after message until there are no more. What went wrong is heard by whoever receives.
func (s *workStream) write(call grpc.BidiStreamingClient[pb.WorkRequest, pb.WorkResponse]) {
	for {
		select {
		case message, more := <-s.messages:
			if !more {
				_ = call.CloseSend()
				return
			}
			if call.Send(message) != nil {
				return
			}
			s.queue.do(func() { s.idle, s.queue.stirred = true, true })
		case <-call.Context().Done():
			return
		}
	}
}

// -- of the queue's run

// request is what this session says in the next message.
func (s *workSession) request() *pb.SessionRequest {
	if s.next == nil {
		s.next = &pb.SessionRequest{Session: s.number}
		s.stream.due = append(s.stream.due, s)
	}
	return s.next
}

// flush has the next message be sent. Without any session left, the stream ends.
func (s *workStream) flush() {
	if !s.idle {
		return
	}
	message, size := &pb.WorkRequest{}, 0
	for len(s.due) > 0 && len(message.Sessions) < sessionsAtOnce && size < workMessageBytes {
		message.Sessions = append(message.Sessions, s.due[0].next)
		size += proto.Size(s.due[0].next)
		s.due[0].next = nil
		s.due = s.due[1:]
	}
	switch {
	case len(message.Sessions) > 0:
		s.messages <- message // which has room
	case len(s.sessions) == 0:
		delete(s.queue.streams, s.address)
		close(s.messages)
	default:
		return
	}
	s.idle = false
}

// converse opens sessions, and says to the leaders what they are to hear.
func (q *Queue) converse() {
	now := time.Now()
	for _, place := range q.places {
		q.tend(place, now)
	}
	q.share()
	for _, stream := range q.streams {
		stream.flush()
	}
	wait := lookEvery
	if q.doubted {
		wait = lookAfter
	}
	if !q.looking && now.Sub(q.lookedAt) >= wait {
		q.look(now)
	}
}

// tend says what is to be said of one partition. Outcomes gather while others are on their way.
func (q *Queue) tend(p *queuePlace, now time.Time) {
	if p.err != nil {
		q.refuseAll(p, p.err)
		return
	}
	if now.Before(p.notBefore) {
		return
	}
	if p.session == nil && (len(p.lines) > 0 || !q.isClosing && q.err == nil) {
		q.openSession(p)
	}
	if p.session != nil && (!p.flying() || q.hurries()) {
		q.speak(p)
	}
}

// flying: outcomes are on their way.
func (p *queuePlace) flying() bool { return p.session != nil && len(p.session.unanswered) > 0 }

func (q *Queue) openSession(p *queuePlace) {
	address := q.client.leader(q.view.name, p.partition)
	if address == "" {
		q.doubted = true
		return
	}
	stream := q.streams[address]
	if stream == nil {
		stream = &workStream{
			queue: q, address: address, messages: make(chan *pb.WorkRequest, 1), idle: true,
			sessions: map[uint32]*workSession{}}
		stream.ctx, stream.stop = context.WithCancel(q.ctx)
		q.streams[address] = stream
		q.talking++
		q.running.Go(stream.run)
	}
	stream.last++
	p.session = &workSession{
		stream: stream, number: stream.last, place: p, unanswered: map[uint64]*line{}, recalled: -1}
	stream.sessions[stream.last] = p.session
	request := p.session.request()
	request.Open = &pb.WorkOpen{
		Topic: q.view.name, TopicId: q.view.id, Partition: p.partition, Group: q.group, Member: q.options.Member,
		MemberKey: q.key,
	}
	for _, lease := range p.leases {
		request.Open.Held = append(request.Open.Held, &pb.HeldLease{Lease: lease.wire()})
	}
	request.Terms = &pb.WorkTerms{
		LeaseMs: uint32(q.options.Lease.Milliseconds()), Working: uint32(q.options.Working), Filter: q.options.Filter}
	request.Credit = &pb.WorkCredit{Watch: true}
}

// forget: this session is over.
func (q *Queue) forget(s *workSession) {
	s.place.session = nil
	delete(s.stream.sessions, s.number)
	q.stirred = true
}

// giveUp: it is over, and what had no answer is said again.
func (q *Queue) giveUp(s *workSession) {
	q.forget(s)
	s.stream.due = slices.DeleteFunc(s.stream.due, func(each *workSession) bool { return each == s })
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(s.unanswered))) {
		s.place.putBack(s.unanswered[number], true)
	}
}

// streamEnded: so have its sessions.
func (q *Queue) streamEnded(s *workStream, err error) {
	s.stop()
	if q.streams[s.address] == s {
		delete(q.streams, s.address)
	}
	for _, session := range s.sessions {
		q.sessionEnded(session, err)
	}
	q.stirred = true
}

// sessionEnded: another one is opened after a while, unless nobody would grant that.
func (q *Queue) sessionEnded(s *workSession, err error) {
	q.giveUp(s)
	if q.mayAskAgain(err) {
		q.failedAt(s.place, err)
		return
	}
	s.place.err = err
	q.fail(err)
}

func (q *Queue) mayAskAgain(err error) bool {
	code := CodeOf(err)
	return isRetriable(err) || code == pb.ErrorCode_UNKNOWN_PARTITION ||
		(code == pb.ErrorCode_UNKNOWN_QUEUE && time.Since(q.opened) < declaredWithin)
}

// failedAt: a leader is left alone for a while, and perhaps another one leads.
func (q *Queue) failedAt(p *queuePlace, err error) {
	p.notBefore = time.Now().Add(pauseOf(p.failures))
	p.failures++
	var found *Error
	if errors.As(err, &found) && found.Code == pb.ErrorCode_NOT_LEADER {
		q.client.noteLeader(q.view.name, p.partition, found)
	}
	switch CodeOf(err) {
	case pb.ErrorCode_OVERLOADED, pb.ErrorCode_DISK_FULL, pb.ErrorCode_NOT_ENOUGH_REPLICAS, pb.ErrorCode_OUT_OF_ORDER:
	default:
		q.doubted = true
	}
}

// look asks who leads.
func (q *Queue) look(now time.Time) {
	q.looking, q.doubted, q.lookedAt = true, false, now
	name := q.view.name
	q.running.Go(func() {
		asking, cancel := context.WithTimeout(q.ctx, attemptTimeout)
		defer cancel()
		view, err := q.client.refresh(asking, name)
		q.do(func() { q.follow(view, err) })
	})
}

// follow goes to the leaders as they are now.
func (q *Queue) follow(view *topic, err error) {
	q.looking, q.stirred = false, true
	if err == nil && view.id != q.view.id {
		err = newError(pb.ErrorCode_UNKNOWN_TOPIC,
			"topic %q was deleted and made again: what was lent of the former one is gone", view.name)
	}
	switch {
	case err == nil:
		q.learn(view)
	case isRetriable(err) || CodeOf(err) == pb.ErrorCode_OK: // nobody has answered in time
		q.doubted = true
		return
	default:
		q.fail(err)
	}
	for _, place := range q.places {
		address, session := q.client.leader(q.view.name, place.partition), place.session
		switch {
		case session == nil:
			place.err = cmp.Or(place.err, err)
		case address != "" && address != session.stream.address:
			q.giveUp(session)
			place.notBefore = time.Time{}
		}
	}
}

// learn takes a topic as it is now: partitions that it did not have are worked on as well.
func (q *Queue) learn(view *topic) {
	q.view = view
	for number := len(q.places); number < len(view.leaders); number++ {
		q.places = append(q.places, &queuePlace{partition: int32(number), leases: map[leaseID]*lease{}})
	}
}

// hear takes what the sessions are told. The error ends the stream.
func (s *workStream) hear(message *pb.WorkResponse) error {
	s.queue.stirred = true
	payload := message.GetPayload()
	for _, said := range message.GetHeader().GetSessions() {
		size := uint64(0)
		for _, stored := range said.GetLease().GetBatches() {
			size += uint64(stored.GetPayloadBytes())
		}
		if size > uint64(len(payload)) {
			return malformed(s.address, "%d bytes of %d", size, len(payload))
		}
		own := payload[:size]
		payload = payload[size:]
		if session := s.sessions[said.GetSession()]; session != nil { // else it is over
			if err := s.queue.hear(session, said, own); err != nil {
				return err
			}
		}
	}
	return nil
}

func (q *Queue) hear(s *workSession, said *pb.SessionResponse, payload []byte) error {
	for _, told := range said.GetAnswers() {
		line := s.unanswered[told.GetNumber()]
		if line == nil {
			return malformed(s.stream.address, "an answer to %d, which nobody asked", told.GetNumber())
		}
		delete(s.unanswered, told.GetNumber())
		s.sent -= line.settles()
		q.answered(s, line, told.GetAnswer())
	}
	for _, told := range said.GetGone() {
		if gone := s.place.leases[leaseIDOf(told)]; gone != nil {
			q.lose(gone.records)
			q.releaseBehind(s.place)
		}
	}
	if said.Lease != nil {
		if err := q.lent(s, said.Lease, said.GetLentBytes(), payload); err != nil {
			return err
		}
		s.ready = said.Lease.GetReady()
	}
	if said.Ready != nil {
		s.ready = said.GetReady()
	}
	if said.Credit != nil && s.recalled >= 0 && said.GetCredit() == int64(s.recalled) {
		s.credit.records, s.recalled = s.recalled, -1
	}
	if said.Error != nil {
		q.sessionEnded(s, fromWire(said.Error))
	}
	return nil
}
