package tritonmq

import (
	"fmt"
	"testing"
)

// sharing is a queue with a session for each of so many partitions, which nobody hears.
func sharing(inFlight, partitions int) *Queue {
	q := &Queue{options: QueueOptions{InFlight: inFlight, InFlightBytes: 1 << 20}}
	stream := &workStream{queue: q}
	for partition := range partitions {
		place := &queuePlace{partition: int32(partition)}
		place.session = &workSession{stream: stream, place: place, recalled: -1}
		q.places = append(q.places, place)
	}
	return q
}

// shared shares, and gives how many records each leader may lend, those that are taken back as below 0.
func (q *Queue) shared() string {
	q.share()
	var found []int
	for _, place := range q.places {
		out := place.session.out().records
		if place.session.recalled >= 0 {
			out = -out
		}
		found = append(found, out)
	}
	return fmt.Sprint(found)
}

func TestCreditIsSharedAndGoesWhereRecordsAre(t *testing.T) {
	expect := func(q *Queue, wanted string) {
		t.Helper()
		if found := q.shared(); found != wanted {
			t.Errorf("%s, not %s", found, wanted)
		}
	}
	lends := func(q *Queue, partition, records int, ready bool) {
		s := q.places[partition].session
		s.lent = s.lent.plus(credit{records, int64(records)})
		s.ready = ready
		q.held = q.held.plus(credit{records, int64(records)})
	}

	many := sharing(1_000, 4)
	expect(many, "[125 125 125 125]")
	lends(many, 0, 125, true) // all that is free goes where there is more
	expect(many, "[500 125 125 125]")
	many.held = credit{}
	lends(many, 0, 500, true)
	many.waiting = 500 // while the program is busy, nothing goes in small pieces
	expect(many, "[0 125 125 125]")

	one := sharing(1, 3)
	expect(one, "[1 0 0]")
	one.places[2].session.ready = true // it is taken back where nothing comes
	expect(one, "[-1 0 0]")
	first := one.places[0].session
	first.credit.records, first.recalled = first.recalled, -1
	expect(one, "[0 0 1]")
	lends(one, 2, 1, true)
	expect(one, "[0 0 0]")
	one.places[1].session.ready = true
	for range staysMax { // who hears of an outcome may lend another one at once
		one.places[2].session.sent = 1
		expect(one, "[0 0 1]")
		one.held, one.places[2].session.sent = credit{}, 0
		lends(one, 2, 1, true)
	}
	one.places[2].session.sent = 1
	expect(one, "[0 0 0]")
	one.held, one.places[2].session.sent = credit{}, 0
	expect(one, "[0 1 0]")
}
