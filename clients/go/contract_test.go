package tritonmq

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"tritonmq/clients/go/pb"
)

// vectors reads what the tests of both languages go by.
func vectors[T any](t *testing.T, name string) []T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "tests", "mq_protocol", "vectors", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var found []T
	if err := json.Unmarshal(data, &found); err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("%s has no vectors", name)
	}
	return found
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestKeysLandWhereTheyDoInPython(t *testing.T) {
	type vector struct {
		Key        string
		Murmur2    uint32
		Partitions map[string]int32
	}
	for _, v := range vectors[vector](t, "murmur2") {
		key := unhex(t, v.Key)
		if found := murmur2(key); found != v.Murmur2 {
			t.Errorf("murmur2(%s) = %d, wanted %d", v.Key, found, v.Murmur2)
		}
		if found := PartitionForKey(key, 7); found != v.Partitions["7"] {
			t.Errorf("key %s of 7 partitions: %d, wanted %d", v.Key, found, v.Partitions["7"])
		}
	}
}

func TestErrorsMeanWhatTheyDoInPython(t *testing.T) {
	type vector struct {
		Code, Message       string
		Wire                string
		Retriable, Definite bool
		Leader              int32
		NextOffset          int64 `json:"next_offset"`
	}
	for _, v := range vectors[vector](t, "errors") {
		var message pb.Error
		if err := proto.Unmarshal(unhex(t, v.Wire), &message); err != nil {
			t.Fatal(err)
		}
		found := fromWire(&message)
		if found.Code.String() != v.Code || found.Message != v.Message || found.Retriable != v.Retriable ||
			found.Definite != v.Definite || found.LeaderID != v.Leader || found.NextOffset != v.NextOffset {
			t.Errorf("%+v, wanted %+v", *found, v)
		}
	}
}

func TestSchemasHaveTheFingerprintsOfPython(t *testing.T) {
	type vector struct {
		Columns, Schema, Fingerprint string
	}
	for _, v := range vectors[vector](t, "fingerprints") {
		schema, err := readSchema(unhex(t, v.Schema))
		if err != nil {
			t.Fatal(err)
		}
		found, err := fingerprint(schema)
		if err != nil {
			t.Fatal(err)
		}
		if text := hexOf(found); text != v.Fingerprint {
			t.Errorf("%s: %s, wanted %s", v.Columns, text, v.Fingerprint)
		}
	}
}

func hexOf(value uint64) string {
	return hex.EncodeToString([]byte{byte(value >> 56), byte(value >> 48), byte(value >> 40), byte(value >> 32),
		byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)})
}

func TestAPayloadThatMakesNoSenseIsRefused(t *testing.T) {
	nonsense := []byte("\xff\xff\xff\xff\x10\x00\x00\x00................")
	for _, payload := range [][]byte{nil, make([]byte, 8), make([]byte, 100), nonsense} {
		if batch, err := decode(payload, RecordSchema); CodeOf(err) != pb.ErrorCode_CORRUPT_BATCH {
			t.Errorf("%q: %v, %v", payload, batch, err)
		}
	}
}
