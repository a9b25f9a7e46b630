// Package tritonmq is the Go client of TritonMQ: it publishes records and batches of Arrow rows, reads partitions by
// offset, and is a member of consumer groups and work queues.
//
//	c, err := tritonmq.Dial(ctx, "host1:7400,host2:7400", tritonmq.Options{})
//	p, err := c.NewProducer(tritonmq.ProducerOptions{})
//	place, err := p.PublishBatch(ctx, "flights", batch, tritonmq.Partition(2), tritonmq.WithUUID(id)).Wait(ctx)
//	for batch, err := range c.Read(ctx, "flights", 2, tritonmq.Earliest, tritonmq.Latest) { … }
//	s, err := c.Subscribe(ctx, []string{"chat"}, tritonmq.Group("readers"))
//	for message, err := range s.Records() { …; err = s.Settle(message) }
//	q, err := c.OpenQueue(ctx, "jobs", "workers", tritonmq.QueueOptions{})
//	for record, err := range q.Records() { …; record.Ack() }
//
// The messages in pb are generated from mq.proto. docs/protocol.md says what is not in them.
package tritonmq
