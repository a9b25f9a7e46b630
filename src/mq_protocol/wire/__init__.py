"""The framed protocol: frames, the call as a state machine without I/O, the connection below it, and what travels."""
