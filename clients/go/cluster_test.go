package tritonmq

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"tritonmq/clients/go/pb"
)

// The tests of this file need a cluster, which tests/clients/test_go.py starts, with the topic `numbers` (n long,
// name string; 2 partitions).
func dialled(t *testing.T) (context.Context, *Client) {
	t.Helper()
	bootstrap := os.Getenv("TRITONMQ_GO_BOOTSTRAP")
	if bootstrap == "" {
		t.Skip("needs a cluster: make go")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	client, err := Dial(ctx, bootstrap, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return ctx, client
}

var numbers = arrow.NewSchema([]arrow.Field{
	{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

// counted makes a batch of the numbers from start to before end. Every third has no name.
func counted(t *testing.T, start, end int64) arrow.RecordBatch {
	t.Helper()
	builder := array.NewRecordBuilder(memory.DefaultAllocator, numbers)
	defer builder.Release()
	for n := start; n < end; n++ {
		builder.Field(0).(*array.Int64Builder).Append(n)
		if n%3 == 0 {
			builder.Field(1).AppendNull()
		} else {
			builder.Field(1).(*array.StringBuilder).Append(fmt.Sprint(n))
		}
	}
	return builder.NewRecordBatch()
}

func producerOf(t *testing.T, client *Client) *Producer {
	t.Helper()
	producer, err := client.NewProducer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return producer
}

func TestBatchesComeBackInOrderAndEachOnce(t *testing.T) {
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	const batches, rows = 50, 20
	start, _, err := client.Offsets(ctx, "numbers", 0)
	if err != nil {
		t.Fatal(err)
	}
	uuids, results := make([]UUID, batches), make([]*Result, 2*batches)
	for at := range 2 * batches { // all of them once more, under their UUIDs
		if at < batches {
			uuids[at] = NewUUID()
		}
		first := int64(at%batches) * rows
		results[at] = producer.PublishBatch(ctx, "numbers", counted(t, first, first+rows), WithUUID(uuids[at%batches]))
	}
	for at, result := range results {
		place, err := result.Wait(ctx)
		wanted := Place{0, start + int64(at%batches)*rows, at >= batches}
		if err != nil || place != wanted {
			t.Fatalf("batch %d: %+v, %v, wanted %+v", at, place, err, wanted)
		}
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	next := int64(5)
	for batch, err := range client.Read(ctx, "numbers", 0, start+5, start+batches*rows-3) {
		if err != nil {
			t.Fatal(err)
		}
		for row, n := range batch.Column(0).(*array.Int64).Int64Values() {
			if n != next || batch.Column(1).IsNull(row) != (n%3 == 0) {
				t.Fatalf("row of number %d, wanted %d", n, next)
			}
			next++
		}
	}
	if next != batches*rows-3 {
		t.Errorf("the last number is %d", next-1)
	}
	if _, end, err := client.Offsets(ctx, "numbers", 0); err != nil || end != start+batches*rows {
		t.Errorf("the log ends at %d, %v", end, err)
	}
}

func TestColumnsAndRowsAreLeftOutByTheBroker(t *testing.T) {
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	place, err := producer.PublishBatch(ctx, "numbers", counted(t, 0, 100), Partition(1)).Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for batch, err := range client.Read(ctx, "numbers", 1, place.Offset, place.Offset+100,
		Columns("name"), Where("n > 90")) {
		if err != nil {
			t.Fatal(err)
		}
		if batch.NumCols() != 1 {
			t.Fatal(batch.Schema())
		}
		for row := range int(batch.NumRows()) {
			found = append(found, batch.Column(0).ValueStr(row))
		}
	}
	if text := fmt.Sprint(found); text != "[91 92 (null) 94 95 (null) 97 98 (null)]" {
		t.Error(text)
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestWhatMakesNoSenseIsRefusedAtOnce(t *testing.T) {
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	whole := counted(t, 0, 1)
	other := array.NewRecordBatch(arrow.NewSchema(numbers.Fields()[:1], nil), whole.Columns()[:1], 1)
	reads := func(topic string, partition int32, start, end int64, options ...ReadOption) error {
		for _, err := range client.Read(ctx, topic, partition, start, end, options...) {
			return err
		}
		return nil
	}
	publishes := func(topic string, batch arrow.RecordBatch, options ...PublishOption) error {
		_, err := producer.PublishBatch(ctx, topic, batch, options...).Wait(ctx)
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code pb.ErrorCode
	}{
		"topic":      {publishes("nowhere", whole), pb.ErrorCode_UNKNOWN_TOPIC},
		"partition":  {publishes("numbers", whole, Partition(2)), pb.ErrorCode_UNKNOWN_PARTITION},
		"no rows":    {publishes("numbers", counted(t, 0, 0)), pb.ErrorCode_INVALID_REQUEST},
		"no uuid":    {publishes("numbers", whole, WithUUID(UUID{})), pb.ErrorCode_INVALID_REQUEST},
		"columns":    {publishes("numbers", other), pb.ErrorCode_SCHEMA_MISMATCH},
		"read topic": {reads("nowhere", 0, 0, 1), pb.ErrorCode_UNKNOWN_TOPIC},
		"backwards":  {reads("numbers", 0, 2, 1), pb.ErrorCode_INVALID_REQUEST},
		"column":     {reads("numbers", 0, Earliest, Latest, Columns("m")), pb.ErrorCode_SCHEMA_MISMATCH},
		"condition":  {reads("numbers", 0, 0, 1, Where("n >")), pb.ErrorCode_INVALID_SETTING},
	} {
		if CodeOf(c.err) != c.code {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := publishes("numbers", whole); CodeOf(err) != pb.ErrorCode_INVALID_REQUEST {
		t.Errorf("closed: %v", err)
	}
}

func TestRecordsGoWhereTheirKeysSayAndComeBackWhole(t *testing.T) {
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	when := time.UnixMicro(1_700_000_000_000_001)
	record := Record{Key: []byte("käse"), Value: []byte{0, 255}, Timestamp: when,
		Headers: []Header{{"one", []byte("1")}, {"none", nil}}}
	first, second := producer.Publish(ctx, "records", record), producer.Publish(ctx, "records", Record{Key: record.Key})
	place, err := first.Wait(ctx)
	if err != nil || place.Partition != PartitionForKey(record.Key, 3) {
		t.Fatal(place, err)
	}
	if after, err := second.Wait(ctx); err != nil || after.Offset != place.Offset+1 {
		t.Fatal(after, err)
	}
	var found []byte
	for batch, err := range client.Read(ctx, "records", place.Partition, place.Offset, place.Offset+2) {
		if err != nil {
			t.Fatal(err)
		}
		text, err := batch.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, text...)
	}
	for _, part := range []string{`"key":"a8Okc2U="`, `"value":"AP8="`,
		`{"key":"one","value":"MQ=="},{"key":"none","value":null}`,
		`2023-11-14T22:13:20.000001Z`, `"headers":null`, `"value":null`} {
		if !strings.Contains(string(found), part) {
			t.Errorf("no %s in %s", part, found)
		}
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := producer.Publish(ctx, "records", record).Wait(ctx); CodeOf(err) != pb.ErrorCode_INVALID_REQUEST {
		t.Errorf("closed: %v", err)
	}
}

func TestColumnsThatWereJustAddedAreKnown(t *testing.T) {
	ctx, client := dialled(t)
	producer := producerOf(t, client)
	narrow := arrow.NewSchema(numbers.Fields()[:1], nil)
	before, err := schemaMessage(narrow)
	if err != nil {
		t.Fatal(err)
	}
	after, err := schemaMessage(numbers)
	if err != nil {
		t.Fatal(err)
	}
	address := client.addresses()[0]
	_, err = ask(ctx, client, address, pb.BrokerClient.CreateTopic,
		&pb.CreateTopicRequest{Name: "growing", Partitions: 1, Replicas: 1, Schema: before})
	if err != nil {
		t.Fatal(err)
	}
	wide := counted(t, 1, 2)
	publish := func(batch arrow.RecordBatch) {
		t.Helper()
		if _, err := producer.PublishBatch(ctx, "growing", batch).Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	publish(array.NewRecordBatch(narrow, wide.Columns()[:1], 1))
	_, err = ask(ctx, client, address, pb.BrokerClient.AlterTopic, &pb.AlterTopicRequest{Name: "growing", Schema: after})
	if err != nil {
		t.Fatal(err)
	}
	publish(wide)
	var found []string
	for batch, err := range client.Read(ctx, "growing", 0, Earliest, Latest) {
		if err != nil {
			t.Fatal(err)
		}
		for row := range int(batch.NumRows()) {
			found = append(found, batch.Column(0).ValueStr(row)+" "+batch.Column(1).ValueStr(row))
		}
	}
	if text := fmt.Sprint(found); text != "[1 (null) 1 1]" {
		t.Error(text)
	}
	if err := producer.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
