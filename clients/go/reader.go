package tritonmq

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"tritonmq/clients/go/pb"
)

// Where a read may begin and end beside an offset.
const (
	Latest   int64 = -1 // behind the last record that there is now
	Earliest int64 = -2 // the first record that is kept
)

const (
	fetchChunkBytes = 1 << 20
	fetchTimeout    = 10 * time.Second // of one stream: one that hangs must not take all the time there is
)

type readOptions struct {
	columns []string
	project bool
	filter  string
}

// ReadOption narrows what Read gives.
type ReadOption func(*readOptions)

// Columns has Read give only these columns, in this order. The others never leave the broker.
func Columns(names ...string) ReadOption {
	return func(o *readOptions) { o.columns, o.project = names, true }
}

// Where has Read give only rows for which the condition holds, such as "dep_delay > 60 AND carrier = 'UA'". The
// others never leave the broker. docs/protocol.md names the grammar.
func Where(condition string) ReadOption {
	return func(o *readOptions) { o.filter = condition }
}

// read is one Read as it goes on. position: the next offset that is wanted.
type read struct {
	client        *Client
	topic         *topic
	schema        *arrow.Schema
	partition     int32
	start         int64
	position, end int64
	appendedUs    int64 // of the batch that is given
	options       readOptions
}

// Read gives the records of a partition from offset start to before end, in order, in batches with the topic's
// columns. start and end may be Earliest and Latest. An end beyond the log is waited for.
//
// A batch is the caller's until the next one is asked for: Retain one that is to live longer. Read goes on at another
// broker when one fails. It ends with NOT_YET_WRITTEN or PARTITION_UNAVAILABLE when nothing has come for
// Options.Timeout; all that came before was given by then.
func (c *Client) Read(
	ctx context.Context, topic string, partition int32, start, end int64, options ...ReadOption,
) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		r, err := c.newRead(ctx, topic, partition, start, end, options)
		if err == nil {
			err = r.follow(ctx, yield)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// errStopped: whoever reads wants no more.
var errStopped = errors.New("stopped")

func (c *Client) newRead(
	ctx context.Context, name string, partition int32, start, end int64, options []ReadOption,
) (*read, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	view, err := c.topicNow(ctx, name) // with the columns that were just added
	if err != nil {
		return nil, err
	}
	if err := c.check(view, partition); err != nil {
		return nil, err
	}
	r := &read{client: c, topic: view, schema: view.schema, partition: partition, start: start, end: end}
	for _, option := range options {
		option(&r.options)
	}
	if r.options.project {
		fields := make([]arrow.Field, len(r.options.columns))
		for at, name := range r.options.columns {
			found, known := view.schema.FieldsByName(name)
			if !known {
				return nil, newError(pb.ErrorCode_SCHEMA_MISMATCH, "topic %q has no column %q", view.name, name)
			}
			fields[at] = found[0]
		}
		r.schema = arrow.NewSchema(fields, nil)
	}
	if start < 0 || end < 0 {
		first, last, err := c.Offsets(ctx, name, partition)
		if err != nil {
			return nil, err
		}
		places := map[int64]int64{Earliest: first, Latest: last}
		if start < 0 {
			r.start = places[start]
		}
		if end < 0 {
			r.end = max(r.start, places[end])
		}
	}
	if r.position = r.start; r.end < r.start || start < Earliest || end < Earliest {
		return nil, newError(pb.ErrorCode_INVALID_REQUEST, "cannot read offsets %d to %d: give start <= end", start, end)
	}
	return r, nil
}

// Offsets asks a partition's leader for the first offset that is kept and the one behind the last.
func (c *Client) Offsets(ctx context.Context, name string, partition int32) (start, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	view, err := c.topic(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	if err := c.check(view, partition); err != nil {
		return 0, 0, err
	}
	err = retry(ctx, func() error {
		address := c.leader(name, partition)
		if address == "" {
			_, _ = c.refresh(ctx, name)
			return newError(pb.ErrorCode_NOT_LEADER, "topic %q partition %d has no leader at the moment", name, partition)
		}
		answer, err := ask(ctx, c, address, pb.BrokerClient.ListOffsets,
			&pb.ListOffsetsRequest{Topic: name, Partitions: []int32{partition}})
		if err == nil && len(answer.GetPartitions()) != 1 {
			err = newError(pb.ErrorCode_INTERNAL, "broker at %s told of %d partitions", address, len(answer.GetPartitions()))
		}
		if err == nil && answer.GetPartitions()[0].GetError() != nil {
			err = fromWire(answer.GetPartitions()[0].GetError())
		}
		if err != nil {
			_, _ = c.refresh(ctx, name)
			return err
		}
		start, end = answer.GetPartitions()[0].GetLogStartOffset(), answer.GetPartitions()[0].GetLogEndOffset()
		return nil
	})
	return start, end, err
}

// follow makes fetch after fetch, each from where the one before broke off. Replicas are asked in turn; after the
// last it waits a moment and looks at who leads.
func (r *read) follow(ctx context.Context, yield func(arrow.RecordBatch, error) bool) error {
	failures, quiet, beyond := 0, newDeadline(r.client.options.Timeout), false
	for r.position < r.end {
		var last error = newError(pb.ErrorCode_NOT_LEADER, "topic %q partition %d has no leader at the moment",
			r.topic.name, r.partition)
		for _, address := range r.client.replicasOf(r.topic, r.partition) {
			began := r.position
			last = r.fetch(ctx, address, quiet.remaining(), yield)
			if r.position > began {
				failures, beyond = 0, false
				quiet = newDeadline(r.client.options.Timeout)
			}
			if last == nil || CodeOf(last) == pb.ErrorCode_NOT_YET_WRITTEN || quiet.over() {
				break
			}
			if CodeOf(last) == pb.ErrorCode_OFFSET_OUT_OF_RANGE && !beyond {
				beyond = true // a replica that lags behind says so of a record that there is: look who leads, once
				break
			}
			if !isRetriable(last) {
				return last
			}
		}
		if last == nil {
			continue
		}
		if quiet.over() || !pause(ctx, failures) {
			return r.over(ctx, last)
		}
		failures++
		if view, err := r.client.refresh(ctx, r.topic.name); err == nil {
			if view.id != r.topic.id {
				return newError(pb.ErrorCode_UNKNOWN_TOPIC,
					"topic %q was deleted and made again while it was read: begin anew to read that one", view.name)
			}
			r.topic = view
		} else if !isRetriable(err) {
			return err
		}
	}
	return nil
}

func (r *read) over(ctx context.Context, last error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if code := CodeOf(last); code == pb.ErrorCode_NOT_YET_WRITTEN || code == pb.ErrorCode_OFFSET_OUT_OF_RANGE {
		return last
	}
	return newError(pb.ErrorCode_PARTITION_UNAVAILABLE,
		"topic %q partition %d: no replica gave offset %d, last: %s; all before it was given",
		r.topic.name, r.partition, r.position, last)
}

// fetch is one stream of one broker.
func (r *read) fetch(
	ctx context.Context, address string, limit time.Duration, yield func(arrow.RecordBatch, error) bool,
) error {
	broker, err := r.client.broker(address)
	if err != nil {
		return err
	}
	stream, cancel := context.WithTimeout(ctx, min(limit, fetchTimeout))
	defer cancel()
	call, err := broker.Fetch(stream, &pb.FetchRequest{
		Topic: r.topic.name, TopicId: r.topic.id, Partition: r.partition, LeaderEpoch: r.topic.epochs[r.partition],
		StartOffset: r.position, EndOffset: r.end, ChunkBytesMax: fetchChunkBytes,
		Columns: r.options.columns, Project: r.options.project, Filter: r.options.filter,
	})
	if err != nil {
		return fromCall(ctx, err, nil, address)
	}
	for {
		message, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fromCall(ctx, err, call.Trailer(), address)
		}
		if told := message.GetHeader().GetError(); told != nil {
			return fromWire(told)
		}
		if err := r.give(message, yield); err != nil {
			return err
		}
	}
	if r.position < r.end {
		return newError(pb.ErrorCode_OUTCOME_UNKNOWN, "broker at %s ended a fetch before all of it came", address)
	}
	return nil
}

// give hands on the stored batches of one message, cut to what is wanted.
func (r *read) give(message *pb.BatchesResponse, yield func(arrow.RecordBatch, error) bool) error {
	payload := message.GetPayload()
	for _, stored := range message.GetHeader().GetBatches() {
		if uint64(stored.GetPayloadBytes()) > uint64(len(payload)) {
			return r.corrupt(stored)
		}
		own := payload[:stored.GetPayloadBytes()]
		payload = payload[stored.GetPayloadBytes():]
		base := stored.GetBaseOffset()
		upto := min(base+int64(stored.GetRecordCount()), r.end)
		if base > r.position || stored.GetRecordCount() == 0 || stored.GetRecordCount() > batchRecordsMax {
			return r.corrupt(stored)
		}
		if upto <= r.position {
			continue
		}
		batch, err := r.cut(stored, own, upto)
		if err != nil {
			return err
		}
		r.position, r.appendedUs = upto, stored.GetTimestampUs()
		if batch == nil {
			continue
		}
		wanted := batch.NumRows() == 0 || yield(batch, nil)
		batch.Release()
		if !wanted {
			return errStopped
		}
	}
	return nil
}

// cut decodes the rows of a stored batch from position to before upto. nil: a filter kept none.
func (r *read) cut(stored *pb.StoredBatch, payload []byte, upto int64) (arrow.RecordBatch, error) {
	if stored.Kept != nil && len(payload) == 0 {
		return nil, nil
	}
	batch, err := decode(payload, r.schema)
	if err != nil {
		return nil, err
	}
	if stored.Kept != nil { // the broker has cut to what was asked for
		if count, ok := keptRows(stored); !ok || count != batch.NumRows() {
			return nil, r.corrupt(stored)
		}
		return batch, nil
	}
	defer batch.Release()
	if batch.NumRows() != int64(stored.GetRecordCount()) {
		return nil, r.corrupt(stored)
	}
	return batch.NewSlice(r.position-stored.GetBaseOffset(), upto-stored.GetBaseOffset()), nil
}

func (r *read) corrupt(stored *pb.StoredBatch) error {
	return newError(pb.ErrorCode_CORRUPT_BATCH,
		"topic %q partition %d: the batch at offset %d is not what its broker says (%d records said, %d wanted)",
		r.topic.name, r.partition, stored.GetBaseOffset(), stored.GetRecordCount(), r.position)
}
