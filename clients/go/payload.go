package tritonmq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/crypto/blake2b"

	"tritonmq/clients/go/pb"
)

// RecordSchema is what a topic of records stores: a topic that was made without columns.
var RecordSchema = arrow.NewSchema([]arrow.Field{
	{Name: "key", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "headers", Nullable: true, Type: arrow.ListOfField(arrow.Field{Name: "element", Nullable: true,
		Type: arrow.StructOf(
			arrow.Field{Name: "key", Type: arrow.BinaryTypes.String, Nullable: true},
			arrow.Field{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
		)})},
	{Name: "timestamp", Type: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, Nullable: true},
}, nil)

// fingerprint gives the 64 bits by which a broker knows the version of a topic's schema: names, types and
// nullability, in order.
func fingerprint(schema *arrow.Schema) (uint64, error) {
	var text strings.Builder
	for _, field := range schema.Fields() {
		if err := canonicalField(&text, field); err != nil {
			return 0, err
		}
	}
	digest, err := blake2b.New(8, nil)
	if err != nil {
		return 0, err
	}
	digest.Write([]byte(text.String()))
	return binary.LittleEndian.Uint64(digest.Sum(nil)), nil
}

func canonicalField(text *strings.Builder, field arrow.Field) error {
	fmt.Fprintf(text, "%d:%s ", utf8.RuneCountInString(field.Name), field.Name)
	if err := canonicalType(text, field.Type); err != nil {
		return fmt.Errorf("column %q: %w", field.Name, err)
	}
	text.WriteString(nullability(field.Nullable) + ";")
	return nil
}

func nullability(nullable bool) string {
	if nullable {
		return "?"
	}
	return "!"
}

var plainNames = map[arrow.Type]string{
	arrow.BOOL: "bool", arrow.INT8: "int8", arrow.INT16: "int16", arrow.INT32: "int32", arrow.INT64: "int64",
	arrow.FLOAT32: "float", arrow.FLOAT64: "double", arrow.STRING: "string", arrow.BINARY: "binary",
	arrow.DATE32: "date32[day]",
}

func canonicalType(text *strings.Builder, kind arrow.DataType) error {
	if name, plain := plainNames[kind.ID()]; plain {
		text.WriteString(name)
		return nil
	}
	var err error
	switch kind := kind.(type) {
	case *arrow.TimestampType:
		text.WriteString("timestamp[" + kind.Unit.String())
		if kind.TimeZone != "" {
			text.WriteString(", tz=" + kind.TimeZone)
		}
		text.WriteString("]")
	case *arrow.Decimal128Type:
		fmt.Fprintf(text, "decimal128(%d, %d)", kind.Precision, kind.Scale)
	case *arrow.ListType:
		text.WriteString("list<")
		err = canonicalType(text, kind.Elem())
		text.WriteString(nullability(kind.ElemField().Nullable) + ">")
	case *arrow.MapType:
		text.WriteString("map<")
		if err = canonicalType(text, kind.KeyType()); err == nil {
			text.WriteString(",")
			err = canonicalType(text, kind.ItemType())
		}
		text.WriteString(nullability(kind.ItemField().Nullable) + ">")
	case *arrow.StructType:
		text.WriteString("struct<")
		for _, field := range kind.Fields() {
			if err = canonicalField(text, field); err != nil {
				break
			}
		}
		text.WriteString(">")
	default:
		err = fmt.Errorf("no topic has a column of type %s", kind)
	}
	return err
}

// sameShape says whether a batch with the first schema has the bytes that the second one reads. Nullability is left
// to the broker, which looks at the values.
func sameShape(given, wanted *arrow.Schema) error {
	if given.NumFields() != wanted.NumFields() {
		return newError(pb.ErrorCode_SCHEMA_MISMATCH, "the batch has %d columns, the topic %d: give the topic's, in order",
			given.NumFields(), wanted.NumFields())
	}
	for at, field := range wanted.Fields() {
		found := given.Field(at)
		if found.Name != field.Name || shape(found.Type) != shape(field.Type) {
			return newError(pb.ErrorCode_SCHEMA_MISMATCH, "column %d of the batch is %q %s, the topic's is %q %s",
				at, found.Name, found.Type, field.Name, field.Type)
		}
	}
	return nil
}

func shape(kind arrow.DataType) string {
	var text strings.Builder
	if err := canonicalType(&text, kind); err != nil {
		return err.Error()
	}
	return strings.NewReplacer("?", "", "!", "").Replace(text.String())
}

// encode gives a payload: one encapsulated record batch message, without its schema.
func encode(batch arrow.RecordBatch) ([]byte, error) {
	payload, err := ipc.GetRecordBatchPayload(batch)
	if err != nil {
		return nil, err
	}
	defer payload.Release()
	var written bytes.Buffer
	if _, err := payload.WritePayload(&written); err != nil {
		return nil, err
	}
	return written.Bytes(), nil
}

// schemaMessage gives the encapsulated message that stands before a payload to make a stream of both.
func schemaMessage(schema *arrow.Schema) ([]byte, error) {
	payload := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
	defer payload.Release()
	var written bytes.Buffer
	if _, err := payload.WritePayload(&written); err != nil {
		return nil, err
	}
	return written.Bytes(), nil
}

func readSchema(message []byte) (schema *arrow.Schema, err error) {
	if len(message) == 0 {
		return RecordSchema, nil
	}
	defer recovered("schema", &err)
	if err := checkSchema(message); err != nil {
		return nil, err
	}
	reader, err := ipc.NewReader(bytes.NewReader(message))
	if err != nil {
		return nil, newError(pb.ErrorCode_CORRUPT_BATCH, "corrupt schema: %s", err)
	}
	defer reader.Release()
	return reader.Schema(), nil
}

// recovered makes an error of a panic: bytes from outside must not end the program.
func recovered(what string, err *error) {
	if found := recover(); found != nil {
		*err = newError(pb.ErrorCode_CORRUPT_BATCH, "corrupt %s: %v", what, found)
	}
}

// decode reads one payload of a topic, and checks all of it: nothing that is read of the batch later can panic. A batch
// that was stored before columns were added has fewer: they are null.
func decode(payload []byte, schema *arrow.Schema) (batch arrow.RecordBatch, err error) {
	defer recovered("batch", &err)
	stored, err := storedSchema(payload, schema)
	if err != nil {
		return nil, err
	}
	message, err := schemaMessage(stored)
	if err != nil {
		return nil, err
	}
	reader, err := ipc.NewReader(io.MultiReader(bytes.NewReader(message), bytes.NewReader(payload)))
	if err != nil {
		return nil, newError(pb.ErrorCode_CORRUPT_BATCH, "corrupt batch: %s", err)
	}
	defer reader.Release()
	if !reader.Next() {
		return nil, newError(pb.ErrorCode_CORRUPT_BATCH, "corrupt batch: %v", reader.Err())
	}
	batch = reader.RecordBatch()
	if err := array.ValidateRecordFull(batch); err != nil {
		return nil, corrupt("%s", err)
	}
	columns := make([]arrow.Array, schema.NumFields())
	for at := range columns {
		if at < int(batch.NumCols()) {
			columns[at] = batch.Column(at)
			continue
		}
		columns[at] = array.MakeArrayOfNull(memory.DefaultAllocator, schema.Field(at).Type, int(batch.NumRows()))
		defer columns[at].Release()
	}
	return array.NewRecordBatch(schema, columns, batch.NumRows()), nil
}

// storedSchema gives the version of the schema that a payload was stored with: the first columns, as many as have
// the nodes that the message tells of.
func storedSchema(payload []byte, schema *arrow.Schema) (*arrow.Schema, error) {
	nodes, buffers, _, err := checkBatch(payload)
	if err != nil {
		return nil, err
	}
	left, leftBuffers := nodes, buffers
	for at, field := range schema.Fields() {
		some, others := layoutOf(field.Type)
		left, leftBuffers = left-some, leftBuffers-others
		if left == 0 && leftBuffers == 0 {
			return arrow.NewSchema(schema.Fields()[:at+1], nil), nil
		}
		if left < 0 {
			break
		}
	}
	return nil, newError(pb.ErrorCode_CORRUPT_BATCH, "corrupt batch: it has %d nodes and %d buffers, which no "+
		"version of the topic's schema has", nodes, buffers)
}
