package tritonmq

import (
	"cmp"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"

	"tritonmq/clients/go/pb"
)

const staysMax = 4 // how often in a row a leader is given the credit that outcomes set free there, before others

// credit is what may be lent, or was.
type credit struct {
	records int
	bytes   int64
}

func (c credit) less(other credit) credit {
	return credit{c.records - other.records, c.bytes - other.bytes}
}

func (c credit) plus(other credit) credit {
	return credit{c.records + other.records, c.bytes + other.bytes}
}

// part is so much of it, and never nothing.
func (c credit) part(of, all int) credit {
	return credit{(c.records*of + all - 1) / all, max(1, c.bytes/int64(all)*int64(of))}
}

// out is what the leader may still lend.
func (s *workSession) out() credit {
	if out := s.credit.less(s.lent); out.records > 0 && out.bytes > 0 {
		return out
	}
	return credit{}
}

// freed is how many records it may lend because it has heard of outcomes by then.
func (s *workSession) freed() int { return max(0, s.sent-s.out().records) }

// share hands out what is free of the credit. While no leader has more than its credit allows, half of it is spread over
// all of them, so that what comes is lent at once. Else those that have more are given all that is free, in large pieces,
// since each lease is an entry in the journal. Where a small credit lies with others it is taken back.
func (q *Queue) share() {
	if q.isClosing || q.err != nil {
		return
	}
	whole := credit{q.options.InFlight, q.options.InFlightBytes}
	free, hungry, coming := whole.less(q.held), q.waiting == 0, false
	var open, ready []*workSession
	for step := range q.places {
		s := q.places[(q.giveTo+step)%len(q.places)].session
		if s == nil {
			continue
		}
		out := s.out()
		free = free.less(credit{max(0, out.records-s.sent), out.bytes})
		open = append(open, s)
		if s.ready {
			ready = append(ready, s)
		}
		coming = coming || s.sent > 0 || s.ready && out.records > 0
	}
	give := func(s *workSession, most, least credit) bool {
		out := s.out()
		more := credit{min(most.records-out.records, free.records+s.freed()), min(most.bytes-out.bytes, free.bytes)}
		if s.recalled >= 0 || more.records < least.records || more.bytes < least.bytes {
			return false
		}
		free = free.less(credit{max(0, more.records-s.freed()), more.bytes})
		s.credit = s.lent.plus(out).plus(more)
		s.request().Credit = &pb.WorkCredit{Records: int64(s.credit.records), Bytes: s.credit.bytes, Watch: true}
		coming = true
		return true
	}
	if len(ready) == 0 {
		half, count := whole.part(1, 2), len(q.places)
		for _, s := range open {
			at := (int(s.place.partition) - q.start + count) % count
			own := (half.records + count - 1 - at) / count
			if own > 0 && 2*s.out().records <= own {
				give(s, half.part(own, half.records), credit{1, 1})
			}
		}
		return
	}
	piece := whole
	if hungry && len(ready) > 1 {
		piece = whole.part(1, 2)
	}
	least := piece.part(1, 2)
	if hungry && !coming {
		least = credit{1, 1}
	}
	for _, s := range ready {
		if s.sent == 0 {
			s.stays = 0
		}
		if (s.stays < staysMax || len(ready) == 1) && give(s, piece, least) { // else it is another one's turn
			s.stays++
			q.giveTo = (int(s.place.partition) + 1) % len(q.places)
		}
	}
	for _, s := range open {
		if hungry && !coming && !s.ready && s.out().records > 0 && s.recalled < 0 {
			s.recalled = s.lent.records
			s.request().Credit = &pb.WorkCredit{
				Records: int64(s.recalled), Bytes: s.credit.bytes, Watch: true, Recall: true}
		}
	}
}

// delivery is a lease as it came.
type delivery struct {
	lease   *lease
	batches []*pb.StoredBatch
	payload []byte
}

// lent takes a lease. One that makes no sense, or passes the credit, is an error.
func (q *Queue) lent(s *workSession, told *pb.LeaseResponse, bytes uint64, payload []byte) error {
	p := s.place
	made, ok := q.newLease(p, told, s.credit.less(s.lent).records)
	if !ok || bytes > batchDecodedBytesMax {
		return malformed(s.stream.address, "it lent what it had no credit for")
	}
	count := len(made.records)
	s.lent = s.lent.plus(credit{count, int64(bytes)})
	made.bytes = max(int64(bytes), int64(len(payload))) / int64(count)
	p.leases[made.id], p.failures = made, 0
	q.held = q.held.plus(credit{count, made.bytes * int64(count)})
	if q.held.bytes > 2*q.options.InFlightBytes+int64(len(q.places))*messageBytesMax { // the last message may go beyond it
		return malformed(s.stream.address, "%d bytes are more than there was credit for", q.held.bytes)
	}
	if q.isClosing || q.err != nil {
		q.sayAll(release, made.records)
		return nil
	}
	p.unread = append(p.unread, delivery{made, told.GetBatches(), payload})
	q.readNext(p)
	return nil
}

// readNext reads the rows of one lease after the other, so that they can be taken in order.
func (q *Queue) readNext(p *queuePlace) {
	if p.reading || len(p.unread) == 0 {
		return
	}
	p.reading = true
	next, view := p.unread[0], q.view
	p.unread = p.unread[1:]
	q.running.Go(func() {
		whole, err := next.read(view)
		q.do(func() {
			p.reading = false
			q.shelve(next.lease, whole, err)
			q.readNext(p)
		})
	})
}

// shelve puts the records of a lease where they can be taken. whole: so many, the first ones, were read. Those that
// cannot be read fail, and become dead letters in time. What the queue's end interrupts goes back.
func (q *Queue) shelve(l *lease, whole int, err error) {
	q.stirred = true
	for _, record := range l.records[:whole] {
		if record.Topic == "" {
			q.end(record, done) // retention has dropped it, which settles it
		} else {
			l.place.ready = append(l.place.ready, record)
			q.waiting++
		}
	}
	if CodeOf(err) == pb.ErrorCode_UNKNOWN_TOPIC {
		q.fail(err)
		return
	}
	for _, record := range l.records[whole:] {
		switch {
		case record.state != waiting:
		case isRetriable(err):
			q.say(release, said{record, nil})
		default:
			text := shortened("cannot be read: " + err.Error())
			q.say(word{outcome: pb.Outcome_OUTCOME_FAIL, text: text, delay: -1}, said{record, nil})
		}
	}
}

// read takes rows from what came with a lease, and fetches the others. It gives how many records, the first ones, are
// read or not kept any more. err: why the next one could not be read.
func (d delivery) read(view *topic) (whole int, err error) {
	decoded, payload := int64(0), d.payload
	for _, stored := range d.batches {
		own := payload[:stored.GetPayloadBytes()]
		payload = payload[len(own):]
		if decoded += decodedBytes(own); decoded > batchDecodedBytesMax || !d.lease.readBatch(view, stored, own) {
			break // it is fetched, which tells what is wrong
		}
	}
	records := d.lease.records
	for whole < len(records) {
		end := whole
		for end < len(records) && records[end].Topic == "" && records[end].offset-records[whole].offset == int64(end-whole) {
			end++
		}
		if end > whole {
			if err := d.lease.fetch(view, records[whole].offset, records[end-1].offset+1); err != nil {
				return whole, err
			}
		}
		whole = max(end, whole+1)
	}
	return whole, nil
}

// put has the records of a lease have what is in those of these messages that are theirs.
func (l *lease) put(messages []Message) {
	for _, message := range messages {
		if record := l.record(message.Offset); record != nil {
			record.Message = message
		}
	}
}

// readBatch reads a batch that came with a lease. False: it is not what its description says.
func (l *lease) readBatch(view *topic, stored *pb.StoredBatch, payload []byte) bool {
	rows, err := decode(payload, view.schema)
	if err != nil {
		return false
	}
	defer rows.Release()
	described := &pb.StoredBatch{
		BaseOffset: stored.GetBaseOffset(), Partition: l.place.partition, TimestampUs: stored.GetTimestampUs()}
	messages, err := rowsOf(view, described, rows)
	if err != nil {
		return false
	}
	if stored.Kept != nil {
		next := 0
		for bit := range 8 * len(stored.GetKept()) {
			if stored.GetKept()[bit/8]>>(bit%8)&1 == 0 {
				continue
			}
			if next == len(messages) {
				return false
			}
			messages[next].Offset = stored.GetBaseOffset() + int64(bit)
			next++
		}
		if next != len(messages) {
			return false
		}
	} else if len(messages) != int(stored.GetRecordCount()) {
		return false
	}
	l.put(messages)
	return true
}

// fetch reads records that follow one another. Those that retention has dropped stay missing.
func (l *lease) fetch(view *topic, first, end int64) error {
	for {
		r, err := l.queue.client.newRead(l.queue.ctx, view.name, l.place.partition, first, end, nil)
		if err == nil && r.topic.id != view.id {
			err = newError(pb.ErrorCode_UNKNOWN_TOPIC, "topic %q was deleted while its records were read", view.name)
		}
		if err != nil {
			return err
		}
		var wrong error
		err = r.follow(l.queue.ctx, func(rows arrow.RecordBatch, _ error) bool {
			stored := &pb.StoredBatch{
				BaseOffset: r.position - rows.NumRows(), Partition: l.place.partition, TimestampUs: r.appendedUs}
			var messages []Message
			messages, wrong = rowsOf(r.topic, stored, rows)
			l.put(messages)
			return wrong == nil
		})
		var told *Error
		if wrong != nil || !errors.As(err, &told) || told.Code != pb.ErrorCode_OFFSET_OUT_OF_RANGE || told.NextOffset <= first {
			return cmp.Or(wrong, err)
		}
		if first = told.NextOffset; first >= end {
			return nil
		}
	}
}
