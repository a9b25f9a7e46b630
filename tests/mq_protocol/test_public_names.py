"""Names that other packages build on: taking one away is a decision, not an accident."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "mq_process.allocator": "HEAP_BUFFER_BYTES_MAX KEPT_BYTES_MAX keep_freed_memory",
    "mq_protocol.arrow": "RECORD_SCHEMA check_untrusted decode_batch decode_untrusted encode_batch "
    "schema_fingerprint schema_from_bytes "
    "schema_nodes schema_to_bytes",
    "mq_protocol.sql.ddl": "check_column_names check_schema format_schema format_type parse_schema",
    "mq_protocol.envelope": "Buffer Envelope H Header decode encode split",
    "mq_protocol.evolution": "check_extension extended versions",
    "mq_protocol.names": "INTERNAL_PREFIX SETTINGS TRANSACTIONS_TOPIC Durability OnTotalLoss RetentionPolicy Setting "
    "TopicSettings "
    "check_column_name check_group_name check_id check_label check_member_id check_member_key check_lock_name "
    "check_user_name check_new_group_name check_new_topic_name "
    "check_rack check_topic_name quoted "
    "did_you_mean no_such_topic OR_NO_RIGHT "
    "parse_duration parse_flag parse_size nearest parse_settings usable_label user_named",
    "mq_protocol.partitioner": "coordinator_partition murmur2 partition_for_key key_bytes partitions_for_keys",
    "mq_process.polling": "BETWEEN_CALLS BETWEEN_CALLS_MS FIRST_VERSION LAST_VERSION VARIABLE WITHOUT_EVENT_ENGINE "
    "wait_without_event_engine",
    "mq_protocol.ipc_message": "RecordBatchMessage codec_of node_count read_record_batch_message",
    "mq_protocol.sql.row_filter": "RowFilter parse_filter",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_modules_public_names_are_these(module: str) -> None:
    loaded = importlib.import_module(module)
    own = {
        name
        for name, value in list(vars(loaded).items())
        if not name.startswith("_")
        and (
            getattr(value, "__module__", None) == loaded.__name__
            or (name.isupper() and name in vars(loaded).get("__annotations__", {}))
        )
    }
    declared = set(PUBLIC[module].split())
    assert own <= declared
    assert all(hasattr(loaded, name) for name in declared)
