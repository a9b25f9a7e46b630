package tritonmq

import (
	"context"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"tritonmq/clients/go/pb"
)

// laneOf makes a lane of so many batches, and the stream on which it sends, without a network.
func laneOf(t *testing.T, batches, maxInFlight int) (*lane, []*outgoing, *stream) {
	t.Helper()
	client := &Client{topics: map[string]*topic{}}
	silent := &stream{wake: make(chan struct{}, 1), waiting: map[uint64]attempt{}}
	producer := &Producer{
		client: client, options: ProducerOptions{MaxInFlight: maxInFlight}, room: semaphore.NewWeighted(1 << 20),
		streams: map[string]*stream{"broker": silent},
	}
	l := &lane{producer: producer, key: laneKey{"t", 0}, wake: make(chan struct{}, 1)}
	var made []*outgoing
	for range batches {
		made = append(made, &outgoing{
			view: &topic{name: "t"}, uuid: NewUUID(), deadline: newDeadline(time.Minute), result: newResult()})
		l.add(made[len(made)-1])
	}
	return l, made, silent
}

// sent gives what the stream was given since it was last asked: for each request which batch it is and which one is
// named in `after`, -1 for none.
func sent(s *stream, batches []*outgoing) [][2]int {
	place := func(uuid []byte) int {
		return slices.IndexFunc(batches, func(batch *outgoing) bool { return slices.Equal(batch.uuid[:], uuid) })
	}
	var found [][2]int
	for _, request := range s.queue {
		found = append(found, [2]int{place(request.Header.Uuid), place(request.Header.After)})
	}
	s.queue = nil
	return found
}

func refused(code pb.ErrorCode) *pb.ProduceResult {
	return &pb.ProduceResult{Error: &pb.Error{Code: code}}
}

func TestEachBatchNamesTheUnansweredOneBeforeIt(t *testing.T) {
	l, batches, s := laneOf(t, 4, 3)
	check := func(what string, wanted ...[2]int) {
		t.Helper()
		l.notBefore = time.Time{}
		l.send("broker")
		if found := sent(s, batches); !slices.Equal(found, wanted) {
			t.Fatalf("%s: %v, wanted %v", what, found, wanted)
		}
	}
	check("as many as may be in flight", [2]int{0, -1}, [2]int{1, 0}, [2]int{2, 1})
	check("nothing twice")
	l.answered(batches[0], batches[0].attempt, &pb.ProduceResult{BaseOffset: 7, Duplicate: true})
	check("room for one more", [2]int{3, 2})
	l.answered(batches[1], batches[1].attempt, refused(pb.ErrorCode_NOT_ENOUGH_REPLICAS))
	l.answered(batches[2], batches[2].attempt, refused(pb.ErrorCode_OUT_OF_ORDER))
	check("again, in order; the one before is answered by now", [2]int{1, -1}, [2]int{2, 1})
	former := batches[3].attempt
	l.moveTo("another")
	l.moveTo("broker")
	check("all are called back from a broker that leads no more", [2]int{1, -1}, [2]int{2, 1}, [2]int{3, 2})
	l.answered(batches[3], former, refused(pb.ErrorCode_UNKNOWN_TOPIC))
	if len(l.batches) != 3 {
		t.Fatal("an answer to an attempt that was called back counts")
	}
	if place, err := batches[0].result.Wait(context.Background()); err != nil || place != (Place{0, 7, true}) {
		t.Fatal(place, err)
	}
}

func TestWhatIsNotKnownIsNotCalledRefused(t *testing.T) {
	for name, c := range map[string]struct {
		errors []pb.ErrorCode
		code   pb.ErrorCode
	}{
		"refused": {[]pb.ErrorCode{pb.ErrorCode_BATCH_TOO_LARGE}, pb.ErrorCode_BATCH_TOO_LARGE},
		"lost, then refused": {
			[]pb.ErrorCode{pb.ErrorCode_UNREACHABLE, pb.ErrorCode_QUOTA_EXCEEDED}, pb.ErrorCode_OUTCOME_UNKNOWN},
		"never sent, no more time": {nil, pb.ErrorCode_UNREACHABLE},
		"full, no more time":       {[]pb.ErrorCode{pb.ErrorCode_DISK_FULL}, pb.ErrorCode_DISK_FULL},
		"lost, no more time":       {[]pb.ErrorCode{pb.ErrorCode_UNREACHABLE}, pb.ErrorCode_OUTCOME_UNKNOWN},
	} {
		l, batches, _ := laneOf(t, 1, 1)
		for _, code := range c.errors {
			l.send("broker")
			l.answered(batches[0], batches[0].attempt, refused(code))
		}
		if len(l.batches) > 0 {
			l.giveUp(batches[0])
		}
		_, err := batches[0].result.Wait(context.Background())
		found, _ := err.(*Error)
		if CodeOf(err) != c.code || found.Definite != (c.code != pb.ErrorCode_OUTCOME_UNKNOWN) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
