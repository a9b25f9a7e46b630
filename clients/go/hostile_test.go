package tritonmq

import (
	"context"
	"math"
	"net"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"

	"tritonmq/clients/go/pb"
)

// hostile is a broker that leads the only partition of the topic t, with the queue q, and answers what a test has it
// answer: a real one sends nothing of this.
type hostile struct {
	pb.UnimplementedBrokerServer
	address string
	lease   *pb.LeaseResponse
	settle  *pb.SettleResponse
	move    *pb.MoveCursorsResponse
	groups  *pb.GroupsResponse
	push    []*pb.BatchesResponse
	fetch   *pb.BatchesResponse
	schema  []byte
}

func (h *hostile) Metadata(context.Context, *pb.MetadataRequest) (*pb.MetadataResponse, error) {
	return &pb.MetadataResponse{
		Brokers: []*pb.BrokerInfo{{Id: 1, Address: h.address}},
		Topics: []*pb.TopicInfo{{Name: "t", TopicId: "1", Schema: h.schema, Partitions: []*pb.PartitionInfo{
			{Partition: 0, Leader: 1, LeaderEpoch: 3, Replicas: []int32{1}}}}},
	}, nil
}

func (h *hostile) Fetch(_ *pb.FetchRequest, call grpc.ServerStreamingServer[pb.BatchesResponse]) error {
	return call.Send(h.fetch)
}

func (h *hostile) Queues(context.Context, *pb.QueuesRequest) (*pb.QueuesResponse, error) {
	return &pb.QueuesResponse{Queues: []*pb.QueueInfo{{Topic: "t", Group: "q"}}}, nil
}

func (h *hostile) Lease(ctx context.Context, request *pb.LeaseRequest) (*pb.LeaseResponse, error) {
	if request.GetRecordsMax() == 0 || len(request.GetHeld()) > 0 || h.lease == nil {
		select { // as one that has nothing to lend
		case <-ctx.Done():
		case <-time.After(time.Duration(request.GetWaitMs()) * time.Millisecond):
		}
		return &pb.LeaseResponse{}, nil
	}
	return h.lease, nil
}

func (h *hostile) Settle(context.Context, *pb.SettleRequest) (*pb.SettleResponse, error) {
	return h.settle, nil
}

func (h *hostile) MoveCursors(context.Context, *pb.MoveCursorsRequest) (*pb.MoveCursorsResponse, error) {
	return h.move, nil
}

func (h *hostile) Groups(context.Context, *pb.GroupsRequest) (*pb.GroupsResponse, error) {
	return h.groups, nil
}

func (h *hostile) Subscribe(call grpc.BidiStreamingServer[pb.SubscribeRequest, pb.BatchesResponse]) error {
	for _, message := range h.push {
		if err := call.Send(message); err != nil {
			return err
		}
	}
	<-call.Context().Done()
	return nil
}

func (h *hostile) serve(t *testing.T) (context.Context, *Client) {
	t.Helper()
	return h.serveAs(t, h)
}

// serveAs has another one answer, which is a hostile one and more.
func (h *hostile) serveAs(t *testing.T, as pb.BrokerServer) (context.Context, *Client) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = listener.Addr().String()
	server := grpc.NewServer()
	pb.RegisterBrokerServer(server, as)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	client, err := Dial(ctx, h.address, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return ctx, client
}

// stored gives records of the topic t from an offset on, and their payload.
func stored(t *testing.T, offset int64, values ...string) (*pb.StoredBatch, []byte) {
	t.Helper()
	batch := &openBatch{builder: array.NewRecordBuilder(memory.DefaultAllocator, RecordSchema)}
	for _, value := range values {
		batch.append(Record{Value: []byte(value)})
	}
	payload, err := encode(batch.builder.NewRecordBatch())
	if err != nil {
		t.Fatal(err)
	}
	return &pb.StoredBatch{Topic: "t", BaseOffset: offset, RecordCount: uint32(len(values)),
		PayloadBytes: uint32(len(payload))}, payload
}

func lent(t *testing.T) *pb.LeaseResponse {
	t.Helper()
	batch, payload := stored(t, 0, "a", "b")
	return &pb.LeaseResponse{
		Lease: &pb.LeaseId{LeaderEpoch: 3, Entry: 7}, Ranges: []uint64{0, 2}, Deliveries: []uint32{1},
		Failures: []uint32{0}, LeaseMs: 60_000, Batches: []*pb.StoredBatch{batch}, Payload: payload,
	}
}

func TestAMalformedAnswerIsNeverTakenForAnOutcome(t *testing.T) {
	one := func(answer *pb.SettleAnswer) *pb.SettleResponse {
		return &pb.SettleResponse{Answers: []*pb.SettleAnswer{answer}}
	}
	lost := func(gaps ...uint64) *pb.SettleResponse { return one(&pb.SettleAnswer{Lost: gaps}) }
	for name, c := range map[string]struct {
		answer *pb.SettleResponse
		code   pb.ErrorCode
	}{
		"done":                        {lost(), pb.ErrorCode_OK},
		"lost":                        {lost(0, 1), pb.ErrorCode_LEASE_LOST},
		"no answer":                   {&pb.SettleResponse{}, pb.ErrorCode_INTERNAL},
		"two answers":                 {&pb.SettleResponse{Answers: []*pb.SettleAnswer{{}, {}}}, pb.ErrorCode_INTERNAL},
		"a range without a length":    {lost(0), pb.ErrorCode_INTERNAL},
		"a range of nothing":          {lost(0, 0), pb.ErrorCode_INTERNAL},
		"a range without an end":      {lost(0, math.MaxUint64), pb.ErrorCode_INTERNAL},
		"a range behind all offsets":  {lost(math.MaxUint64, 1), pb.ErrorCode_INTERNAL},
		"a record not asked about":    {lost(1, 1), pb.ErrorCode_INTERNAL},
		"a record of no lease":        {lost(5, 1), pb.ErrorCode_INTERNAL},
		"more than was asked about":   {lost(0, 2), pb.ErrorCode_INTERNAL},
		"an error without a code":     {one(&pb.SettleAnswer{Error: &pb.Error{}}), pb.ErrorCode_INTERNAL},
		"an error of another release": {one(&pb.SettleAnswer{Error: &pb.Error{Code: 9999}}), pb.ErrorCode_INTERNAL},
		"nonsense that went back": {one(&pb.SettleAnswer{Pulled: []*pb.PulledRecords{
			{Lease: &pb.LeaseId{LeaderEpoch: 3, Entry: 7}, Ranges: []uint64{9, 1}}}}), pb.ErrorCode_INTERNAL},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, client := (&hostile{lease: lent(t), settle: c.answer}).serve(t)
			queue, err := client.OpenQueue(ctx, "t", "q", QueueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			record, err := queue.Take(ctx)
			if err != nil || record.Offset != 0 || string(record.Value) != "a" {
				t.Fatal(record, err)
			}
			err = record.Ack().Wait(ctx)
			if CodeOf(err) != c.code || (err == nil) != (c.code == pb.ErrorCode_OK) {
				t.Error(err)
			}
			queue.cancel()
			queue.running.Wait()
			queue.lenders.Wait()
		})
	}
}

func TestInOrderTheNextRecordIsHandedOutOnceTheOneBeforeIsSettled(t *testing.T) {
	answer := lent(t)
	answer.Order = pb.QueueOrder_ORDER_KEY
	done := &pb.SettleResponse{Answers: []*pb.SettleAnswer{{}}}
	ctx, client := (&hostile{lease: answer, settle: done}).serve(t)
	queue, err := client.OpenQueue(ctx, "t", "q", QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record, err := queue.Take(ctx)
	if err != nil || record.Offset != 0 {
		t.Fatal(record, err)
	}
	queue.mu.Lock()
	if early := queue.next(); early != nil {
		t.Error(early)
	}
	queue.mu.Unlock()
	if err := record.Ack().Wait(ctx); err != nil {
		t.Error(err)
	}
	if record, err = queue.Take(ctx); err != nil || record.Offset != 1 {
		t.Error(record, err)
	}
	if err := queue.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestALeaseThatMakesNoSenseEndsTheQueue(t *testing.T) {
	for name, change := range map[string]func(*pb.LeaseResponse){
		"more than was asked for": func(l *pb.LeaseResponse) { l.Ranges = []uint64{0, 1001} },
		"no records":              func(l *pb.LeaseResponse) { l.Ranges, l.Deliveries, l.Failures = nil, nil, nil },
		"half a range":            func(l *pb.LeaseResponse) { l.Ranges = []uint64{0} },
		"no deliveries":           func(l *pb.LeaseResponse) { l.Deliveries = nil },
		"records of no lease":     func(l *pb.LeaseResponse) { l.Lease = nil },
	} {
		t.Run(name, func(t *testing.T) {
			answer := lent(t)
			change(answer)
			ctx, client := (&hostile{lease: answer}).serve(t)
			queue, err := client.OpenQueue(ctx, "t", "q", QueueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if record, err := queue.Take(ctx); CodeOf(err) != pb.ErrorCode_INTERNAL {
				t.Error(record, err)
			}
			if err := queue.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAMalformedAnswerIsNeverTakenForACommit(t *testing.T) {
	moved := func(answers ...*pb.PartitionOffsets) *pb.MoveCursorsResponse {
		return &pb.MoveCursorsResponse{Partitions: answers}
	}
	cursor := func(offset int64) *pb.GroupsResponse {
		return &pb.GroupsResponse{Cursors: []*pb.GroupCursor{
			{Group: "g", Topic: "t", Offset: offset, Leads: true, LeaderEpoch: 3}}}
	}
	whole := moved(&pb.PartitionOffsets{LogEndOffset: 2, LeaderEpoch: 3})
	for name, c := range map[string]struct {
		move   *pb.MoveCursorsResponse
		groups *pb.GroupsResponse
		code   pb.ErrorCode
	}{
		"written down":            {whole, cursor(1), pb.ErrorCode_OK},
		"another member's by now": {whole, cursor(0), pb.ErrorCode_LEASE_LOST},
		"another partition":       {moved(&pb.PartitionOffsets{Partition: 1, LogEndOffset: 2}), cursor(1), pb.ErrorCode_INTERNAL},
		"a log without them":      {moved(&pb.PartitionOffsets{}), cursor(1), pb.ErrorCode_INTERNAL},
		"an error without a code": {moved(&pb.PartitionOffsets{Error: &pb.Error{}}), cursor(1), pb.ErrorCode_INTERNAL},
		"no answer":               {moved(), cursor(1), pb.ErrorCode_NOT_LEADER},
		"no cursor":               {whole, &pb.GroupsResponse{}, pb.ErrorCode_NOT_LEADER},
	} {
		t.Run(name, func(t *testing.T) {
			batch, payload := stored(t, 0, "a", "b")
			opened := &pb.BatchesHeader{Opened: []*pb.PartitionOpened{{Topic: "t", Active: true}}}
			ctx, client := (&hostile{move: c.move, groups: c.groups, push: []*pb.BatchesResponse{
				{Header: opened}, {Header: &pb.BatchesHeader{Batches: []*pb.StoredBatch{batch}}, Payload: payload},
			}}).serve(t)
			subscription, err := client.Subscribe(ctx, []string{"t"}, Group("g"))
			if err != nil {
				t.Fatal(err)
			}
			for message, err := range subscription.Records() {
				if err != nil || string(message.Value) != "a" || subscription.Settle(message) != nil {
					t.Fatal(message, err)
				}
				break
			}
			patience := 30 * time.Second
			if c.code == pb.ErrorCode_NOT_LEADER {
				patience = 2 * time.Second // it is asked again until then
			}
			asking, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err = subscription.Commit(asking)
			if CodeOf(err) != c.code || (err == nil) != (c.code == pb.ErrorCode_OK) {
				t.Error(err)
			}
			subscription.cancel()
			subscription.running.Wait()
		})
	}
}

func TestWhatABrokerCannotHavePushedEndsTheSubscription(t *testing.T) {
	batch, payload := stored(t, 0, "a")
	later, _ := stored(t, 1, "b")
	empty, _ := stored(t, 0)
	for name, push := range map[string]*pb.BatchesResponse{
		"records are left out":    {Header: &pb.BatchesHeader{Batches: []*pb.StoredBatch{later}}, Payload: payload},
		"less than it says":       {Header: &pb.BatchesHeader{Batches: []*pb.StoredBatch{batch}}, Payload: payload[:9]},
		"a batch without records": {Header: &pb.BatchesHeader{Batches: []*pb.StoredBatch{empty}}, Payload: payload},
		"an offset below 0": {Header: &pb.BatchesHeader{
			Opened: []*pb.PartitionOpened{{Topic: "t", Active: true, Offset: -1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			opened := &pb.BatchesHeader{Opened: []*pb.PartitionOpened{{Topic: "t", Active: true}}}
			ctx, client := (&hostile{push: []*pb.BatchesResponse{{Header: opened}, push}}).serve(t)
			subscription, err := client.Subscribe(ctx, []string{"t"}, Group("g"))
			if err == nil {
				for message, failed := range subscription.Records() {
					if err = failed; failed == nil {
						t.Fatal(message)
					}
				}
			}
			if CodeOf(err) != pb.ErrorCode_INTERNAL {
				t.Error(err)
			}
		})
	}
}
