"""The `tritonmq` command. Thin: it reads options, asks mq_client or starts mq_broker, and writes what came of it."""
