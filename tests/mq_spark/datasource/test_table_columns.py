"""The options of a table of Spark's catalog, in its columns."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from mq_protocol.errors import InvalidSetting
from mq_spark.datasource.schemas import options_of, with_options

COLUMNS = StructType().add("id", LongType()).add("carrier", StringType())
TABLE = {"provider": "tritonmq", "subscribe": "t", "option.subscribe": "t", "made.by": "me"}


def test_the_columns_of_a_table_have_its_options_and_others_have_none() -> None:
    kept = StructType.fromJson(with_options(COLUMNS, TABLE).jsonValue())  # as the catalog keeps them
    assert options_of(kept) == {"provider": "tritonmq", "subscribe": "t", "option.subscribe": "t"}
    assert [field.dataType for field in kept] == [field.dataType for field in COLUMNS]
    assert with_options(COLUMNS, {"subscribe": "t"}) == COLUMNS
    assert options_of(COLUMNS) == options_of(None) == {}


def test_a_secret_is_not_kept_where_whoever_sees_the_table_sees_it() -> None:
    with pytest.raises(InvalidSetting, match=r"option kafka\.sasl\.password holds a secret") as caught:
        with_options(COLUMNS, {**TABLE, "option.kafka.sasl.password": "open sesame"})
    assert "sesame" not in str(caught.value)
