"""Who leads, who is in sync, what is committed. `replica` is the door; see the package's description in
mq_broker/core."""
