package tritonmq

import (
	"encoding/hex"
	"regexp"

	"tritonmq/clients/go/pb"
)

// TraceparentHeader is the record's header that names the span to which it belongs, as the W3C has it.
const TraceparentHeader = "traceparent"

var traceparentText = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]{0,200})?$`)

// readTraceparent gives the 25 bytes by which a batch names a span. False: the text is no traceparent.
func readTraceparent(text string) ([]byte, bool) {
	found := traceparentText.FindStringSubmatch(text)
	if found == nil || found[1] == "ff" || (found[1] == "00" && found[5] != "") {
		return nil, false
	}
	named, err := hex.DecodeString(found[2] + found[3] + found[4])
	if err != nil || allZero(named[:16]) || allZero(named[16:24]) {
		return nil, false
	}
	return named, true
}

func allZero(bytes []byte) bool {
	for _, each := range bytes {
		if each != 0 {
			return false
		}
	}
	return true
}

// recorded gives what a batch says of a span: nothing, where nobody records its trace.
func recorded(named []byte) []byte {
	if len(named) == 25 && named[24]&1 == 1 {
		return named
	}
	return nil
}

// WithTraceparent names the span to which what is published belongs, in the text of the W3C's header. The broker makes
// a child of it. A record gets it as a header, unless it has one of that name.
func WithTraceparent(text string) PublishOption {
	return func(o *publishOptions) { o.traceparent, o.traced = text, true }
}

// span gives what the option names, if it was given.
func (o *publishOptions) span() ([]byte, error) {
	if !o.traced {
		return nil, nil
	}
	named, ok := readTraceparent(o.traceparent)
	if !ok {
		return nil, newError(pb.ErrorCode_INVALID_REQUEST, "%q is no traceparent: give the text of the W3C's header, e.g. "+
			"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", o.traceparent)
	}
	return named, nil
}

// spanOf gives what a record's header names, if it names a span.
func spanOf(headers []Header) []byte {
	for _, header := range headers {
		if header.Key == TraceparentHeader {
			named, _ := readTraceparent(string(header.Value))
			return named
		}
	}
	return nil
}
