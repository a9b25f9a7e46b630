package tritonmq

import (
	"slices"
	"time"

	"tritonmq/clients/go/pb"
)

// recordState is how far a record is that was lent.
type recordState uint8

const (
	waiting     recordState = iota
	begunLately             // handed out since its lease was last extended
	begun
	settling // it has an outcome, which has no answer
	done
	lost
)

// leaseID is where a lease was written. Later ones of a partition are higher.
type leaseID struct {
	leaderEpoch uint64
	entry       uint64
	step        uint32
}

// lease is what one lease has.
type lease struct {
	queue     *Queue
	place     *queuePlace
	id        leaseID
	records   []*QueueRecord // by offset
	open      int            // records that are neither done nor lost
	ordered   bool
	time      time.Duration
	extendAt  time.Time
	extending bool  // an extension has no answer
	bytes     int64 // of each record
}

const offsetMax = 1 << 62

// fromGaps reads ranges: of each the gap behind the one before, and its length. False: they cannot be, or name more
// than so many records.
func fromGaps(gaps []uint64, recordsMax int) (offsets []int64, ok bool) {
	at := uint64(0)
	for pair := range slices.Chunk(gaps, 2) {
		if len(pair) < 2 || pair[0] > offsetMax || pair[1] < 1 || pair[1] > uint64(recordsMax-len(offsets)) {
			return nil, false
		}
		if at += pair[0]; at > offsetMax {
			return nil, false
		}
		for range pair[1] {
			offsets = append(offsets, int64(at))
			at++
		}
	}
	return offsets, true
}

// toGaps is the reverse of fromGaps, of offsets that ascend. One may be there twice.
func toGaps(offsets []int64) (gaps []uint64) {
	end := int64(0)
	for _, offset := range offsets {
		switch {
		case len(gaps) > 0 && offset == end:
			gaps[len(gaps)-1]++
		case len(gaps) > 0 && offset < end:
			continue
		default:
			gaps = append(gaps, uint64(offset-end), 1)
		}
		end = offset + 1
	}
	return gaps
}

// newLease makes a lease of what a leader has lent, which had credit for so many records. False: it makes no sense.
func (q *Queue) newLease(p *queuePlace, told *pb.LeaseResponse, recordsMax int) (*lease, bool) {
	offsets, ok := fromGaps(told.GetRanges(), max(0, recordsMax))
	ranges := len(told.GetRanges()) / 2
	if told.GetLease() == nil || !ok || ranges == 0 || len(told.GetDeliveries()) != ranges ||
		len(told.GetFailures()) != ranges {
		return nil, false
	}
	duration := time.Duration(max(told.GetLeaseMs(), 1)) * time.Millisecond
	made := &lease{
		queue: q, place: p, id: leaseIDOf(told.GetLease()), open: len(offsets), time: duration,
		ordered: told.GetOrder() != pb.QueueOrder_ORDER_NONE, extendAt: time.Now().Add(duration / 3),
	}
	for number, deliveries := range told.GetDeliveries() {
		for range told.GetRanges()[2*number+1] {
			made.records = append(made.records, &QueueRecord{
				Deliveries: int(deliveries), Failures: int(told.GetFailures()[number]), lease: made,
				offset: offsets[len(made.records)]})
		}
	}
	return made, p.leases[made.id] == nil
}

func leaseIDOf(told *pb.LeaseId) leaseID {
	return leaseID{told.GetLeaderEpoch(), told.GetEntry(), told.GetStep()}
}

func (l *lease) wire() *pb.LeaseId {
	return &pb.LeaseId{LeaderEpoch: l.id.leaderEpoch, Entry: l.id.entry, Step: l.id.step}
}

// record gives the one at an offset. nil: the lease never had it.
func (l *lease) record(offset int64) *QueueRecord {
	at, has := slices.BinarySearchFunc(l.records, offset, func(r *QueueRecord, offset int64) int {
		return int(min(max(r.offset-offset, -1), 1))
	})
	if !has {
		return nil
	}
	return l.records[at]
}

// named gives the records that a leader names. False: the lease never had some of them.
func (l *lease) named(gaps []uint64) (found []*QueueRecord, ok bool) {
	offsets, ok := fromGaps(gaps, len(l.records))
	for _, offset := range offsets {
		found = append(found, l.record(offset))
	}
	return found, ok && !slices.Contains(found, nil)
}

// in gives the records in these states.
func (l *lease) in(least, most recordState) (found []*QueueRecord) {
	for _, record := range l.records {
		if record.state >= least && record.state <= most {
			found = append(found, record)
		}
	}
	return found
}
