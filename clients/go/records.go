package tritonmq

import (
	"context"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"tritonmq/clients/go/pb"
)

// Record is what a topic without columns of its own holds. Key and Value may be nil, which is null.
type Record struct {
	Key, Value []byte
	Headers    []Header
	Timestamp  time.Time // the zero time: now
}

// Header of a record.
type Header struct {
	Key   string
	Value []byte
}

const recordOverhead = 64 // bytes of a record beside its key, value and headers, at most

func (r Record) size() int {
	size := len(r.Key) + len(r.Value) + recordOverhead
	for _, header := range r.Headers {
		size += len(header.Key) + len(header.Value) + recordOverhead
	}
	return size
}

// openBatch fills up with records of one partition. The producer's mu guards it.
type openBatch struct {
	view     *topic
	key      laneKey
	builder  *array.RecordBuilder
	records  []*Result
	size     int
	room     int64
	deadline deadline
	timer    *time.Timer
	span     []byte // of the first record that has one
}

// Publish sends a record of a topic without columns. It goes to the partition that Partition names, else to that of
// its key, else to the partitions in turn, a batch to each. Publish returns at once, but for the first record of a
// topic, and while BufferBytesMax are not acknowledged: then it waits, until ctx ends.
func (p *Producer) Publish(ctx context.Context, topic string, record Record, options ...PublishOption) *Result {
	chosen := publishOptions{partition: -1}
	for _, option := range options {
		option(&chosen)
	}
	if chosen.named {
		return failed(newError(pb.ErrorCode_INVALID_REQUEST, "a UUID names a batch: give it to PublishBatch"))
	}
	if _, err := chosen.span(); err != nil {
		return failed(err)
	}
	if chosen.traced && !slices.ContainsFunc(record.Headers, func(h Header) bool { return h.Key == TraceparentHeader }) {
		named := Header{TraceparentHeader, []byte(chosen.traceparent)}
		record.Headers = append(slices.Clone(record.Headers), named)
	}
	asking, cancel := context.WithTimeout(ctx, p.options.Timeout)
	defer cancel()
	view, err := p.client.topic(asking, topic)
	if err != nil {
		return failed(err)
	}
	if view.typed {
		return failed(newError(pb.ErrorCode_SCHEMA_MISMATCH, "topic %q has columns: give its rows to PublishBatch", topic))
	}
	if chosen.partition < 0 && record.Key != nil {
		chosen.partition = PartitionForKey(record.Key, len(view.leaders))
	}
	if chosen.partition >= 0 {
		if err := p.client.check(view, chosen.partition); err != nil {
			return failed(err)
		}
	}
	room := min(int64(record.size()), p.options.BufferBytesMax)
	if err := p.room.Acquire(ctx, room); err != nil {
		return failed(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.room.Release(room)
		return failed(errClosed())
	}
	if chosen.partition < 0 {
		chosen.partition = p.turn[topic] % int32(len(view.leaders))
	}
	return p.collect(view, laneKey{topic, chosen.partition}, record, room)
}

// collect adds a record to the open batch of its partition. Under mu.
func (p *Producer) collect(view *topic, key laneKey, record Record, room int64) *Result {
	batch := p.open[key]
	most := min(p.options.BatchBytesMax, view.batchMax)
	if batch != nil && (batch.view.id != view.id || batch.size+record.size() > most) {
		p.send(batch)
		batch = nil
	}
	if batch == nil {
		batch = &openBatch{
			view: view, key: key, builder: array.NewRecordBuilder(memory.DefaultAllocator, RecordSchema),
			deadline: newDeadline(p.options.Timeout),
		}
		p.open[key] = batch
		batch.timer = time.AfterFunc(p.options.Linger, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.open[key] == batch {
				p.send(batch)
			}
		})
	}
	batch.append(record)
	if batch.span == nil {
		batch.span = recorded(spanOf(record.Headers))
	}
	batch.size += record.size()
	batch.room += room
	result := newResult()
	batch.records = append(batch.records, result)
	if batch.size >= most {
		p.send(batch)
	}
	return result
}

// send closes a batch and puts it behind the others of its partition. Under mu.
func (p *Producer) send(batch *openBatch) {
	delete(p.open, batch.key)
	p.turn[batch.key.topic] = (batch.key.partition + 1) % int32(len(batch.view.leaders))
	batch.timer.Stop()
	rows := batch.builder.NewRecordBatch()
	batch.builder.Release()
	defer rows.Release()
	payload, err := encode(rows)
	if err != nil {
		p.room.Release(batch.room)
		for _, record := range batch.records {
			record.settle(Place{}, newError(pb.ErrorCode_INVALID_REQUEST, "the records cannot be encoded: %s", err))
		}
		return
	}
	p.add(&outgoing{
		view: batch.view, partition: batch.key.partition, uuid: NewUUID(), count: uint32(rows.NumRows()),
		payload: payload, room: batch.room, deadline: batch.deadline, result: newResult(), records: batch.records,
		span: batch.span,
	})
}

func (b *openBatch) append(record Record) {
	appendBytes(b.builder.Field(0), record.Key)
	appendBytes(b.builder.Field(1), record.Value)
	headers := b.builder.Field(2).(*array.ListBuilder)
	if record.Headers == nil {
		headers.AppendNull()
	} else {
		headers.Append(true)
	}
	for _, header := range record.Headers {
		pair := headers.ValueBuilder().(*array.StructBuilder)
		pair.Append(true)
		pair.FieldBuilder(0).(*array.StringBuilder).Append(header.Key)
		appendBytes(pair.FieldBuilder(1), header.Value)
	}
	at := record.Timestamp
	if at.IsZero() {
		at = time.Now()
	}
	b.builder.Field(3).(*array.TimestampBuilder).Append(arrow.Timestamp(at.UnixMicro()))
}

// appendBytes copies a value. nil is null.
func appendBytes(to array.Builder, value []byte) {
	if value == nil {
		to.AppendNull()
		return
	}
	to.(*array.BinaryBuilder).Append(value)
}
