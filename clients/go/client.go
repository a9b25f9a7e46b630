package tritonmq

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"tritonmq/clients/go/pb"
)

const (
	protocol, protocolOldest = 1, 1 // what this client speaks: see COMPATIBILITY.md
	messageBytesMax          = 65 << 20
	attemptTimeout           = 5 * time.Second // of one request to one broker
	defaultTimeout           = 30 * time.Second
)

// Options of a client. The zero value is good: plain text, unless the environment names certificates.
type Options struct {
	// Certs is a directory with ca.crt and client.<User>.crt and .key, as `tritonmq cert create-client` makes them.
	// Empty: TRITONMQ_CERTS.
	Certs string
	// User chooses among the certificates in Certs. Empty: TRITONMQ_USER, else client.crt.
	User string
	// TokenFile holds a token, which is shown instead of a certificate at the port that takes tokens. Of Certs only
	// ca.crt is used then. Empty: TRITONMQ_TOKEN_FILE. The file is read again for each call.
	TokenFile string
	// Forward: only the bootstrap addresses are reached, and the brokers there pass on what is meant for others. False:
	// TRITONMQ_FORWARD.
	Forward bool
	// Timeout is how long a request is tried in all. 0: 30 s.
	Timeout time.Duration
}

// Client knows one cluster: its brokers, and the topics that were used. It is safe for use by many goroutines.
type Client struct {
	options   Options
	bootstrap []string
	dial      []grpc.DialOption
	forward   bool

	mu      sync.Mutex
	conns   map[route]*grpc.ClientConn
	entry   int // which of bootstrap passes on
	brokers map[int32]string
	topics  map[string]*topic
	closed  bool
}

// topic is what the cluster last said of one. It is not changed once it is made.
type topic struct {
	name, id    string
	schema      *arrow.Schema
	fingerprint uint64
	typed       bool
	batchMax    int // bytes
	leaders     []int32
	epochs      []int64
	replicas    [][]int32
}

// Dial asks the brokers at bootstrap, "host1:7400,host2:7400", who is in the cluster. It fails if none of them answers
// before ctx ends or Options.Timeout is over.
func Dial(ctx context.Context, bootstrap string, options Options) (*Client, error) {
	if options.Timeout <= 0 {
		options.Timeout = defaultTimeout
	}
	c := &Client{
		options: options, conns: map[route]*grpc.ClientConn{}, brokers: map[int32]string{}, topics: map[string]*topic{},
	}
	for address := range strings.SplitSeq(bootstrap, ",") {
		address = strings.TrimSpace(address)
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, newError(pb.ErrorCode_INVALID_REQUEST,
				"bootstrap address %q is not HOST:PORT: give e.g. host1:7400,host2:7400", address)
		}
		c.bootstrap = append(c.bootstrap, address)
	}
	secured, err := credentialsOf(options)
	if err != nil {
		return nil, err
	}
	if c.forward, err = forwardOf(options); err != nil {
		return nil, err
	}
	c.dial = append(secured,
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		// A machine that vanished, and a process that is stopped, are noticed in 15 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
	)
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	err = retry(ctx, func() error {
		_, err := c.metadata(ctx, &pb.MetadataRequest{})
		return err
	})
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends all connections. Producers, reads and subscriptions of the client end with an error.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = map[route]*grpc.ClientConn{}
}

func (c *Client) broker(address string) (pb.BrokerClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, newError(pb.ErrorCode_INVALID_REQUEST, "the client is closed: dial anew")
	}
	way := c.route(address)
	conn, known := c.conns[way]
	if !known {
		var err error
		if conn, err = grpc.NewClient("passthrough:///"+way.dialled, c.dial...); err != nil {
			return nil, newError(pb.ErrorCode_INVALID_REQUEST, "address %s: %s", way.dialled, err)
		}
		c.conns[way] = conn
	}
	if c.forward {
		return pb.NewBrokerClient(forwarding{conn, c, way}), nil
	}
	return pb.NewBrokerClient(conn), nil
}

type unary[Q, R any] func(pb.BrokerClient, context.Context, Q, ...grpc.CallOption) (R, error)

// ask waits for one broker for attemptTimeout: another may answer.
func ask[Q, R any](ctx context.Context, c *Client, address string, method unary[Q, R], request Q) (R, error) {
	var none R
	broker, err := c.broker(address)
	if err != nil {
		return none, err
	}
	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	var trailer metadata.MD
	answer, err := method(broker, attempt, request, grpc.Trailer(&trailer))
	if err != nil {
		return none, fromCall(ctx, err, trailer, address)
	}
	return answer, nil
}

type conversation[Q, R any] func(
	pb.BrokerClient, context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Q, R], error)

// talk opens a stream to a broker and hears what it says until the stream ends, or hear gives an error. write begins to
// say what is to be said.
func talk[Q, R any](
	ctx context.Context, c *Client, address string, method conversation[Q, R],
	write func(grpc.BidiStreamingClient[Q, R]), hear func(*R) error,
) error {
	broker, err := c.broker(address)
	if err != nil {
		return err
	}
	call, err := method(broker, ctx)
	if err != nil {
		err = fromCall(ctx, err, nil, address)
		var told *Error
		if errors.As(err, &told) {
			told.Definite = true // there was no connection: nothing was sent
		}
		return err
	}
	write(call)
	for {
		message, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return newError(pb.ErrorCode_UNREACHABLE, "broker at %s ended the stream", address)
		}
		if err != nil {
			return fromCall(ctx, err, call.Trailer(), address)
		}
		if err := hear(message); err != nil {
			return err
		}
	}
}

// metadata asks one address after the other, those of known brokers in any order and then the bootstrap addresses,
// and notes what is answered.
func (c *Client) metadata(ctx context.Context, request *pb.MetadataRequest) (*pb.MetadataResponse, error) {
	request.Protocol, request.ProtocolOldest = protocol, protocolOldest
	var last error
	for _, address := range c.addresses() {
		answer, err := ask(ctx, c, address, pb.BrokerClient.Metadata, request)
		if err == nil {
			err = c.learn(answer)
		}
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			break
		}
		last = err
	}
	if last == nil {
		last = ctx.Err()
	}
	return nil, last
}

func (c *Client) addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []string
	for _, address := range c.brokers {
		found = append(found, address)
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	for _, address := range c.bootstrap {
		if !slices.Contains(found, address) {
			found = append(found, address)
		}
	}
	return found
}

func (c *Client) learn(answer *pb.MetadataResponse) error {
	made := make([]*topic, 0, len(answer.GetTopics()))
	for _, info := range answer.GetTopics() {
		view, err := viewOf(info)
		if err != nil {
			return err
		}
		made = append(made, view)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if brokers := answer.GetBrokers(); len(brokers) > 0 {
		c.brokers = map[int32]string{}
		for _, broker := range brokers {
			c.brokers[broker.GetId()] = broker.GetAddress()
		}
	}
	for _, view := range made {
		if known := c.topics[view.name]; known != nil && known.id == view.id {
			view.keepLater(known)
		}
		c.topics[view.name] = view
	}
	for _, name := range answer.GetUnknownTopics() {
		delete(c.topics, name)
	}
	return nil
}

// keepLater keeps what is known of later leaderships: a broker that lags behind must not undo it.
func (t *topic) keepLater(known *topic) {
	for at := range min(len(t.epochs), len(known.epochs)) {
		if known.epochs[at] > t.epochs[at] {
			t.epochs[at], t.leaders[at] = known.epochs[at], known.leaders[at]
		}
	}
}

func viewOf(info *pb.TopicInfo) (*topic, error) {
	schema, err := readSchema(info.GetSchema())
	if err != nil {
		return nil, err
	}
	print, err := fingerprint(schema)
	if err != nil {
		return nil, newError(pb.ErrorCode_SCHEMA_MISMATCH, "topic %q: %s", info.GetName(), err)
	}
	count := len(info.GetPartitions())
	if count == 0 {
		return nil, newError(pb.ErrorCode_INTERNAL, "topic %q: a broker told of no partitions", info.GetName())
	}
	view := &topic{
		name: info.GetName(), id: info.GetTopicId(), schema: schema, fingerprint: print, typed: info.GetTyped(),
		batchMax: batchBytesMax(info),
		leaders:  make([]int32, count), epochs: make([]int64, count), replicas: make([][]int32, count),
	}
	for _, partition := range info.GetPartitions() {
		at := int(partition.GetPartition())
		if at < 0 || at >= count {
			return nil, newError(pb.ErrorCode_INTERNAL, "topic %q: a broker told of partition %d of %d",
				info.GetName(), at, count)
		}
		view.leaders[at], view.epochs[at] = partition.GetLeader(), partition.GetLeaderEpoch()
		view.replicas[at] = partition.GetReplicas()
	}
	return view, nil
}

// batchBytesMax gives what the topic takes in one batch, with room for what is beside the rows.
func batchBytesMax(info *pb.TopicInfo) int {
	const usual, overhead = 4 << 20, 4 << 10
	given, err := strconv.Atoi(info.GetSettings()["batch_bytes_max"])
	if err != nil {
		given = usual
	}
	return max(given-overhead, overhead)
}

// topic gives what is known of a topic, and asks for it if nothing is.
func (c *Client) topic(ctx context.Context, name string) (*topic, error) {
	c.mu.Lock()
	known := c.topics[name]
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	return c.topicNow(ctx, name)
}

// topicNow asks for a topic, again and again until ctx ends.
func (c *Client) topicNow(ctx context.Context, name string) (*topic, error) {
	var found *topic
	err := retry(ctx, func() (err error) {
		found, err = c.refresh(ctx, name)
		return err
	})
	return found, err
}

// forget has a topic be asked for when it is used next: it is not as it was known.
func (c *Client) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.topics, name)
}

// refresh asks for a topic once.
func (c *Client) refresh(ctx context.Context, name string) (*topic, error) {
	if _, err := c.metadata(ctx, &pb.MetadataRequest{Topics: []string{name}}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.topics[name]; found != nil {
		return found, nil
	}
	return nil, newError(pb.ErrorCode_UNKNOWN_TOPIC, "no topic is called %q: check the name, or create it", name)
}

func (c *Client) check(view *topic, partition int32) error {
	if partition < 0 || int(partition) >= len(view.leaders) {
		return newError(pb.ErrorCode_UNKNOWN_PARTITION, "topic %q has partitions 0 to %d, not %d",
			view.name, len(view.leaders)-1, partition)
	}
	return nil
}

// leader gives the address of whoever leads a partition as far as is known; empty: nobody.
func (c *Client) leader(name string, partition int32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	view := c.topics[name]
	if view == nil || int(partition) >= len(view.leaders) {
		return ""
	}
	return c.brokers[view.leaders[partition]]
}

// noteLeader remembers who leads as a broker that was asked in vain has said.
func (c *Client) noteLeader(name string, partition int32, told *Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	view := c.topics[name]
	if view == nil || told.LeaderID == 0 || partition < 0 || int(partition) >= len(view.leaders) {
		return
	}
	if told.leaderEpoch < view.epochs[partition] {
		return
	}
	changed := *view
	changed.leaders, changed.epochs = slices.Clone(view.leaders), slices.Clone(view.epochs)
	changed.leaders[partition], changed.epochs[partition] = told.LeaderID, told.leaderEpoch
	c.topics[name] = &changed
}

// replicasOf gives the addresses at which a partition can be read: its leader's first.
func (c *Client) replicasOf(view *topic, partition int32) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []string
	for _, broker := range append([]int32{view.leaders[partition]}, view.replicas[partition]...) {
		if address := c.brokers[broker]; address != "" && !slices.Contains(found, address) {
			found = append(found, address)
		}
	}
	return found
}

// retry asks until there is an answer, an error that asking again does not help, or the end of ctx.
func retry(ctx context.Context, try func() error) error {
	for attempt := 0; ; attempt++ {
		err := try()
		if err == nil || !isRetriable(err) {
			return err
		}
		if !pause(ctx, attempt) {
			return err
		}
	}
}

func isRetriable(err error) bool {
	var found *Error
	return errors.As(err, &found) && found.Retriable
}

// pauseOf gives how long to wait after so many failures: 20 ms, doubled up to one second, the half of it by chance.
func pauseOf(attempt int) time.Duration {
	longest := min(20*time.Millisecond<<min(attempt, 6), time.Second)
	return longest/2 + rand.N(longest/2)
}

// pause waits before the next attempt. False: ctx has ended.
func pause(ctx context.Context, attempt int) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pauseOf(attempt)):
		return true
	}
}
