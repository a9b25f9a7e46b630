package tritonmq

import (
	"context"
	"math"
	"net"
	"sync/atomic"
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
	payload []byte // of the lease
	answers []*pb.NumberedAnswer
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

func (h *hostile) Work(call grpc.BidiStreamingServer[pb.WorkRequest, pb.WorkResponse]) error {
	for {
		request, err := call.Recv()
		if err != nil {
			return nil
		}
		for _, said := range request.GetSessions() {
			told := &pb.SessionResponse{Session: said.GetSession()}
			message := &pb.WorkResponse{Header: &pb.WorkHeader{Sessions: []*pb.SessionResponse{told}}}
			if said.Open != nil && len(said.Open.GetHeld()) == 0 && h.lease != nil {
				told.Lease, message.Payload = h.lease, h.payload
			}
			if len(said.Settles) > 0 {
				told.Answers = h.answers
			}
			if err := call.Send(message); err != nil {
				return err
			}
		}
	}
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

// lent gives a lease of two records, and their payload.
func lent(t *testing.T) (*pb.LeaseResponse, []byte) {
	t.Helper()
	batch, payload := stored(t, 0, "a", "b")
	return &pb.LeaseResponse{
		Lease: &pb.LeaseId{LeaderEpoch: 3, Entry: 7}, Ranges: []uint64{0, 2}, Deliveries: []uint32{1},
		Failures: []uint32{0}, LeaseMs: 60_000, Batches: []*pb.StoredBatch{batch},
	}, payload
}

// answer gives the one to the first outcome of a session.
func answer(told *pb.SettleAnswer) []*pb.NumberedAnswer {
	return []*pb.NumberedAnswer{{Number: 1, Answer: told}}
}

func TestAMalformedAnswerIsNeverTakenForAnOutcome(t *testing.T) {
	lost := func(gaps ...uint64) []*pb.NumberedAnswer { return answer(&pb.SettleAnswer{Lost: gaps}) }
	for name, c := range map[string]struct {
		answers []*pb.NumberedAnswer
		code    pb.ErrorCode
	}{
		"done":                        {lost(), pb.ErrorCode_OK},
		"lost":                        {lost(0, 1), pb.ErrorCode_LEASE_LOST},
		"an answer to nothing":        {[]*pb.NumberedAnswer{{Number: 0}}, pb.ErrorCode_INTERNAL},
		"an answer to the next one":   {[]*pb.NumberedAnswer{{Number: 2}}, pb.ErrorCode_INTERNAL},
		"a range without a length":    {lost(0), pb.ErrorCode_INTERNAL},
		"a range of nothing":          {lost(0, 0), pb.ErrorCode_INTERNAL},
		"a range without an end":      {lost(0, math.MaxUint64), pb.ErrorCode_INTERNAL},
		"a range behind all offsets":  {lost(math.MaxUint64, 1), pb.ErrorCode_INTERNAL},
		"a record not asked about":    {lost(1, 1), pb.ErrorCode_INTERNAL},
		"a record of no lease":        {lost(5, 1), pb.ErrorCode_INTERNAL},
		"more than was asked about":   {lost(0, 2), pb.ErrorCode_INTERNAL},
		"an error without a code":     {answer(&pb.SettleAnswer{Error: &pb.Error{}}), pb.ErrorCode_INTERNAL},
		"an error of another release": {answer(&pb.SettleAnswer{Error: &pb.Error{Code: 9999}}), pb.ErrorCode_INTERNAL},
		"nonsense that went back": {answer(&pb.SettleAnswer{Pulled: []*pb.PulledRecords{
			{Lease: &pb.LeaseId{LeaderEpoch: 3, Entry: 7}, Ranges: []uint64{9, 1}}}}), pb.ErrorCode_INTERNAL},
	} {
		t.Run(name, func(t *testing.T) {
			lease, payload := lent(t)
			ctx, client := (&hostile{lease: lease, payload: payload, answers: c.answers}).serve(t)
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
			<-queue.over
		})
	}
}

func TestInOrderTheNextRecordIsHandedOutOnceTheOneBeforeIsSettled(t *testing.T) {
	lease, payload := lent(t)
	lease.Order = pb.QueueOrder_ORDER_KEY
	broker := &orderly{
		hostile: hostile{lease: lease, payload: payload}, answering: make(chan struct{}), opened: make(chan *pb.WorkOpen, 1)}
	ctx, client := broker.serveAs(t, broker)
	queue, err := client.OpenQueue(ctx, "t", "q", QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record, err := queue.Take(ctx)
	if err != nil || record.Offset != 0 {
		t.Fatal(record, err)
	}
	outcome := record.Ack()
	if extended := record.Extend().Wait(ctx); CodeOf(extended) != pb.ErrorCode_INVALID_REQUEST { // the queue has heard both
		t.Error(extended)
	}
	select {
	case early := <-queue.records:
		t.Error(early)
	case <-outcome.done:
		t.Error("nobody has answered")
	default:
	}
	close(broker.answering)
	if err := outcome.Wait(ctx); err != nil {
		t.Error(err)
	}
	if record, err = queue.Take(ctx); err != nil || record.Offset != 1 {
		t.Error(record, err)
	}
	if err := queue.Close(ctx); err != nil {
		t.Error(err)
	}
}

// orderly is a broker that settles what it is asked to, once `answering` is closed. It ends the first `breaks` streams on
// which it is asked to, and says nothing.
type orderly struct {
	hostile
	answering chan struct{}
	breaks    atomic.Int32
	opened    chan *pb.WorkOpen
}

func (o *orderly) Work(call grpc.BidiStreamingServer[pb.WorkRequest, pb.WorkResponse]) error {
	number := uint64(0)
	for {
		request, err := call.Recv()
		if err != nil {
			return nil
		}
		for _, said := range request.GetSessions() {
			told := &pb.SessionResponse{Session: said.GetSession()}
			message := &pb.WorkResponse{Header: &pb.WorkHeader{Sessions: []*pb.SessionResponse{told}}}
			if said.Open != nil {
				o.opened <- said.Open
				if len(said.Open.GetHeld()) == 0 {
					told.Lease, message.Payload = o.lease, o.payload
				}
			}
			if len(said.Settles) > 0 && o.breaks.Add(-1) >= 0 {
				return nil
			}
			for range said.Settles {
				<-o.answering
				number++
				told.Answers = append(told.Answers, &pb.NumberedAnswer{Number: number, Answer: &pb.SettleAnswer{}})
			}
			if err := call.Send(message); err != nil {
				return err
			}
		}
	}
}

func TestTheNextStreamNamesWhatIsHeldAndHearsAgainWhatHadNoAnswer(t *testing.T) {
	for _, order := range []pb.QueueOrder{pb.QueueOrder_ORDER_NONE, pb.QueueOrder_ORDER_ALL} {
		lease, payload := lent(t)
		lease.Order = order
		broker := &orderly{
			hostile: hostile{lease: lease, payload: payload}, answering: make(chan struct{}), opened: make(chan *pb.WorkOpen, 10)}
		close(broker.answering)
		broker.breaks.Store(2)
		ctx, client := broker.serveAs(t, broker)
		queue, err := client.OpenQueue(ctx, "t", "q", QueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		record, err := queue.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := record.Fail("it fails").Wait(ctx); err != nil {
			t.Error(err)
		}
		for _, held := range []int{0, 1, 1} {
			if opened := <-broker.opened; len(opened.GetHeld()) != held {
				t.Error(opened)
			}
		}
		taking, cancel := context.WithCancel(ctx)
		if order == pb.QueueOrder_ORDER_ALL { // what comes behind it went back
			cancel()
		}
		if next, err := queue.Take(taking); (err == nil) == (order == pb.QueueOrder_ORDER_ALL) {
			t.Error(next, err)
		}
		cancel()
		if err := queue.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestAQueueGoesOnWhereNobodySaysInTimeWhoLeads(t *testing.T) {
	lease, payload := lent(t)
	ctx, client := (&hostile{lease: lease, payload: payload, answers: answer(&pb.SettleAnswer{})}).serve(t)
	queue, err := client.OpenQueue(ctx, "t", "q", QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	queue.do(func() { queue.follow(nil, context.DeadlineExceeded) })
	if record, err := queue.Take(ctx); err != nil || record.Ack().Wait(ctx) != nil {
		t.Error(record, err)
	}
	queue.cancel()
	<-queue.over
}

func TestALeaseThatMakesNoSenseEndsTheQueue(t *testing.T) {
	for name, change := range map[string]func(*pb.LeaseResponse){
		"more than was asked for":   func(l *pb.LeaseResponse) { l.Ranges = []uint64{0, 1001} },
		"no records":                func(l *pb.LeaseResponse) { l.Ranges, l.Deliveries, l.Failures = nil, nil, nil },
		"half a range":              func(l *pb.LeaseResponse) { l.Ranges = []uint64{0} },
		"no deliveries":             func(l *pb.LeaseResponse) { l.Deliveries = nil },
		"records of no lease":       func(l *pb.LeaseResponse) { l.Lease = nil },
		"more bytes than there are": func(l *pb.LeaseResponse) { l.Batches[0].PayloadBytes = math.MaxUint32 },
	} {
		t.Run(name, func(t *testing.T) {
			lease, payload := lent(t)
			change(lease)
			ctx, client := (&hostile{lease: lease, payload: payload}).serve(t)
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
