package tritonmq

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// What is here does not use this client: Arrow's own client of Flight reads what this one has written.

func flightOf(t *testing.T, address string) flight.Client {
	t.Helper()
	client, err := flight.NewClientWithMiddleware(address, nil, nil,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// told is what stands beside each batch.
type told struct {
	Start, End  int64
	TimestampUs int64 `json:"timestamp_us"`
}

// numbersOf gives n and name of each row that the ticket is for, and the offset behind the last one.
func numbersOf(t *testing.T, client flight.Client, ticket *flight.Ticket) ([]int64, []string, int64) {
	t.Helper()
	stream, err := client.DoGet(t.Context(), ticket)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	var found []int64
	var names []string
	var end int64
	for reader.Next() {
		batch := reader.RecordBatch()
		found = append(found, batch.Column(0).(*array.Int64).Int64Values()...)
		column := batch.Column(1).(*array.String)
		for at := range column.Len() {
			if column.IsNull(at) {
				names = append(names, "null")
			} else {
				names = append(names, column.Value(at))
			}
		}
		var beside told
		if err := json.Unmarshal(reader.LatestAppMetadata(), &beside); err != nil {
			t.Fatal(err)
		}
		if end != 0 && beside.Start != end || beside.End-beside.Start < batch.NumRows() || beside.TimestampUs == 0 {
			t.Fatalf("a batch of %d rows behind offset %d says %+v", batch.NumRows(), end, beside)
		}
		end = beside.End
	}
	if err := reader.Err(); err != nil {
		t.Fatal(err)
	}
	return found, names, end
}

func TestArrowsOwnClientReadsATypedTopicByFlight(t *testing.T) {
	address := os.Getenv("TRITONMQ_GO_FLIGHT")
	if address == "" {
		t.Skip("needs a cluster: make go")
	}
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	const rows = 20_000
	for start := int64(0); start < rows; start += 1_000 {
		batch := counted(t, start, start+1_000)
		if _, err := producer.PublishBatch(ctx, "flights", batch, Partition(0)).Wait(ctx); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	reading := flightOf(t, address)
	info, err := reading.GetFlightInfo(ctx, &flight.FlightDescriptor{
		Type: flight.DescriptorPATH, Path: []string{"flights"},
	})
	if err != nil {
		t.Fatal(err)
	}
	schema, err := flight.DeserializeSchema(info.GetSchema(), memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	if !schema.Equal(numbers) {
		t.Fatalf("the schema is %s", schema)
	}
	endpoint := info.GetEndpoint()[0]
	if found := endpoint.GetLocation()[0].GetUri(); found != "grpc+tcp://"+address {
		t.Fatalf("the topic is read at %s", found)
	}
	values, names, end := numbersOf(t, reading, endpoint.GetTicket())
	if len(values) != rows || end != rows {
		t.Fatalf("%d rows up to %d", len(values), end)
	}
	for at, n := range values {
		if n != int64(at) || (n%3 == 0) != (names[at] == "null") {
			t.Fatalf("row %d is %d, %s", at, n, names[at])
		}
	}
	chosen := `{"topic": "flights", "partition": 0, "start": 10, "end": 30, "filter": "n >= 25", "columns": ["n", "name"]}`
	values, _, _ = numbersOf(t, reading, &flight.Ticket{Ticket: []byte(chosen)})
	if len(values) != 5 || values[0] != 25 || values[4] != 29 {
		t.Fatalf("chosen were %v", values)
	}
}

func TestFlightRefusesWritesAndSaysWhatIsWrongWithATicket(t *testing.T) {
	address := os.Getenv("TRITONMQ_GO_FLIGHT")
	if address == "" {
		t.Skip("needs a cluster: make go")
	}
	client := flightOf(t, address)
	for ticket, wanted := range map[string]struct {
		code codes.Code
		text string
	}{
		"{":                                  {codes.InvalidArgument, "no JSON object"},
		`{"topic": "none", "partition": 0}`:  {codes.NotFound, "there is no topic 'none'"},
		`{"topic": "flights", "columns": 1}`: {codes.InvalidArgument, "columns"},
	} {
		stream, err := client.DoGet(t.Context(), &flight.Ticket{Ticket: []byte(ticket)})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != wanted.code || !strings.Contains(err.Error(), wanted.text) {
			t.Errorf("%s: %v", ticket, err)
		}
	}
	put, err := client.DoPut(t.Context())
	if err == nil {
		_, err = put.Recv()
	}
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "read only") {
		t.Errorf("DoPut: %v", err)
	}
}
