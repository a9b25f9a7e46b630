package tritonmq

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"tritonmq/clients/go/pb"
)

const aSpan = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestATraceparentIsReadAsTheStandardSays(t *testing.T) {
	wanted, _ := hex.DecodeString("4bf92f3577b34da6a3ce929d0e0e473600f067aa0ba902b701")
	for _, text := range []string{aSpan, "cc" + aSpan[2:], "cc" + aSpan[2:] + "-more"} {
		if named, ok := readTraceparent(text); !ok || !bytes.Equal(named, wanted) {
			t.Errorf("%s: %x %v", text, named, ok)
		}
	}
	for _, text := range []string{
		"", aSpan[1:], aSpan + "0", aSpan + "-more", aSpan + "\n", strings.ToUpper(aSpan), "ff" + aSpan[2:],
		"00-" + strings.Repeat("0", 32) + aSpan[35:], aSpan[:36] + strings.Repeat("0", 16) + "-01",
		"cc" + aSpan[2:] + "-" + strings.Repeat("x", 10_000),
	} {
		if _, ok := readTraceparent(text); ok {
			t.Errorf("%q is taken for one", text)
		}
	}
}

// noting is a broker that takes every batch and notes its header.
type noting struct {
	hostile
	mu      sync.Mutex
	headers []*pb.ProduceHeader
}

func (n *noting) Produce(call grpc.BidiStreamingServer[pb.ProduceRequest, pb.ProduceResponse]) error {
	for {
		request, err := call.Recv()
		if err != nil {
			return nil
		}
		n.mu.Lock()
		n.headers = append(n.headers, request.GetHeader())
		n.mu.Unlock()
		answer := &pb.ProduceResult{Correlation: request.GetHeader().GetCorrelation()}
		if err := call.Send(&pb.ProduceResponse{Results: []*pb.ProduceResult{answer}}); err != nil {
			return err
		}
	}
}

func TestABatchNamesTheFirstRecordedSpanOfItsRecords(t *testing.T) {
	n := &noting{}
	ctx, client := n.hostile.serveAs(t, n)
	unrecorded := aSpan[:len(aSpan)-1] + "0"
	named, _ := readTraceparent(aSpan)
	for name, c := range map[string]struct {
		record  Record
		options []PublishOption
		wanted  []byte
	}{
		"none":       {Record{}, nil, nil},
		"option":     {Record{}, []PublishOption{WithTraceparent(aSpan)}, named},
		"header":     {Record{Headers: []Header{{"traceparent", []byte(aSpan)}}}, nil, named},
		"theirs":     {Record{Headers: []Header{{"traceparent", []byte("?")}}}, []PublishOption{WithTraceparent(aSpan)}, nil},
		"unrecorded": {Record{}, []PublishOption{WithTraceparent(unrecorded)}, nil},
	} {
		given := slices.Clone(c.record.Headers)
		producer := producerOf(t, client)
		if _, err := producer.Publish(ctx, "t", c.record, c.options...).Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if err := producer.Close(ctx); err != nil {
			t.Fatal(err)
		}
		n.mu.Lock()
		last := n.headers[len(n.headers)-1]
		n.mu.Unlock()
		if !bytes.Equal(last.GetTraceparent(), c.wanted) || len(c.record.Headers) != len(given) {
			t.Errorf("%s: %x", name, last.GetTraceparent())
		}
	}
	producer := producerOf(t, client)
	wrong := producer.Publish(ctx, "t", Record{}, WithTraceparent("no"))
	if _, err := wrong.Wait(ctx); CodeOf(err) != pb.ErrorCode_INVALID_REQUEST {
		t.Error(err)
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
