package tritonmq

import (
	"encoding/binary"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	flatbuffers "github.com/google/flatbuffers/go"

	"tritonmq/clients/go/pb"
)

// What a broker says is not taken for true. Here is bounded what its messages cost, before arrow-go reads them: it
// takes memory for every size that it is told.

const (
	batchRecordsMax      = 1_000_000 // as brokers have it
	batchDecodedBytesMax = 256 << 20 // the most that a topic may allow
	schemaFieldsMax      = 10_000    // more than any topic has
	schemaBytesMax       = 4 << 20
	schemaDepthMax       = 64
)

// The slots of fields in their tables, as in the Arrow format's Message.fbs and Schema.fbs.
const (
	messageKind, messageHeader, messageBody, messageMetadata = 6, 8, 10, 12
	batchLength, batchNodes, batchBuffers                    = 4, 6, 8
	batchCompression, batchVariadic                          = 10, 12
	schemaFields, schemaMetadata                             = 6, 8
	fieldName, fieldKind, fieldType                          = 4, 8, 10
	fieldChildren, fieldMetadata                             = 14, 16
	timestampZone                                            = 6
	kindSchema, kindBatch, kindTimestamp, kindUnion          = 1, 3, 10, 14
)

func corrupt(format string, arguments ...any) error {
	return newError(pb.ErrorCode_CORRUPT_BATCH, "corrupt batch: "+format, arguments...)
}

// headerOf gives the header of one encapsulated message, and the body behind it. Panics on nonsense, as all below: who
// decodes recovers.
func headerOf(message []byte, kind byte) (header flatbuffers.Table, body []byte, err error) {
	const prefix = 8 // continuation marker and length
	if len(message) < prefix+4 || binary.LittleEndian.Uint32(message) != 0xffffffff {
		return header, nil, corrupt("%d bytes are no Arrow message", len(message))
	}
	size := uint64(binary.LittleEndian.Uint32(message[4:]))
	if size == 0 || size > uint64(len(message)-prefix) {
		return header, nil, corrupt("metadata of %d bytes does not fit %d bytes", size, len(message))
	}
	metadata, body := message[prefix:prefix+size], message[prefix+size:]
	root := flatbuffers.Table{Bytes: metadata, Pos: flatbuffers.GetUOffsetT(metadata)}
	if found := root.GetByteSlot(messageKind, 0); found != kind {
		return header, nil, corrupt("the message has a header of kind %d, and %d is wanted", found, kind)
	}
	if told := root.GetInt64Slot(messageBody, 0); told != int64(len(body)) {
		return header, nil, corrupt("the body is %d bytes, the metadata says %d", len(body), told)
	}
	if vectorLength(root, messageMetadata) > 0 {
		return header, nil, corrupt("the message has metadata of its own, which topics do not keep")
	}
	at := root.Offset(messageHeader)
	if at == 0 {
		return header, nil, corrupt("its message has no header")
	}
	root.Union(&header, flatbuffers.UOffsetT(at))
	return header, body, nil
}

func vectorLength(table flatbuffers.Table, slot flatbuffers.VOffsetT) int {
	if at := table.Offset(slot); at != 0 {
		return table.VectorLen(flatbuffers.UOffsetT(at))
	}
	return 0
}

// checkBatch bounds one record batch message: the bytes that it becomes when it is decoded. How many nodes and buffers
// it has is to be compared with the schema: arrow-go reads as many as that has, beyond their ends too.
func checkBatch(payload []byte) (nodes, buffers int, decoded int64, err error) {
	batch, body, err := headerOf(payload, kindBatch)
	if err != nil {
		return 0, 0, 0, err
	}
	if rows := batch.GetInt64Slot(batchLength, 0); rows < 0 || rows > batchRecordsMax {
		return 0, 0, 0, corrupt("it has %d records, and may have %d", rows, batchRecordsMax)
	}
	if vectorLength(batch, batchVariadic) > 0 {
		return 0, 0, 0, corrupt("view types are not stored in topics")
	}
	nodes = vectorLength(batch, batchNodes)
	buffers = vectorLength(batch, batchBuffers)
	if nodes > schemaFieldsMax || buffers > 3*schemaFieldsMax {
		return 0, 0, 0, corrupt("it lists %d columns and %d buffers", nodes, buffers)
	}
	for at := range nodes {
		length, nulls := pair(batch, batchNodes, at)
		if length < 0 || nulls < 0 || nulls > length {
			return 0, 0, 0, corrupt("a column of %d values claims %d nulls", length, nulls)
		}
	}
	compressed := batch.Offset(batchCompression) != 0
	for at := range buffers {
		from, size := pair(batch, batchBuffers, at)
		if from < 0 || size < 0 || from > int64(len(body)) || size > int64(len(body))-from {
			return 0, 0, 0, corrupt("a buffer of %d bytes at %d lies outside the body of %d", size, from, len(body))
		}
		if compressed && size > 0 {
			if size < 8 {
				return 0, 0, 0, corrupt("a compressed buffer is too short to hold its length")
			}
			told := int64(binary.LittleEndian.Uint64(body[from:]))
			if told == -1 { // it is stored as it is
				told = size - 8
			}
			if told < 0 || told > batchDecodedBytesMax {
				return 0, 0, 0, corrupt("a compressed buffer declares %d bytes", told)
			}
			size = told
		}
		if decoded += size; decoded > batchDecodedBytesMax {
			return 0, 0, 0, corrupt("it becomes more than %d bytes, which no topic allows", batchDecodedBytesMax)
		}
	}
	return nodes, buffers, decoded, nil
}

// pair reads one of a vector of structs of two longs.
func pair(table flatbuffers.Table, slot flatbuffers.VOffsetT, at int) (first, second int64) {
	place := table.Vector(flatbuffers.UOffsetT(table.Offset(slot))) + flatbuffers.UOffsetT(16*at)
	return table.GetInt64(place), table.GetInt64(place + 8)
}

// decodedBytes gives what a batch becomes when it is decoded; more than any batch for one that cannot be.
func decodedBytes(payload []byte) (size int64) {
	defer func() {
		if recover() != nil {
			size = batchDecodedBytesMax + 1
		}
	}()
	_, _, size, err := checkBatch(payload)
	if err != nil {
		return batchDecodedBytesMax + 1
	}
	return size
}

// checkSchema bounds what a schema message becomes. It may point at one field or text any number of times, and arrow-go
// makes a new one each time.
func checkSchema(message []byte) error {
	schema, _, err := headerOf(message, kindSchema)
	if err != nil {
		return err
	}
	walk := schemaWalk{}
	if err := walk.metadata(schema, schemaMetadata); err != nil {
		return err
	}
	return walk.fields(schema, schemaFields, 1)
}

// schemaWalk counts fields, nested ones too, and bytes of text, each as often as it is pointed at.
type schemaWalk struct{ fieldCount, byteCount int }

func (w *schemaWalk) add(count int) error {
	if w.byteCount += count; count < 0 || w.byteCount > schemaBytesMax {
		return corrupt("a schema whose names and metadata have more than %d bytes", schemaBytesMax)
	}
	return nil
}

func (w *schemaWalk) fields(table flatbuffers.Table, slot flatbuffers.VOffsetT, depth int) error {
	if depth > schemaDepthMax {
		return corrupt("a schema whose types are nested deeper than %d", schemaDepthMax)
	}
	return each(table, slot, func(field flatbuffers.Table) error {
		if w.fieldCount++; w.fieldCount > schemaFieldsMax {
			return corrupt("a schema of more than %d fields", schemaFieldsMax)
		}
		size := vectorLength(field, fieldName)
		if at := field.Offset(fieldType); at != 0 {
			var kind flatbuffers.Table
			field.Union(&kind, flatbuffers.UOffsetT(at))
			if number := field.GetByteSlot(fieldKind, 0); number == kindTimestamp || number == kindUnion {
				size += vectorLength(kind, timestampZone) // or a union's list of types
			}
		}
		if err := w.add(size); err != nil {
			return err
		}
		if err := w.metadata(field, fieldMetadata); err != nil {
			return err
		}
		return w.fields(field, fieldChildren, depth+1)
	})
}

func (w *schemaWalk) metadata(table flatbuffers.Table, slot flatbuffers.VOffsetT) error {
	return each(table, slot, func(entry flatbuffers.Table) error {
		const beside = 64 // about what a pair of texts takes
		return w.add(beside + vectorLength(entry, 4) + vectorLength(entry, 6))
	})
}

// each calls for the tables of a vector, one by one.
func each(table flatbuffers.Table, slot flatbuffers.VOffsetT, call func(flatbuffers.Table) error) error {
	at := table.Offset(slot)
	if at == 0 {
		return nil
	}
	start := table.Vector(flatbuffers.UOffsetT(at))
	for number := range table.VectorLen(flatbuffers.UOffsetT(at)) {
		place := start + flatbuffers.UOffsetT(4*number)
		if err := call(flatbuffers.Table{Bytes: table.Bytes, Pos: table.Indirect(place)}); err != nil {
			return err
		}
	}
	return nil
}

// keptRows counts the rows that a filter has kept of a stored batch. False: it tells of more rows than there are.
func keptRows(stored *pb.StoredBatch) (count int64, ok bool) {
	for _, some := range stored.GetKept() {
		count += int64(bits.OnesCount8(some))
	}
	return count, 8*int64(len(stored.GetKept())) < int64(stored.GetRecordCount())+8
}

// layoutOf gives how many nodes and buffers a column has.
func layoutOf(kind arrow.DataType) (nodes, buffers int) {
	nodes, buffers = 1, len(kind.Layout().Buffers)
	if nested, ok := kind.(arrow.NestedType); ok {
		for _, field := range nested.Fields() {
			more, others := layoutOf(field.Type)
			nodes, buffers = nodes+more, buffers+others
		}
	}
	return nodes, buffers
}
