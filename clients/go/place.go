package tritonmq

import (
	"context"
	"time"

	"tritonmq/clients/go/pb"
)

type placeKey struct {
	topic     string
	partition int32
}

// place is where a subscription is in one partition. Offsets are each the next one, and -1 when they are not known.
// The subscription's mu guards it.
type place struct {
	topic     string
	partition int32
	added     bool // the topic was given it while it was subscribed to: without a position it begins at its first record
	life      int  // counts how often another member got it

	began     int64 // where it was first opened
	position  int64 // to receive
	taken     int64 // to hand out
	processed int64 // all below is settled
	confirmed int64 // all below is known to be written down

	// Of the stream that it is opened on:
	address  string // of the broker; empty: none
	active   bool   // it is pushed
	answered bool   // the broker has said where it begins, or that another member has it
	pushed   int64  // what came, again perhaps
	told     int64  // what the broker was told to be settled

	last  error // why it was refused
	inUse *deadline
}

func newPlace(topic string, partition int32, added bool) *place {
	made := &place{topic: topic, partition: partition, added: added}
	made.forget()
	return made
}

func (p *place) key() placeKey { return placeKey{p.topic, p.partition} }

// forget: another member has it.
func (p *place) forget() {
	p.life++
	p.active = false
	p.began, p.position, p.taken, p.processed, p.confirmed, p.pushed, p.told = -1, -1, -1, -1, -1, -1, -1
}

// toSettle is what the broker may be told. It does not believe that something is done with that it has not pushed on
// this stream.
func (p *place) toSettle() int64 { return min(p.processed, p.pushed) }

// chunk is a pushed batch from row on.
type chunk struct {
	place    *place
	address  string // of the broker that has pushed it
	stored   *pb.StoredBatch
	payload  []byte
	row      int
	messages []Message // nil until the first of them is taken
}

func (c *chunk) end() int64 { return c.stored.GetBaseOffset() + int64(c.stored.GetRecordCount()) }

// release gives the credit of a batch back that was taken or dropped: to the stream to its broker that there is now.
// Under mu.
func (s *Subscription) release(c *chunk) {
	s.held[c.address] -= int64(len(c.payload))
	if session := s.sessions[c.address]; session != nil {
		session.giveBack(int64(len(c.payload)))
	}
}

// drop forgets what is here of a partition before an offset. Under mu.
func (s *Subscription) drop(p *place, below int64) {
	var kept []*chunk
	for _, chunk := range s.chunks {
		if chunk.place == p {
			if chunk.end() <= below {
				s.release(chunk)
				continue
			}
			chunk.row = max(chunk.row, int(below-chunk.stored.GetBaseOffset()))
		}
		kept = append(kept, chunk)
	}
	s.chunks = kept
}

// decode makes messages of a chunk. Under taking.
func (s *Subscription) decode(c *chunk) error {
	s.mu.Lock()
	view := s.views[c.place.topic]
	s.mu.Unlock()
	messages, err := s.client.messagesOf(s.ctx, view, c.stored, c.payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.messages = messages
	return nil
}

// tellSettled tells brokers how far the application is. Under mu.
func (s *Subscription) tellSettled() {
	if s.options.group == "" {
		return
	}
	for _, place := range s.places {
		session := s.sessions[place.address]
		if place.active && place.toSettle() > place.told && session != nil && !session.ended {
			session.settle(place)
		}
	}
}

// opened is what a broker says of a partition on a stream. Under mu.
func (s *Subscription) opened(from *session, told *pb.PartitionOpened) error {
	place := s.places[placeKey{told.GetTopic(), told.GetPartition()}]
	if place == nil || place.address != from.address || s.sessions[from.address] != from {
		return nil // the word of a former stream
	}
	if told.GetOffset() < 0 {
		return malformed(from.address, "it told of offset %d", told.GetOffset())
	}
	switch {
	case told.GetError() != nil && !told.GetActive():
		s.refused(place, fromWire(told.GetError()))
	case told.GetError() != nil:
		if place.active { // else a former subscription was told, on the same stream
			s.skip(place, told.GetOffset())
		}
	case told.GetActive():
		place.answered, place.last, place.inUse = true, nil, nil
		s.activate(place, told.GetOffset())
	default:
		place.answered, place.last, place.inUse = true, nil, nil
		s.drop(place, 1<<62)
		place.forget()
	}
	s.changed()
	return nil
}

func (s *Subscription) refused(p *place, err *Error) {
	p.address, p.active, p.last = "", false, err
	switch {
	case err.Code == pb.ErrorCode_NOT_LEADER:
		s.client.noteLeader(p.topic, p.partition, err)
	case err.Code == pb.ErrorCode_MEMBER_IN_USE:
		if p.inUse == nil {
			limit := newDeadline(inUseFor)
			p.inUse = &limit
		}
		if p.inUse.over() {
			s.fail(err)
		}
	case !err.Retriable:
		s.fail(err)
	}
	s.lookAgain()
}

// activate: it is pushed from offset on. What is here of it stays, if nobody else was given it meanwhile.
func (s *Subscription) activate(p *place, offset int64) {
	if p.position < 0 {
		p.began, p.position, p.taken, p.processed = offset, offset, offset, offset
	}
	p.position = max(p.position, offset)
	p.pushed, p.told = offset, offset
	if s.options.group != "" { // alone, what is here is below the offset because it was asked for so
		s.drop(p, offset)
		if offset > p.processed { // others were done with it: the group is not to be moved back
			p.began, p.processed, p.taken = offset, offset, max(p.taken, offset)
		}
	}
	p.active = true
}

// skip: the same stream goes on at offset, because what is between was lost.
func (s *Subscription) skip(p *place, offset int64) {
	if p.taken == p.position && p.processed == p.taken && p.taken < offset { // nothing from before it is here
		p.taken, p.processed = offset, offset
	}
	p.position, p.pushed = max(p.position, offset), offset
}

// pushed takes the batches of a message. Under mu.
func (s *Subscription) pushed(from *session, message *pb.BatchesResponse) error {
	payload := message.GetPayload()
	if s.closed {
		return nil
	}
	for _, stored := range message.GetHeader().GetBatches() {
		size, base := int(stored.GetPayloadBytes()), stored.GetBaseOffset()
		if size > len(payload) || base < 0 || base > 1<<62 || stored.GetRecordCount() == 0 {
			return malformed(from.address, "%d bytes at offset %d", size, base)
		}
		own := payload[:size]
		payload = payload[size:]
		place := s.places[placeKey{stored.GetTopic(), stored.GetPartition()}]
		if place == nil || place.address != from.address || s.sessions[from.address] != from || !place.active {
			from.giveBack(int64(size))
			continue
		}
		made := &chunk{place: place, address: from.address, stored: stored, payload: own}
		if base > place.position {
			return malformed(from.address, "offset %d, where %d was to come", base, place.position)
		}
		place.pushed = made.end()
		if made.end() <= place.position { // here, or taken, since before the stream was opened
			from.giveBack(int64(size))
			continue
		}
		made.row = int(place.position - base)
		place.position = made.end()
		s.held[from.address] += int64(size)
		if held := s.held[from.address]; held > s.options.bytes+messageBytesMax { // the last message may go beyond it
			return malformed(from.address, "%d bytes, which is more than it was given credit for", held)
		}
		s.chunks = append(s.chunks, made)
	}
	s.changed()
	return nil
}

func malformed(address, format string, values ...any) *Error {
	said := newError(pb.ErrorCode_INTERNAL, format, values...)
	said.Message = "broker at " + address + " sent what makes no sense (" + said.Message + "): see its log"
	return said
}

// follow keeps each partition opened at its leader, until the subscription ends.
func (s *Subscription) follow() {
	settling := time.NewTicker(settleEvery)
	defer settling.Stop()
	for attempt := 0; s.ctx.Err() == nil; attempt++ {
		s.followLeaders()
		s.mu.Lock()
		complete := true
		for _, place := range s.places {
			complete = complete && place.answered && place.address != ""
		}
		s.mu.Unlock()
		wait := pauseOf(attempt)
		if complete {
			attempt, wait = -1, lookEvery
		}
		s.rest(time.After(wait), settling.C, complete)
	}
}

// rest waits until it is time to look at the leaders, and tells what was settled meanwhile.
func (s *Subscription) rest(until, settling <-chan time.Time, complete bool) {
	for {
		var failed <-chan struct{}
		if complete {
			failed = s.failed // else what has failed waits for its time
		}
		select {
		case <-until:
			return
		case <-failed:
			return
		case <-settling:
			s.mu.Lock()
			s.tellSettled()
			s.mu.Unlock()
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Subscription) lookAgain() {
	select {
	case s.failed <- struct{}{}:
	default:
	}
}

func (s *Subscription) followLeaders() {
	s.mu.Lock()
	names := make([]string, 0, len(s.views))
	for name := range s.views {
		names = append(names, name)
	}
	over := s.err != nil || s.closed
	s.mu.Unlock()
	if over {
		return
	}
	for _, name := range names {
		asking, cancel := context.WithTimeout(s.ctx, attemptTimeout)
		view, err := s.client.refresh(asking, name)
		cancel()
		s.mu.Lock()
		if err == nil {
			s.learn(view)
		} else if s.ctx.Err() == nil && CodeOf(err) != pb.ErrorCode_OK && !isRetriable(err) {
			s.fail(err)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.closed && s.ctx.Err() == nil {
		s.open()
	}
}

// learn takes what was heard of a topic: partitions that it did not have are subscribed to as well. Under mu.
func (s *Subscription) learn(view *topic) {
	known := s.views[view.name]
	if known.id != view.id { // places in a topic say nothing of another one
		s.fail(newError(pb.ErrorCode_UNKNOWN_TOPIC,
			"topic %q was deleted and made again: subscribe anew to read that one", view.name))
		return
	}
	if len(view.leaders) < len(known.leaders) {
		return // from a broker that has not heard of those added
	}
	s.views[view.name] = view
	for number := range view.leaders {
		key := placeKey{view.name, int32(number)}
		if s.places[key] == nil {
			s.places[key] = newPlace(view.name, int32(number), true)
		}
	}
}

// open asks for each partition at its leader, where that is not done. Under mu.
func (s *Subscription) open() {
	wanted := map[string][]*place{}
	used := map[string]bool{}
	for _, place := range s.places {
		address := s.client.leader(place.topic, place.partition)
		if address == "" {
			used[place.address] = true
			continue
		}
		used[address] = true
		session := s.sessions[place.address]
		if place.address == address && session != nil && !session.ended {
			continue
		}
		if session != nil {
			session.close(place)
		}
		place.address, place.answered, place.active = address, false, false
		wanted[address] = append(wanted[address], place)
	}
	for address, places := range wanted {
		session := s.sessions[address]
		if session == nil || session.ended {
			session = newSession(s, address)
			s.sessions[address] = session
		}
		session.open(places)
	}
	for address, session := range s.sessions {
		if !used[address] {
			delete(s.sessions, address)
			session.end()
		}
	}
}
