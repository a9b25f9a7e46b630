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

// lease is what one lease has. The queue's mu guards it.
type lease struct {
	place    *queuePlace
	id       leaseID
	offsets  []int64
	states   []recordState
	open     int // neither done nor lost
	ordered  bool
	time     time.Duration
	extendAt time.Time
	bytes    int64 // of each record
}

const offsetMax = 1 << 62

// fromGaps reads ranges: of each the gap behind the one before, and its length. False: they cannot be, or name more
// than so many records.
func fromGaps(gaps []uint64, recordsMax int) ([][2]int64, bool) {
	if len(gaps)%2 != 0 {
		return nil, false
	}
	var found [][2]int64
	at, records := uint64(0), uint64(0)
	for pair := range slices.Chunk(gaps, 2) {
		if pair[0] > offsetMax || pair[1] > uint64(recordsMax) || pair[1] < 1 {
			return nil, false
		}
		first := at + pair[0]
		at = first + pair[1]
		if records += pair[1]; at > offsetMax || records > uint64(recordsMax) {
			return nil, false
		}
		found = append(found, [2]int64{int64(first), int64(at)})
	}
	return found, true
}

func spelledOut(ranges [][2]int64) []int64 {
	var offsets []int64
	for _, each := range ranges {
		for offset := each[0]; offset < each[1]; offset++ {
			offsets = append(offsets, offset)
		}
	}
	return offsets
}

// runsOf gives the ranges of offsets that ascend.
func runsOf(offsets []int64) [][2]int64 {
	var found [][2]int64
	for _, offset := range offsets {
		if last := len(found) - 1; last >= 0 && found[last][1] == offset {
			found[last][1]++
		} else {
			found = append(found, [2]int64{offset, offset + 1})
		}
	}
	return found
}

// toGaps is the reverse of fromGaps, of offsets that ascend.
func toGaps(offsets []int64) []uint64 {
	var gaps []uint64
	before := int64(0)
	for _, run := range runsOf(offsets) {
		gaps = append(gaps, uint64(run[0]-before), uint64(run[1]-run[0]))
		before = run[1]
	}
	return gaps
}

func (l *lease) wire() *pb.LeaseId {
	return &pb.LeaseId{
		LeaderEpoch: l.id.leaderEpoch, Entry: l.id.entry, Step: l.id.step}
}

// readLease makes a lease of an answer to a request for so many records. nil: nothing was lent. False: it makes no
// sense.
func readLease(p *queuePlace, answer *pb.LeaseResponse, recordsMax int, now time.Time) (*lease, bool) {
	told := answer.GetLease()
	if told == nil {
		return nil, len(answer.GetRanges()) == 0
	}
	ranges, ok := fromGaps(answer.GetRanges(), recordsMax)
	if !ok || len(ranges) == 0 || len(answer.GetDeliveries()) != len(ranges) || len(answer.GetFailures()) != len(ranges) {
		return nil, false
	}
	offsets := spelledOut(ranges)
	duration := time.Duration(max(answer.GetLeaseMs(), 1)) * time.Millisecond
	made := &lease{
		place: p, id: leaseIDOf(told), offsets: offsets, states: make([]recordState, len(offsets)), open: len(offsets),
		ordered: answer.GetOrder() != pb.QueueOrder_ORDER_NONE, time: duration, extendAt: now.Add(duration / 3),
	}
	return made, p.leases[made.id] == nil
}

func leaseIDOf(told *pb.LeaseId) leaseID {
	return leaseID{told.GetLeaderEpoch(), told.GetEntry(), told.GetStep()}
}

// places gives where these offsets are in the lease. False: the lease does not have all of them.
func (l *lease) places(offsets []int64) ([]int, bool) {
	var found []int
	for _, offset := range offsets {
		at, has := slices.BinarySearch(l.offsets, offset)
		if !has {
			return nil, false
		}
		found = append(found, at)
	}
	return found, true
}
