package tritonmq

import (
	"context"
	"net"
	"path"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tritonmq/clients/go/pb"
)

// passing is a broker that passes on what is meant for another one, which leads the topic t and has an address that
// means nothing here.
type passing struct {
	hostile
	asked chan string // the method of each call, and for whom it is
	fault error       // the answer to Queues
	done  metadata.MD // and what trails it
}

const elsewhere = "broker-2.hidden:7400"

func (p *passing) Queues(ctx context.Context, request *pb.QueuesRequest) (*pb.QueuesResponse, error) {
	if p.fault != nil {
		_ = grpc.SetTrailer(ctx, p.done)
		return nil, p.fault
	}
	return p.hostile.Queues(ctx, request)
}

func (p *passing) note(ctx context.Context, method string) {
	said, _ := metadata.FromIncomingContext(ctx)
	p.asked <- path.Base(method) + " " + strings.Join(said.Get(forwardMetadata), ",")
}

// serving gives where it listens, and what ends it with all its connections.
func (p *passing) serving(t *testing.T) (string, func()) {
	t.Helper()
	p.address, p.asked = elsewhere, make(chan string, 10_000)
	p.push = []*pb.BatchesResponse{{Header: &pb.BatchesHeader{
		Opened: []*pb.PartitionOpened{{Topic: "t", Active: true}}}}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(
			ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
		) (any, error) {
			p.note(ctx, info.FullMethod)
			return handler(ctx, request)
		}),
		grpc.StreamInterceptor(func(
			server any, call grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
		) error {
			p.note(call.Context(), info.FullMethod)
			return handler(server, call)
		}))
	pb.RegisterBrokerServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server.Stop
}

// hear waits for the next call, and gives its method and for whom it is.
func (p *passing) hear(t *testing.T) (method, meant string) {
	t.Helper()
	select {
	case asked := <-p.asked:
		method, meant, _ = strings.Cut(asked, " ")
	case <-time.After(time.Minute):
		t.Fatal("nobody asks for anything more")
	}
	return method, meant
}

// next waits for a call of that method, and gives for whom it is.
func (p *passing) next(t *testing.T, method string) string {
	t.Helper()
	for {
		if heard, meant := p.hear(t); heard == method {
			return meant
		}
	}
}

func nobody(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func dialForward(t *testing.T, bootstrap string, options Options) *Client {
	t.Helper()
	client, err := Dial(t.Context(), bootstrap, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestWhatIsMeantForAnotherBrokerGoesToTheOneThatIsReachedAndNamesIt(t *testing.T) {
	for name, c := range map[string]struct {
		set     string
		options Options
	}{
		"given":              {"", Options{Forward: true}},
		"in the environment": {" Yes", Options{}},
		"given, with a no":   {"0", Options{Forward: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TRITONMQ_FORWARD", c.set)
			broker := &passing{}
			bootstrap, _ := broker.serving(t)
			client := dialForward(t, bootstrap, c.options)
			if meant := broker.next(t, "Metadata"); meant != "" {
				t.Errorf("what is meant for the broker itself names %s", meant)
			}
			if _, err := client.OpenQueue(t.Context(), "t", "q", QueueOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Subscribe(t.Context(), []string{"t"}); err != nil {
				t.Fatal(err)
			}
			producer := producerOf(t, client)
			producer.Publish(t.Context(), "t", Record{Value: []byte("a")})
			for wanted := map[string]bool{"Queues": true, "Work": true, "Subscribe": true, "Produce": true}; len(wanted) > 0; {
				method, meant := broker.hear(t)
				if delete(wanted, method); meant != elsewhere {
					t.Errorf("%s is meant for %q", method, meant)
				}
			}
		})
	}
}

func TestWithoutItNobodyIsAskedToPassOn(t *testing.T) {
	for _, set := range []string{"", "off"} {
		t.Setenv("TRITONMQ_FORWARD", set)
		broker := &passing{}
		bootstrap, _ := broker.serving(t)
		client := dialForward(t, bootstrap, Options{})
		if client.forward || client.route(elsewhere).dialled != elsewhere {
			t.Errorf("%q: %v", set, client.route(elsewhere))
		}
	}
}

func TestTheNextAddressIsUsedOnceAConnectionFails(t *testing.T) {
	first, second := &passing{}, &passing{}
	one, end := first.serving(t)
	two, _ := second.serving(t)
	client := dialForward(t, strings.Join([]string{nobody(t), one, two}, ","), Options{Forward: true})
	subscribed := func() {
		if _, err := client.Subscribe(t.Context(), []string{"t"}); err != nil {
			t.Fatal(err)
		}
	}
	subscribed()
	if meant := first.next(t, "Subscribe"); meant != elsewhere {
		t.Error(meant)
	}
	if len(second.asked) != 0 {
		t.Error("the third address was asked though the second one answers")
	}
	end()
	if meant := second.next(t, "Subscribe"); meant != elsewhere { // the one before comes over
		t.Error(meant)
	}
	subscribed()
	if meant := second.next(t, "Subscribe"); meant != elsewhere {
		t.Error(meant)
	}
}

func TestAStreamThatBreaksHasTheNextAddressUsedToo(t *testing.T) {
	first, second := &passing{}, &passing{}
	one, end := first.serving(t)
	two, _ := second.serving(t)
	client := dialForward(t, one+","+two, Options{Forward: true})
	broker, err := client.broker(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	call, err := broker.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); err != nil {
		t.Fatal(err)
	}
	end()
	if _, err := call.Recv(); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	if client.route(elsewhere).dialled != two {
		t.Error("the first address is used, which is gone")
	}
}

func TestAFailureThatManyCallsHearOfIsOne(t *testing.T) {
	broker := &passing{}
	bootstrap, _ := broker.serving(t)
	client := dialForward(t, strings.Join([]string{bootstrap, "b:1", "c:1"}, ","), Options{Forward: true})
	client.leave(bootstrap)
	client.leave(bootstrap)
	if found := client.route(elsewhere).dialled; found != "b:1" {
		t.Error(found)
	}
}

func TestAnErrorOfTheConnectionNamesWhoPassesOn(t *testing.T) {
	broker := &passing{}
	bootstrap, end := broker.serving(t)
	client := dialForward(t, bootstrap, Options{Forward: true})
	end()
	_, err := ask(t.Context(), client, elsewhere, pb.BrokerClient.Queues, &pb.QueuesRequest{})
	if CodeOf(err) != pb.ErrorCode_UNREACHABLE || !strings.Contains(err.Error(), elsewhere) ||
		!strings.Contains(err.Error(), "passed on by "+bootstrap) {
		t.Error(err)
	}
}

func TestAnErrorThatABrokerGivesIsNotItsConnections(t *testing.T) {
	said, err := proto.Marshal(&pb.Error{Code: pb.ErrorCode_UNREACHABLE, Message: "broker 2 has gone"})
	if err != nil {
		t.Fatal(err)
	}
	broker := &passing{
		fault: status.Error(codes.Unavailable, "broker 2 has gone"), done: metadata.Pairs(errorMetadata, string(said)),
	}
	bootstrap, _ := broker.serving(t)
	client := dialForward(t, bootstrap+","+nobody(t), Options{Forward: true})
	_, err = ask(t.Context(), client, elsewhere, pb.BrokerClient.Queues, &pb.QueuesRequest{})
	if CodeOf(err) != pb.ErrorCode_UNREACHABLE || err.Error() != "UNREACHABLE: broker 2 has gone" {
		t.Error(err)
	}
	if client.route(elsewhere).dialled != bootstrap {
		t.Error("another address is used, though this one answers")
	}
}

func TestAnEnvironmentThatSaysNeitherYesNorNoIsRefused(t *testing.T) {
	t.Setenv("TRITONMQ_FORWARD", "perhaps")
	if _, err := Dial(t.Context(), nobody(t), Options{}); CodeOf(err) != pb.ErrorCode_INVALID_SETTING {
		t.Error(err)
	}
}
