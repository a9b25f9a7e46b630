package tritonmq

import (
	"context"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"tritonmq/clients/go/pb"
)

// messagesOf reads the records of a stored batch. Nothing of it is released: the collector finds it when it is not
// used any more. Of columns that are not known yet it is asked for a while: a broker may be the last to hear of them.
func (c *Client) messagesOf(
	ctx context.Context, view *topic, stored *pb.StoredBatch, payload []byte,
) ([]Message, error) {
	rows, err := decode(payload, view.schema)
	asking, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	for attempt := 0; err != nil && view.typed; attempt++ {
		wider, refused := c.refresh(asking, view.name)
		if refused == nil && wider.id == view.id {
			if rows, err = decode(payload, wider.schema); err == nil {
				break
			}
		}
		if !pause(asking, attempt) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if rows.NumRows() != int64(stored.GetRecordCount()) {
		return nil, newError(pb.ErrorCode_CORRUPT_BATCH, "topic %q partition %d: the batch at offset %d has %d records, "+
			"and its broker says %d", view.name, stored.GetPartition(), stored.GetBaseOffset(), rows.NumRows(),
			stored.GetRecordCount())
	}
	return rowsOf(view, stored, rows)
}

// rowsOf gives rows as messages, of which the first has the batch's offset.
func rowsOf(view *topic, stored *pb.StoredBatch, rows arrow.RecordBatch) (messages []Message, err error) {
	defer recovered("batch", &err)
	messages = make([]Message, rows.NumRows())
	appended := time.UnixMicro(stored.GetTimestampUs())
	for at := range messages {
		messages[at] = Message{
			Topic: view.name, Partition: stored.GetPartition(), Offset: stored.GetBaseOffset() + int64(at),
			Record: Record{Timestamp: appended},
		}
		if view.typed {
			messages[at].Row = rows.NewSlice(int64(at), int64(at)+1)
		}
	}
	if view.typed {
		return messages, nil
	}
	keys, values := rows.Column(0).(*array.Binary), rows.Column(1).(*array.Binary)
	headers, times := rows.Column(2).(*array.List), rows.Column(3).(*array.Timestamp)
	for at := range messages {
		record := &messages[at].Record
		record.Key, record.Value = bytesAt(keys, at), bytesAt(values, at)
		record.Headers = headersAt(headers, at)
		if !times.IsNull(at) {
			record.Timestamp = time.UnixMicro(int64(times.Value(at)))
		}
	}
	return messages, nil
}

func bytesAt(column *array.Binary, at int) []byte {
	if column.IsNull(at) {
		return nil
	}
	if value := column.Value(at); len(value) > 0 {
		return slices.Clip(value)
	}
	return []byte{} // which is not null
}

func headersAt(column *array.List, at int) []Header {
	if column.IsNull(at) {
		return nil
	}
	first, end := column.ValueOffsets(at)
	pairs := column.ListValues().(*array.Struct)
	keys, values := pairs.Field(0).(*array.String), pairs.Field(1).(*array.Binary)
	found := make([]Header, 0, end-first)
	for pair := int(first); pair < int(end); pair++ {
		if !pairs.IsNull(pair) {
			found = append(found, Header{keys.Value(pair), bytesAt(values, pair)})
		}
	}
	return found
}
