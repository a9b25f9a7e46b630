package tritonmq

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"tritonmq/clients/go/pb"
)

const (
	rowsInAnswer = 1 << 20
	creditFor    = 2 * time.Second // who waits for credit for so long looks whether what it holds is still its own
)

// lend has a partition's leader lend records, until the queue takes no more. While nothing is there, the leader is asked
// to say when something is, and credit goes to others.
func (q *Queue) lend(p *queuePlace) {
	hopeful := true
	for failures := 0; q.lending.Err() == nil; {
		records, bytes := 0, int64(0)
		request := q.request(p)
		if hopeful {
			records, bytes = q.reserve()
		} else {
			request.WaitMs = uint32(watchFor.Milliseconds())
		}
		q.mu.Lock()
		for _, lease := range p.leases {
			request.Held = append(request.Held, lease.wire())
		}
		q.mu.Unlock()
		if records > 0 {
			request.RecordsMax, request.BytesMax, request.RowsBytesMax = uint32(records), uint64(bytes), rowsInAnswer
		}
		answer, err := q.askToLend(p, request)
		var made *lease
		if err == nil {
			made, err = q.lent(p, answer, records, bytes)
		}
		q.giveCreditBack(records, bytes, made)
		if err != nil {
			if q.lending.Err() != nil {
				return
			}
			if !q.mayAskAgain(err) {
				q.fail(err)
				return
			}
			pause(q.lending, failures)
			failures++
			hopeful = true
			continue
		}
		if made != nil {
			q.shelve(p, made, answer)
		}
		hopeful = answer.GetReady()
		if records > 0 && made == nil && hopeful { // something that this member may not have now
			pause(q.lending, failures)
			failures++
			continue
		}
		failures = 0
	}
}

func (q *Queue) request(p *queuePlace) *pb.LeaseRequest {
	return &pb.LeaseRequest{
		Topic: q.view.name, TopicId: q.view.id, Partition: p.partition, Group: q.group, Member: q.options.Member,
		MemberKey: q.key, LeaseMs: uint32(q.options.Lease.Milliseconds()), Working: uint32(q.options.Working),
		Filter: q.options.Filter,
	}
}

func (q *Queue) mayAskAgain(err error) bool {
	code := CodeOf(err)
	return isRetriable(err) || code == pb.ErrorCode_UNKNOWN_PARTITION ||
		(code == pb.ErrorCode_UNKNOWN_QUEUE && time.Since(q.opened) < declaredWithin)
}

// reserve takes all credit that there is, once that is worth an entry in the journal: half of it, or whatever there is
// while nothing waits to be taken. 0: there was none for a while.
func (q *Queue) reserve() (records int, bytes int64) {
	limit := time.After(creditFor)
	for {
		q.mu.Lock()
		records, bytes = q.options.InFlight-q.held, q.options.InFlightBytes-q.bytes
		much := records*2 >= q.options.InFlight && bytes*2 >= q.options.InFlightBytes
		if records > 0 && bytes > 0 && (much || q.waiting == 0) {
			q.held += records
			q.bytes += bytes
			q.mu.Unlock()
			return records, bytes
		}
		news := q.news
		q.mu.Unlock()
		select {
		case <-news:
		case <-limit:
			return 0, 0
		case <-q.lending.Done():
			return 0, 0
		}
	}
}

// giveCreditBack: all of it was reserved, and a lease takes as much as it has.
func (q *Queue) giveCreditBack(records int, bytes int64, made *lease) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= records
	q.bytes -= bytes
	if made != nil {
		q.held += len(made.offsets)
		q.bytes += made.bytes * int64(len(made.offsets))
	}
	if records > 0 {
		q.changed()
	}
}

func (q *Queue) askToLend(p *queuePlace, request *pb.LeaseRequest) (*pb.LeaseResponse, error) {
	address := q.client.leader(q.view.name, p.partition)
	if address == "" {
		return nil, q.lookForLeader(p, nil)
	}
	answer, err := ask(q.lending, q.client, address, pb.BrokerClient.Lease, request)
	if err != nil {
		return nil, q.lookForLeader(p, err)
	}
	return answer, nil
}

// lookForLeader learns from an error who leads, or asks. It gives the error, or why there is no leader.
func (q *Queue) lookForLeader(p *queuePlace, err error) error {
	if found, ours := err.(*Error); ours && found.Code == pb.ErrorCode_NOT_LEADER && found.LeaderID != 0 {
		q.client.noteLeader(q.view.name, p.partition, found)
		return err
	}
	switch CodeOf(err) {
	case pb.ErrorCode_OVERLOADED, pb.ErrorCode_DISK_FULL, pb.ErrorCode_NOT_ENOUGH_REPLICAS, pb.ErrorCode_OUT_OF_ORDER:
		return err // no sign that another one leads
	}
	asking, cancel := context.WithTimeout(q.ctx, attemptTimeout)
	defer cancel()
	view, refused := q.client.refresh(asking, q.view.name)
	if refused == nil && view.id != q.view.id {
		return newError(pb.ErrorCode_UNKNOWN_TOPIC,
			"topic %q was deleted and made again: what was lent of the former one is gone", q.view.name)
	}
	if err == nil && refused != nil {
		return refused
	}
	if err == nil {
		err = newError(pb.ErrorCode_NOT_LEADER, "topic %q partition %d has no leader at the moment", q.view.name, p.partition)
	}
	return err
}

// lent takes what a leader has said: what is lost of what the member holds, and a lease. An answer that makes no sense
// is an error.
func (q *Queue) lent(p *queuePlace, answer *pb.LeaseResponse, records int, bytes int64) (*lease, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	made, ok := readLease(p, answer, records, time.Now())
	if !ok {
		return nil, malformed(q.client.leader(q.view.name, p.partition), "it lent what was not asked for")
	}
	for _, told := range answer.GetGone() {
		if gone := p.leases[leaseIDOf(told)]; gone != nil {
			for at, state := range gone.states {
				if state <= begun { // the answer to what has an outcome says what became of it
					q.over(gone, at, lost)
				}
			}
			q.releaseBehind(p)
			q.changed()
		}
	}
	if made != nil {
		if came := int64(len(answer.GetPayload())); came > 0 {
			bytes = came // else as many as it may be
		}
		made.bytes = bytes / int64(len(made.offsets))
		p.leases[made.id] = made
	}
	return made, nil
}

// shelve puts the records of a lease where they can be taken. What did not come with the answer is fetched.
func (q *Queue) shelve(p *queuePlace, made *lease, answer *pb.LeaseResponse) {
	found := map[int64]Message{}
	payload, decoded := answer.GetPayload(), int64(0)
	for _, stored := range answer.GetBatches() {
		size := int(stored.GetPayloadBytes())
		if size > len(payload) {
			break
		}
		if decoded += decodedBytes(payload[:size]); decoded > batchDecodedBytesMax || !q.readBatch(p, found, stored, payload[:size]) {
			break // it is fetched, which tells what is wrong
		}
		payload = payload[size:]
	}
	deliveries, failures := perRecord(answer)
	for at := 0; at < len(made.offsets); {
		from := at
		for ; at < len(made.offsets); at++ {
			if _, here := found[made.offsets[at]]; !here {
				break
			}
		}
		q.mu.Lock()
		for each := from; each < at; each++ {
			p.ready = append(p.ready, &QueueRecord{
				Message: found[made.offsets[each]], Deliveries: deliveries[each], Failures: failures[each],
				queue: q, lease: made, at: each})
		}
		q.waiting += at - from
		q.changed()
		q.mu.Unlock()
		if at == len(made.offsets) {
			return
		}
		missing := made.offsets[at:]
		missing = missing[:runLength(missing, found)]
		if err := q.fetch(p, made, missing, found); err != nil {
			q.notRead(made, at, err)
			return
		}
		q.mu.Lock()
		for each := range missing {
			if _, here := found[missing[each]]; !here {
				q.over(made, at+each, done) // retention has dropped it, which settles it
				found[missing[each]] = Message{}
			}
		}
		q.mu.Unlock()
	}
}

// perRecord spells out what is told of ranges. They were checked.
func perRecord(answer *pb.LeaseResponse) (deliveries, failures []int) {
	for at, count := range answer.GetDeliveries() {
		for range answer.GetRanges()[2*at+1] {
			deliveries = append(deliveries, int(count))
			failures = append(failures, int(answer.GetFailures()[at]))
		}
	}
	return deliveries, failures
}

// runLength gives how many of these offsets follow one another and are not here.
func runLength(offsets []int64, found map[int64]Message) int {
	for at, offset := range offsets {
		if _, here := found[offset]; here || offset != offsets[0]+int64(at) {
			return at
		}
	}
	return len(offsets)
}

// readBatch adds the records of a batch that came with a lease. False: it is not what its description says.
func (q *Queue) readBatch(p *queuePlace, found map[int64]Message, stored *pb.StoredBatch, payload []byte) bool {
	rows, err := decode(payload, q.view.schema)
	if err != nil {
		return false
	}
	defer rows.Release()
	described := &pb.StoredBatch{
		BaseOffset: stored.GetBaseOffset(), Partition: p.partition, TimestampUs: stored.GetTimestampUs()}
	messages, err := rowsOf(q.view, described, rows)
	if err != nil {
		return false
	}
	if stored.Kept == nil {
		for _, message := range messages {
			found[message.Offset] = message
		}
		return rows.NumRows() == int64(stored.GetRecordCount())
	}
	next := 0
	for bit := range 8 * len(stored.GetKept()) {
		if stored.GetKept()[bit/8]>>(bit%8)&1 == 0 {
			continue
		}
		if next == len(messages) {
			return false
		}
		messages[next].Offset = stored.GetBaseOffset() + int64(bit)
		found[messages[next].Offset] = messages[next]
		next++
	}
	return next == len(messages)
}

// fetch reads records that follow one another. Those that retention has dropped stay missing.
func (q *Queue) fetch(p *queuePlace, made *lease, offsets []int64, found map[int64]Message) error {
	first, end := offsets[0], offsets[len(offsets)-1]+1
	for attempt := 0; ; attempt++ {
		r, err := q.client.newRead(q.lending, q.view.name, p.partition, first, end, nil)
		if err == nil && r.topic.id != q.view.id {
			err = newError(pb.ErrorCode_UNKNOWN_TOPIC, "topic %q was deleted while its records were read", q.view.name)
		}
		if err == nil {
			var wrong error
			err = r.follow(q.lending, func(rows arrow.RecordBatch, _ error) bool {
				stored := &pb.StoredBatch{
					BaseOffset: r.position - rows.NumRows(), Partition: p.partition, TimestampUs: r.appendedUs}
				var messages []Message
				messages, wrong = rowsOf(r.topic, stored, rows)
				for _, message := range messages {
					found[message.Offset] = message
				}
				return wrong == nil
			})
			if wrong != nil {
				err = wrong
			}
		}
		if told, ours := err.(*Error); ours && told.Code == pb.ErrorCode_OFFSET_OUT_OF_RANGE && told.NextOffset > first {
			if first = told.NextOffset; first >= end {
				return nil
			}
			continue
		}
		if err == nil || !isRetriable(err) && CodeOf(err) != pb.ErrorCode_PARTITION_UNAVAILABLE {
			return err
		}
		if !pause(q.lending, attempt) {
			return err
		}
		q.mu.Lock()
		gone := made.open == 0
		q.mu.Unlock()
		if gone {
			return err
		}
	}
}

// notRead: records that cannot be read fail, and become dead letters in time. What the queue's end interrupts goes
// back.
func (q *Queue) notRead(l *lease, from int, err error) {
	if CodeOf(err) == pb.ErrorCode_UNKNOWN_TOPIC {
		q.fail(err)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	said := word{outcome: pb.Outcome_OUTCOME_FAIL, text: shortened("cannot be read: " + err.Error()), delay: -1}
	if q.lending.Err() != nil || isRetriable(err) {
		said = word{outcome: pb.Outcome_OUTCOME_RELEASE, delay: -1}
	}
	var left []int
	for at := from; at < len(l.states); at++ {
		if l.states[at] == waiting {
			left = append(left, at)
		}
	}
	q.say(l, left, said, nil)
}
