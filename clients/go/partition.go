package tritonmq

import "encoding/binary"

// murmur2 is MurmurHash2 of 32 bits with the seed that Kafka gives it, so that a key lands where it does in Python.
func murmur2(key []byte) uint32 {
	const seed, multiplier = 0x9747b28c, 0x5bd1e995
	h := uint32(seed) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * multiplier
		k = (k ^ k>>24) * multiplier
		h = h*multiplier ^ k
	}
	if len(key) > 0 {
		var rest [4]byte
		copy(rest[:], key)
		h = (h ^ binary.LittleEndian.Uint32(rest[:])) * multiplier
	}
	h = (h ^ h>>13) * multiplier
	return h ^ h>>15
}

// PartitionForKey gives the partition, 0 to partitions-1, of a record's key: the same as in every other client.
func PartitionForKey(key []byte, partitions int) int32 {
	return int32((murmur2(key) & 0x7fffffff) % uint32(partitions))
}
