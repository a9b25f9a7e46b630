package tritonmq

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"tritonmq/clients/go/pb"
)

func little(numbers ...int32) []byte {
	var written bytes.Buffer
	_ = binary.Write(&written, binary.LittleEndian, numbers)
	return written.Bytes()
}

// packed gives one record with a value of 5,000 bytes, compressed.
func packed(t testing.TB) []byte {
	t.Helper()
	batch := &openBatch{builder: array.NewRecordBuilder(memory.DefaultAllocator, RecordSchema)}
	batch.append(Record{Value: bytes.Repeat([]byte("x"), 5_000)})
	payload, err := ipc.GetRecordBatchPayload(batch.builder.NewRecordBatch(), ipc.WithZstd())
	if err != nil {
		t.Fatal(err)
	}
	defer payload.Release()
	var written bytes.Buffer
	if _, err := payload.WritePayload(&written); err != nil {
		t.Fatal(err)
	}
	return written.Bytes()
}

func replaced(t *testing.T, payload, what, by []byte) []byte {
	t.Helper()
	if bytes.Count(payload, what) != 1 {
		t.Fatalf("%x is there %d times", what, bytes.Count(payload, what))
	}
	return bytes.Replace(payload, what, by, 1)
}

func TestWhatALyingBrokerSendsIsAnErrorAndNothingElse(t *testing.T) {
	_, whole := stored(t, 0, "aaa", "bbbbb") // whose values end at 3 and 8
	small := packed(t)
	numbers, err := encode(array.NewRecordBatch(arrow.NewSchema(
		[]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil),
		[]arrow.Array{array.MakeArrayOfNull(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, 2)}, 2))
	if err != nil {
		t.Fatal(err)
	}
	places := little(0, 3, 8)
	declared := func(size int64) []byte {
		return replaced(t, small, binary.LittleEndian.AppendUint64(nil, 5_000),
			binary.LittleEndian.AppendUint64(nil, uint64(size)))
	}
	for name, c := range map[string]struct {
		payload []byte
		count   uint32
		says    string
	}{
		"offsets behind the values":   {replaced(t, whole, places, little(0, 3, 1<<30)), 2, ""},
		"a negative offset":           {replaced(t, whole, places, little(0, -1, 8)), 2, ""},
		"offsets that go back":        {replaced(t, whole, places, little(0, 8, 3)), 2, ""},
		"a body that is cut off":      {whole[:len(whole)-16], 2, "the metadata says"},
		"metadata that is cut off":    {whole[:40], 2, ""},
		"more records than there are": {whole, 3, ""},
		"no records":                  {whole, 0, ""},
		"records without end":         {whole, 1<<32 - 1, ""},
		"another schema":              {numbers, 2, ""},
		"16 GiB once it is decoded":   {declared(16 << 30), 1, "declares 17179869184 bytes"},
		"less than nothing":           {declared(-2), 1, "declares -2 bytes"},
		"more than is there":          {declared(6_000), 1, ""},
		"metadata of 2 GiB":           {append(little(-1, 1<<31-8), whole[8:]...), 2, "metadata of 2147483640 bytes"},
		"a body of nothing":           {nil, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			batch := &pb.StoredBatch{RecordCount: c.count, PayloadBytes: uint32(len(c.payload))}
			broker := &hostile{fetch: &pb.BatchesResponse{
				Header: &pb.BatchesHeader{Batches: []*pb.StoredBatch{batch}}, Payload: c.payload}}
			ctx, client := broker.serve(t)
			for rows, err := range client.Read(ctx, "t", 0, 0, 2) {
				if err == nil {
					t.Log(rows)
				} else if CodeOf(err) == pb.ErrorCode_CORRUPT_BATCH && strings.Contains(err.Error(), c.says) {
					return
				}
				t.Fatal(err)
			}
		})
	}
}

func TestASchemaThatALyingBrokerTellsIsAnError(t *testing.T) {
	honest, err := schemaMessage(RecordSchema)
	if err != nil {
		t.Fatal(err)
	}
	long, err := schemaMessage(arrow.NewSchema(
		[]arrow.Field{{Name: strings.Repeat("x", schemaBytesMax+1), Type: arrow.PrimitiveTypes.Int64}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, schema := range map[string][]byte{
		"metadata of 2 GiB": append(little(-1, 1<<31-8), honest[8:]...),
		"cut off":           honest[:60],
		"nonsense":          []byte(strings.Repeat("x", 100)),
		"a name of 4 MiB":   long,
		"a batch":           packed(t),
	} {
		t.Run(name, func(t *testing.T) {
			broker := &hostile{}
			ctx, client := broker.serve(t)
			broker.schema = schema
			for _, err := range client.Read(ctx, "t", 0, 0, 2) {
				if CodeOf(err) != pb.ErrorCode_CORRUPT_BATCH {
					t.Fatal(err)
				}
				return
			}
			t.Fatal("nothing")
		})
	}
}

// FuzzWhatABrokerSends: go test -run=NONE -fuzz=FuzzWhatABrokerSends -fuzztime=10m .
func FuzzWhatABrokerSends(f *testing.F) {
	typed := arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "l", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.FixedWidthTypes.Boolean), Nullable: true},
	}, nil)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, typed)
	rows := `[{"n":1,"s":"a","l":["b","c"],"m":[{"key":"k","value":true}]},{"n":null,"s":"é","l":[null],"m":null}]`
	made, _, err := array.RecordFromJSON(memory.DefaultAllocator, typed, strings.NewReader(rows))
	if err != nil {
		f.Fatal(err)
	}
	builder.Release()
	columns, err := encode(made)
	if err != nil {
		f.Fatal(err)
	}
	batch := &openBatch{builder: array.NewRecordBuilder(memory.DefaultAllocator, RecordSchema)}
	batch.append(Record{Key: []byte("k"), Value: []byte("v"), Headers: []Header{{"h", []byte("x")}}})
	batch.append(Record{Value: []byte("vv")})
	records, err := encode(batch.builder.NewRecordBatch())
	if err != nil {
		f.Fatal(err)
	}
	schema, err := schemaMessage(typed)
	if err != nil {
		f.Fatal(err)
	}
	for kind, seed := range [][]byte{records, columns, schema} {
		f.Add(byte(kind), seed)
	}
	f.Add(byte(0), packed(f))
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		view := &topic{name: "t", schema: RecordSchema}
		switch kind % 3 {
		case 1:
			view = &topic{name: "t", schema: typed, typed: true}
		case 2:
			if schema, err := readSchema(data); err == nil {
				_, _ = fingerprint(schema)
			}
			return
		}
		rows, err := decode(data, view.schema)
		if err != nil {
			return
		}
		messages, err := rowsOf(view, &pb.StoredBatch{}, rows)
		if err != nil {
			t.Fatal(err)
		}
		for at, message := range messages {
			if view.typed && at < 100 { // a million rows would be looked at for seconds
				_, err = message.Row.MarshalJSON()
			}
			if err != nil && !strings.Contains(err.Error(), "UTF") {
				t.Fatal(err)
			}
		}
	})
}
