// Command tritonmq-count publishes the numbers from 0 to COUNT-1 as records of a partition, in order, and prints how
// many have been acknowledged so far:
//
//	tritonmq-count BROKERS TOPIC PARTITION COUNT
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"tritonmq/clients/go"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 4 {
		return fmt.Errorf("usage: tritonmq-count BROKERS TOPIC PARTITION COUNT")
	}
	partition, err := strconv.ParseInt(arguments[2], 10, 32)
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(arguments[3])
	if err != nil {
		return err
	}
	client, err := tritonmq.Dial(ctx, arguments[0], tritonmq.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.NewProducer(tritonmq.ProducerOptions{BatchBytesMax: 16 << 10, BufferBytesMax: 1 << 20})
	if err != nil {
		return err
	}
	results := make(chan *tritonmq.Result, count)
	go func() {
		defer close(results)
		for n := range count {
			record := tritonmq.Record{Value: fmt.Append(nil, n)}
			results <- producer.Publish(ctx, arguments[1], record, tritonmq.Partition(int32(partition)))
		}
	}()
	answered, next := 0, int64(-1)
	for result := range results {
		place, err := result.Wait(ctx)
		if err != nil {
			return fmt.Errorf("record %d: %w", answered, err)
		}
		if next >= 0 && place.Offset != next {
			return fmt.Errorf("record %d is at offset %d, not %d", answered, place.Offset, next)
		}
		next = place.Offset + 1
		if answered++; answered%1000 == 0 {
			fmt.Println(answered)
		}
	}
	return producer.Close(ctx)
}
