package tritonmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"tritonmq/clients/go/pb"
)

// These tests need a cluster, as those of cluster_test.go do.

// publishAll publishes values as records of the topic records, one after the other, each to a partition.
func publishAll(ctx context.Context, t *testing.T, client *Client, partition int32, values ...string) (first int64) {
	t.Helper()
	producer := producerOf(t, client)
	for at, value := range values {
		place, err := producer.Publish(ctx, "records", Record{Value: []byte(value)}, Partition(partition)).Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if at == 0 {
			first = place.Offset
		}
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return first
}

// some takes so many records of partition 2.
func some(t *testing.T, s *Subscription, count int, settle bool) (values []string) {
	t.Helper()
	for message, err := range s.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if message.Partition != 2 {
			continue
		}
		if settle {
			if err := s.Settle(message); err != nil {
				t.Fatal(err)
			}
		}
		if values = append(values, string(message.Value)); len(values) == count {
			break
		}
	}
	return values
}

func TestAGroupGoesOnWhereItsLastMemberHasSettled(t *testing.T) {
	ctx, client := dialled(t)
	first := publishAll(ctx, t, client, 2, "a", "b", "c", "d")
	join := func() *Subscription {
		t.Helper()
		found, err := client.Subscribe(ctx, []string{"records"}, Group("goes on"), From(first))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	former := join()
	taken := some(t, former, 2, true)
	if err := former.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	taken = append(taken, some(t, former, 1, false)...) // not settled: it comes again
	former.cancel()                                     // as if the process had died
	former.running.Wait()
	next := join()
	taken = append(taken, some(t, next, 2, true)...)
	if text := fmt.Sprint(taken); text != "[a b c c d]" {
		t.Error(text)
	}
	if err := next.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for message, err := range next.Records() {
		t.Error(message, err)
	}
	if err := next.Settle(Message{}); CodeOf(err) != pb.ErrorCode_INVALID_REQUEST {
		t.Error(err)
	}
}

func TestWithoutAGroupEveryRecordComesAndRowsHaveTheirColumns(t *testing.T) {
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	place, err := producer.PublishBatch(ctx, "numbers", counted(t, 7, 10), Partition(1)).Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	subscription, err := client.Subscribe(ctx, []string{"numbers"}, From(Latest))
	if err != nil {
		t.Fatal(err)
	}
	alone, err := client.Subscribe(ctx, []string{"numbers"}, From(Earliest), BufferBytes(1)) // a batch at a time
	if err != nil {
		t.Fatal(err)
	}
	again, err := producer.PublishBatch(ctx, "numbers", counted(t, 10, 12), Partition(1)).Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for message, err := range subscription.Records() {
		if err != nil || message.Offset != again.Offset || message.Row.Column(0).(*array.Int64).Value(0) != 10 {
			t.Fatal(message, err)
		}
		break
	}
	var found []string
	for message, err := range alone.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if message.Partition == 1 && message.Offset >= place.Offset {
			found = append(found, message.Row.Column(1).ValueStr(0))
		}
		if message.Partition == 1 && message.Offset == again.Offset+1 {
			break
		}
	}
	if text := fmt.Sprint(found); text != "[7 8 (null) 10 11]" {
		t.Error(text)
	}
	for _, each := range []*Subscription{subscription, alone} {
		if err := each.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAContextThatEndsEndsWhatWaits(t *testing.T) {
	ctx, client := dialled(t)
	mine, cancel := context.WithCancel(ctx)
	subscription, err := client.Subscribe(mine, []string{"records"}, Group("cancelled"))
	if err != nil {
		t.Fatal(err)
	}
	queue, err := client.OpenQueue(mine, "numbers", "cancelled", QueueOptions{Filter: "n > 1000000000"})
	if err != nil {
		t.Fatal(err)
	}
	go cancel()
	for _, err := range subscription.Records() {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for _, err := range queue.Records() {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	subscription.running.Wait()
	<-queue.over
	if _, err := client.Subscribe(mine, []string{"records"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestWhatASubscriptionIsNotGivenIsSaid(t *testing.T) {
	ctx, client := dialled(t)
	for name, c := range map[string]struct {
		topics  []string
		options []SubscribeOption
		code    pb.ErrorCode
	}{
		"topic":   {[]string{"nowhere"}, nil, pb.ErrorCode_UNKNOWN_TOPIC},
		"none":    {nil, nil, pb.ErrorCode_INVALID_SETTING},
		"start":   {[]string{"records"}, []SubscribeOption{From(-3)}, pb.ErrorCode_INVALID_SETTING},
		"member":  {[]string{"records"}, []SubscribeOption{Group("g"), Member("")}, pb.ErrorCode_INVALID_SETTING},
		"a queue": {[]string{"numbers"}, []SubscribeOption{Group("worked off")}, pb.ErrorCode_WRONG_GROUP_KIND},
	} {
		if name == "a queue" {
			if _, err := client.DeclareQueue(ctx, "numbers", "worked off", nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.Subscribe(ctx, c.topics, c.options...); CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, options := range map[string]QueueOptions{
		"in flight": {InFlight: -1}, "lease": {Lease: time.Millisecond}, "working": {Working: -1},
	} {
		if _, err := client.OpenQueue(ctx, "numbers", "worked off", options); CodeOf(err) != pb.ErrorCode_INVALID_SETTING {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAMemberIsLentNoMoreThanItMayHold(t *testing.T) {
	ctx, client := dialled(t)
	publishAll(ctx, t, client, 0, "one", "two", "three")
	if made, err := client.DeclareQueue(ctx, "records", "few", map[string]string{"lease_ms": "30s"}); err != nil || !made {
		t.Fatal(made, err)
	}
	open := func(options QueueOptions) *Queue {
		t.Helper()
		found, err := client.OpenQueue(ctx, "records", "few", options)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	take := func(queue *Queue) *QueueRecord {
		t.Helper()
		found, err := queue.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	first, second := open(QueueOptions{InFlight: 1}), open(QueueOptions{InFlight: 1})
	held, other := take(first), take(second)
	if held.Partition == other.Partition && held.Offset == other.Offset {
		t.Error("both members were lent one record")
	}
	if err := held.Extend().Wait(ctx); err != nil {
		t.Error(err)
	}
	if err := held.Ack().Wait(ctx); err != nil {
		t.Error(err)
	}
	if err := held.Ack().Wait(ctx); CodeOf(err) != pb.ErrorCode_INVALID_REQUEST {
		t.Error(err)
	}
	if third := take(first); third.Deliveries != 1 || third.Partition == held.Partition && third.Offset == held.Offset {
		t.Error(third)
	}
	if err := first.Close(ctx); err != nil { // what it holds goes back
		t.Fatal(err)
	}
	if err := other.Release(After(0)).Wait(ctx); err != nil {
		t.Error(err)
	}
	type where struct {
		partition int32
		offset    int64
	}
	var left []where
	for record, err := range second.Records() {
		if err != nil || record.Failures != 0 {
			t.Fatal(record, err)
		}
		if err := record.Ack().Wait(ctx); err != nil {
			t.Fatal(err)
		}
		left = append(left, where{record.Partition, record.Offset})
		if _, end, err := client.Offsets(ctx, "records", 0); err != nil || record.Partition == 0 && record.Offset == end-1 {
			break
		}
	}
	if slices.Contains(left, where{held.Partition, held.Offset}) {
		t.Error("a record that was done came again")
	}
	if err := second.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Take(ctx); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := other.Ack().Wait(ctx); err == nil {
		t.Error("a record without a lease was settled")
	}
}
