package tritonmq

import (
	"context"
	"maps"
	"slices"

	"tritonmq/clients/go/pb"
)

type partitionAnswer interface {
	GetPartition() int32
	GetError() *pb.Error
}

// askLeaders asks the leader of each of these partitions until each has answered, an error is not mended by asking
// again, or ctx ends. An answer about what was not asked, or that accept refuses, is an error.
func askLeaders[A partitionAnswer](
	ctx context.Context, c *Client, topic string, partitions []int32,
	ask func(address string, partitions []int32) ([]A, error), accept func(A) bool,
) error {
	missing := slices.Clone(partitions)
	return retry(ctx, func() error {
		byAddress := map[string][]int32{}
		var last error
		for _, partition := range missing {
			if address := c.leader(topic, partition); address != "" {
				byAddress[address] = append(byAddress[address], partition)
			}
		}
		for address, numbers := range byAddress {
			answers, err := ask(address, numbers)
			if err != nil {
				if !isRetriable(err) {
					return err
				}
				last = err
				continue
			}
			for _, answer := range answers {
				number := answer.GetPartition()
				if !slices.Contains(numbers, number) {
					return malformed(address, "it answered for partition %d, which it was not asked about", number)
				}
				if told := answer.GetError(); told != nil {
					found := fromWire(told)
					if !found.Retriable {
						return found
					}
					c.noteLeader(topic, number, found)
					last = found
					continue
				}
				if !accept(answer) {
					return malformed(address, "its answer for partition %d does not fit the question", number)
				}
				missing = slices.DeleteFunc(missing, func(each int32) bool { return each == number })
			}
		}
		if len(missing) == 0 {
			return nil
		}
		_, _ = c.refresh(ctx, topic) // who leads by now
		if last == nil {
			last = newError(pb.ErrorCode_NOT_LEADER, "topic %q: partitions %v have no answer yet", topic, missing)
		}
		return last
	})
}

// commit has the leaders write down how far a member of a group is, and looks whether they have: the word of a member
// that has a partition no more does not count, and that is no error to its leader.
func (c *Client) commit(
	ctx context.Context, topic string, offsets map[int32]int64, group, member string, key []byte,
) error {
	missing := slices.Sorted(maps.Keys(offsets))
	return retry(ctx, func() error {
		epochs, err := c.moveCursors(ctx, topic, missing, offsets, group, member, key)
		if err != nil {
			return err
		}
		cursors, err := c.cursors(ctx, topic, missing, group)
		if err != nil {
			return err
		}
		for partition, cursor := range cursors {
			if cursor.GetOffset() >= offsets[partition] {
				missing = slices.DeleteFunc(missing, func(each int32) bool { return each == partition })
			} else if cursor.GetLeaderEpoch() == epochs[partition] {
				return newError(pb.ErrorCode_LEASE_LOST, "topic %q partition %d is another member's of group %q by now, "+
					"which is given records from offset %d on again", topic, partition, group, cursor.GetOffset())
			}
		}
		if len(missing) > 0 {
			return newError(pb.ErrorCode_NOT_LEADER, "topic %q: partitions %v have got another leader", topic, missing)
		}
		return nil
	})
}

// moveCursors gives the epoch of each leader that has answered.
func (c *Client) moveCursors(
	ctx context.Context, topic string, partitions []int32, offsets map[int32]int64, group, member string, key []byte,
) (map[int32]int64, error) {
	epochs := map[int32]int64{}
	question := func(address string, numbers []int32) ([]*pb.PartitionOffsets, error) {
		request := &pb.MoveCursorsRequest{Group: group, Kind: "consumer", MemberId: member, MemberKey: key}
		for _, number := range numbers {
			request.Positions = append(request.Positions,
				&pb.CursorPosition{Topic: topic, Partition: number, Offset: offsets[number]})
		}
		answer, err := ask(ctx, c, address, pb.BrokerClient.MoveCursors, request)
		return answer.GetPartitions(), err
	}
	err := askLeaders(ctx, c, topic, partitions, question, func(answer *pb.PartitionOffsets) bool {
		epochs[answer.GetPartition()] = answer.GetLeaderEpoch()
		return answer.GetLogEndOffset() >= offsets[answer.GetPartition()] // what is settled was committed before
	})
	return epochs, err
}

// cursors asks the leaders of these partitions for the group's place in each. One that leads no more leaves it out.
func (c *Client) cursors(
	ctx context.Context, topic string, partitions []int32, group string,
) (map[int32]*pb.GroupCursor, error) {
	found := map[int32]*pb.GroupCursor{}
	addresses := map[string]bool{}
	for _, partition := range partitions {
		if address := c.leader(topic, partition); address != "" {
			addresses[address] = true
		}
	}
	for address := range addresses {
		request := &pb.GroupsRequest{Group: group}
		for more := true; more; {
			answer, err := ask(ctx, c, address, pb.BrokerClient.Groups, request)
			if err != nil {
				return nil, err
			}
			told := answer.GetCursors()
			for _, cursor := range told {
				if cursor.GetGroup() == group && cursor.GetTopic() == topic && cursor.GetLeads() {
					found[cursor.GetPartition()] = cursor
				}
			}
			if more = answer.GetMore() && len(told) > 0; more {
				last := told[len(told)-1]
				request.After = &pb.TopicPartition{Topic: last.GetTopic(), Partition: last.GetPartition()}
				request.AfterGroup = last.GetGroup()
			}
		}
	}
	return found, nil
}
