package tritonmq

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tritonmq/clients/go/pb"
)

// errorMetadata is the trailing metadata that carries the whole error of a failed call.
const errorMetadata = "tritonmq-error-bin"

// Error is what every function of this package fails with, but for the errors of a context.
//
// Definite: it is known that the request was not carried out. An error that is not definite leaves that open:
// send again with the same UUID, and there is one copy. Retriable: the same request may succeed later.
type Error struct {
	Code      pb.ErrorCode
	Message   string
	Retriable bool
	Definite  bool

	// LeaderID is the broker that leads, for NOT_LEADER; 0 when nobody knows.
	LeaderID int32
	// NextOffset is the first record that is kept after the one asked for, for OFFSET_OUT_OF_RANGE; else -1.
	NextOffset int64

	leaderEpoch  int64
	retryAfterMs uint32
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// CodeOf gives the code of an error of this package, and OK for any other.
func CodeOf(err error) pb.ErrorCode {
	var found *Error
	if errors.As(err, &found) {
		return found.Code
	}
	return pb.ErrorCode_OK
}

// retriable are the codes of what did not happen and may happen when it is asked for again.
var retriable = map[pb.ErrorCode]bool{
	pb.ErrorCode_NOT_LEADER: true, pb.ErrorCode_NOT_ENOUGH_REPLICAS: true, pb.ErrorCode_OUT_OF_ORDER: true,
	pb.ErrorCode_OVERLOADED: true, pb.ErrorCode_QUEUE_FULL: true, pb.ErrorCode_DISK_FULL: true,
	pb.ErrorCode_STORAGE_FAILED: true, pb.ErrorCode_COORDINATION_UNAVAILABLE: true,
	pb.ErrorCode_NOT_YET_WRITTEN: true, pb.ErrorCode_PARTITION_UNAVAILABLE: true,
	pb.ErrorCode_LOCK_NOT_ACQUIRED: true,
}

// unknown are the codes of what may or may not have happened. Whether asking again helps is the value.
var unknown = map[pb.ErrorCode]bool{
	pb.ErrorCode_OUTCOME_UNKNOWN: true, pb.ErrorCode_UNREACHABLE: true,
	pb.ErrorCode_LOCK_LOST: false, pb.ErrorCode_INTERNAL: false,
}

func newError(code pb.ErrorCode, format string, values ...any) *Error {
	again, open := unknown[code]
	return &Error{
		Code: code, Message: fmt.Sprintf(format, values...), NextOffset: -1,
		Retriable: retriable[code] || again, Definite: !open,
	}
}

// fromWire gives the error that a broker's message describes. A code that this release does not know becomes
// INTERNAL: nothing is known of what happened.
func fromWire(message *pb.Error) *Error {
	code := message.GetCode()
	if _, known := pb.ErrorCode_name[int32(code)]; !known || code == pb.ErrorCode_OK {
		code = pb.ErrorCode_INTERNAL
	}
	found := newError(code, "%s", message.GetMessage())
	found.LeaderID, found.leaderEpoch = message.GetLeader(), message.GetLeaderEpoch()
	found.retryAfterMs = message.GetRetryAfterMs()
	if message.NextOffset != nil {
		found.NextOffset = message.GetNextOffset()
	}
	return found
}

// fromCall says what a failed call to the broker at address means: the error that the broker gave, else what the
// status means. The context's own error stays as it is.
func fromCall(ctx context.Context, err error, trailer metadata.MD, address string) error {
	if carried := trailer.Get(errorMetadata); len(carried) > 0 {
		var message pb.Error
		if proto.Unmarshal([]byte(carried[0]), &message) == nil {
			return fromWire(&message)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	found, _ := status.FromError(err)
	switch found.Code() {
	case codes.Unavailable, codes.Canceled, codes.Internal, codes.Unknown, codes.Aborted:
		return newError(pb.ErrorCode_UNREACHABLE, "broker at %s cannot be reached: %s", address, found.Message())
	case codes.DeadlineExceeded:
		return newError(pb.ErrorCode_OUTCOME_UNKNOWN, "broker at %s did not answer in time: ask again", address)
	case codes.Unimplemented:
		return newError(pb.ErrorCode_INVALID_REQUEST,
			"broker at %s does not know this request: it runs another version, or is no TritonMQ broker", address)
	}
	return newError(pb.ErrorCode_INTERNAL, "broker at %s failed with %s: %s", address,
		strings.ToUpper(found.Code().String()), found.Message())
}
