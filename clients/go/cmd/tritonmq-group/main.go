// Command tritonmq-group reads a topic as a member of a group:
//
//	tritonmq-group BROKERS TOPIC GROUP
//
// It prints "ready" once it is a member. For each record it prints partition, offset and value, and settles it. After
// every thousand it has the brokers write down what was settled, and prints "committed" with the partition and the next
// offset of each. It ends, with another commit, when its input does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"tritonmq/clients/go"
	"tritonmq/clients/go/pb"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("usage: tritonmq-group BROKERS TOPIC GROUP")
	}
	client, err := tritonmq.Dial(ctx, arguments[0], tritonmq.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	subscription, err := client.Subscribe(ctx, arguments[1:2],
		tritonmq.Group(arguments[2]), tritonmq.From(tritonmq.Earliest))
	if err != nil {
		return err
	}
	closed := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		closed <- subscription.Close(ctx)
	}()
	fmt.Println("ready")
	settled := map[int32]int64{}
	for message, err := range subscription.Records() {
		if err != nil {
			return err
		}
		fmt.Printf("%d %d %s\n", message.Partition, message.Offset, message.Value)
		if err := subscription.Settle(message); isLost(err) {
			continue // it was another member's before this one was done with it
		} else if err != nil {
			return err
		}
		settled[message.Partition] = message.Offset + 1
		if message.Offset%1000 == 999 {
			if err := commit(ctx, subscription, settled); err != nil {
				return err
			}
		}
	}
	if err := <-closed; err != nil && !isLost(err) {
		return err
	}
	return nil
}

func isLost(err error) bool { return tritonmq.CodeOf(err) == pb.ErrorCode_LEASE_LOST }

func commit(ctx context.Context, subscription *tritonmq.Subscription, settled map[int32]int64) error {
	err := subscription.Commit(ctx)
	if err == nil {
		for partition, offset := range settled {
			fmt.Printf("committed %d %d\n", partition, offset)
		}
	}
	clear(settled)
	if isLost(err) {
		return nil
	}
	return err
}
