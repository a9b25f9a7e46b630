"""The `tritonmq` command. Thin: it reads options, asks mq_client or starts mq_broker, and writes what came of it."""

from mq_cli.interrupts import quiet_while_loading

quiet_while_loading()
