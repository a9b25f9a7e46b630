// Command tritonmq-copy copies a partition's rows to another topic with the same columns, as one batch with a UUID:
//
//	tritonmq-copy BROKERS FROM TO PARTITION UUID
//
// It prints where the rows are then, as JSON. Run again with the same UUID, it makes no second copy.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"tritonmq/clients/go"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 5 {
		return fmt.Errorf("usage: tritonmq-copy BROKERS FROM TO PARTITION UUID")
	}
	partition, err := strconv.ParseInt(arguments[3], 10, 32)
	if err != nil {
		return err
	}
	var uuid tritonmq.UUID
	digits, err := hex.DecodeString(strings.ReplaceAll(arguments[4], "-", ""))
	if err != nil || copy(uuid[:], digits) != len(uuid) {
		return fmt.Errorf("UUID %q is not 32 hexadecimal digits", arguments[4])
	}
	client, err := tritonmq.Dial(ctx, arguments[0], tritonmq.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	rows, err := all(ctx, client, arguments[1], int32(partition))
	if err != nil {
		return err
	}
	defer rows.Release()
	producer, err := client.NewProducer(tritonmq.ProducerOptions{})
	if err != nil {
		return err
	}
	place, err := producer.PublishBatch(ctx, arguments[2], rows,
		tritonmq.Partition(int32(partition)), tritonmq.WithUUID(uuid)).Wait(ctx)
	if err != nil {
		return err
	}
	if err := producer.Close(ctx); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(place)
}

// all gives the rows of a partition as one batch.
func all(ctx context.Context, client *tritonmq.Client, topic string, partition int32) (arrow.RecordBatch, error) {
	var batches []arrow.RecordBatch
	defer func() {
		for _, batch := range batches {
			batch.Release()
		}
	}()
	for batch, err := range client.Read(ctx, topic, partition, tritonmq.Earliest, tritonmq.Latest) {
		if err != nil {
			return nil, err
		}
		batch.Retain()
		batches = append(batches, batch)
	}
	if len(batches) == 0 {
		return nil, fmt.Errorf("topic %q partition %d has no records", topic, partition)
	}
	columns := make([]arrow.Array, batches[0].NumCols())
	count := int64(0)
	for _, batch := range batches {
		count += batch.NumRows()
	}
	for at := range columns {
		var parts []arrow.Array
		for _, batch := range batches {
			parts = append(parts, batch.Column(at))
		}
		joined, err := array.Concatenate(parts, memory.DefaultAllocator)
		if err != nil {
			return nil, err
		}
		defer joined.Release()
		columns[at] = joined
	}
	return array.NewRecordBatch(batches[0].Schema(), columns, count), nil
}
