package tritonmq

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tritonmq/clients/go/pb"
)

// A client with Options.Forward reaches its bootstrap addresses alone. It knows the cluster and follows leaders as
// always. Its calls to a broker at another address go to one of these instead, the entry, and name in their metadata
// the broker that is meant. There is one entry at a time, until a connection to it fails: then the next one.

// forwardMetadata carries the address, as it is advertised, of the broker that a call is meant for.
const forwardMetadata = "tritonmq-forward"

// forwardOf says whether brokers pass on what is meant for others: Options.Forward, else TRITONMQ_FORWARD.
func forwardOf(options Options) (bool, error) {
	if options.Forward {
		return true, nil
	}
	text := strings.ToLower(strings.TrimSpace(os.Getenv("TRITONMQ_FORWARD")))
	switch text {
	case "1", "true", "yes", "on":
		return true, nil
	case "", "0", "false", "no", "off":
		return false, nil
	}
	return false, newError(pb.ErrorCode_INVALID_SETTING,
		"TRITONMQ_FORWARD=%q says neither yes nor no: write 1 or 0", text)
}

// route is a broker's address, and what is dialled for it. Each broker that is meant has a connection of its own, also
// where all go to one address: calls are many for one.
type route struct{ meant, dialled string }

// route says how the broker at an address is reached now. Under mu.
func (c *Client) route(address string) route {
	if !c.forward || slices.Contains(c.bootstrap, address) {
		return route{address, address}
	}
	return route{address, c.bootstrap[c.entry]}
}

// leave has the next address be the entry, if this is the entry. Said twice of one, it is heard once.
func (c *Client) leave(dialled string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bootstrap[c.entry] == dialled {
		c.entry = (c.entry + 1) % len(c.bootstrap)
	}
}

// forwarding is a connection of a client with Forward.
type forwarding struct {
	grpc.ClientConnInterface
	client *Client
	route  route
}

// Invoke makes a call that has one answer.
func (f forwarding) Invoke(ctx context.Context, method string, request, answer any, options ...grpc.CallOption) error {
	var trailer metadata.MD
	options = append(options, grpc.Trailer(&trailer))
	return f.heard(f.ClientConnInterface.Invoke(f.named(ctx), method, request, answer, options...), trailer)
}

// NewStream opens any other call.
func (f forwarding) NewStream(
	ctx context.Context, description *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	call, err := f.ClientConnInterface.NewStream(f.named(ctx), description, method, options...)
	if err != nil {
		return nil, f.heard(err, nil)
	}
	return forwardedStream{call, f}, nil
}

// named has the call name the broker that it is meant for.
func (f forwarding) named(ctx context.Context) context.Context {
	if f.route.meant == f.route.dialled {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, forwardMetadata, f.route.meant)
}

// heard looks at how a call ended. Unless a broker has said so, it is the connection that has failed.
func (f forwarding) heard(err error, trailer metadata.MD) error {
	if status.Code(err) != codes.Unavailable || len(trailer.Get(errorMetadata)) > 0 {
		return err
	}
	f.client.leave(f.route.dialled)
	if f.route.meant == f.route.dialled {
		return err
	}
	return status.Errorf(codes.Unavailable, "passed on by %s: %s", f.route.dialled, status.Convert(err).Message())
}

type forwardedStream struct {
	grpc.ClientStream
	by forwarding
}

func (s forwardedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return s.by.heard(err, s.Trailer())
}
