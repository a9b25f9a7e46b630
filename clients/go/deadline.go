package tritonmq

import "time"

// deadline is a moment, and how long after it was made it comes.
type deadline struct{ at time.Time }

func newDeadline(after time.Duration) deadline { return deadline{time.Now().Add(after)} }

func (d deadline) over() bool               { return !time.Now().Before(d.at) }
func (d deadline) remaining() time.Duration { return max(time.Until(d.at), time.Millisecond) }
