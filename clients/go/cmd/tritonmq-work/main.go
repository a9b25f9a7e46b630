// Command tritonmq-work works off a topic as a member of a queue group:
//
//	tritonmq-work BROKERS TOPIC GROUP
//
// A record whose value begins with "bad" is rejected, one with "again" is released once, one with "fails" fails once;
// all others are done. For each outcome that is written down it prints the outcome and the value. It ends when its input
// does.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"tritonmq/clients/go"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("usage: tritonmq-work BROKERS TOPIC GROUP")
	}
	client, err := tritonmq.Dial(ctx, arguments[0], tritonmq.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	queue, err := client.OpenQueue(ctx, arguments[1], arguments[2], tritonmq.QueueOptions{InFlight: 50})
	if err != nil {
		return err
	}
	closed := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		closed <- queue.Close(ctx)
	}()
	var waiting sync.WaitGroup
	var printing sync.Mutex
	for record, err := range queue.Records() {
		if err != nil {
			return err
		}
		what, outcome := work(record)
		waiting.Go(func() {
			err := outcome.Wait(ctx)
			printing.Lock()
			defer printing.Unlock()
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s: %s\n", record.Value, err)
				return
			}
			fmt.Printf("%s %s\n", what, record.Value)
		})
	}
	waiting.Wait()
	return <-closed
}

func work(record *tritonmq.QueueRecord) (string, *tritonmq.Outcome) {
	begins := func(text string) bool { return bytes.HasPrefix(record.Value, []byte(text)) }
	switch {
	case begins("bad"):
		return "reject", record.Reject("not understood")
	case begins("again") && record.Deliveries == 1:
		return "release", record.Release()
	case begins("fails") && record.Failures == 0:
		return "fail", record.Fail("it fails once", tritonmq.After(0))
	}
	return "ack", record.Ack()
}
