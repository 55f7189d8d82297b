"""Columns in the forms of Iceberg, Spark and Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.schema.types import Array, Column, Columns, Decimal, Map, Primitive, Struct, Type
from tidemark.errors import IncompatibleChange, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Container

    import pyarrow as pa
    from pyarrow.parquet import ParquetFile
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField
    from pyspark.sql.types import DataType, StructType

_SPARK_NAMES = {
    "BooleanType": "boolean",
    "ByteType": "tinyint",
    "ShortType": "smallint",
    "IntegerType": "int",
    "LongType": "bigint",
    "FloatType": "float",
    "DoubleType": "double",
    "DateType": "date",
    "TimestampType": "timestamp",
    "TimestampNTZType": "timestamp_ntz",
    "StringType": "string",
    "VarcharType": "string",
    "CharType": "string",
    "BinaryType": "binary",
}
_SPARK_TYPES = {name: spark for spark, name in reversed(_SPARK_NAMES.items())}  # the first Spark type of each name
_ICEBERG_NAMES = {
    "BooleanType": "boolean",
    "IntegerType": "int",
    "LongType": "bigint",
    "FloatType": "float",
    "DoubleType": "double",
    "DateType": "date",
    "TimestamptzType": "timestamp",
    "TimestampType": "timestamp_ntz",
    "StringType": "string",
    "BinaryType": "binary",
}
_ARROW_NAMES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
}
_ICEBERG_TYPES = {spark: iceberg for iceberg, spark in _ICEBERG_NAMES.items()}


# -- Spark ---------------------------------------------------------------------------------------------------------


def from_spark(schema: StructType, *, where: str) -> Columns:
    """Return the columns of a data frame; ``where`` names it in messages.

    Raises:
        SchemaMismatch: If a column has a type that cannot be stored.
    """
    return tuple(Column(field.name, _type_of_spark(field.dataType, field.name, where)) for field in schema.fields)


def to_spark(given: Type) -> DataType:
    """Return the data type of ``given``; every part may be NULL."""
    from pyspark.sql import types  # noqa: PLC0415 - declarations are read without Spark

    if isinstance(given, Primitive):
        found: DataType = getattr(types, _SPARK_TYPES[given.name])()
        return found
    if isinstance(given, Decimal):
        return types.DecimalType(given.precision, given.scale)
    if isinstance(given, Array):
        return types.ArrayType(to_spark(given.element))
    if isinstance(given, Map):
        return types.MapType(to_spark(given.key), to_spark(given.value))
    return spark_schema(given.fields)


def spark_schema(columns: Columns) -> StructType:
    """Return ``columns`` as the schema of a data frame."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    return StructType([StructField(column.name, to_spark(column.type)) for column in columns])


def _type_of_spark(given: DataType, column: str, where: str) -> Type:
    from pyspark.sql import types  # noqa: PLC0415

    if isinstance(given, types.DecimalType):
        return Decimal(given.precision, given.scale)
    if isinstance(given, types.ArrayType):
        return Array(_type_of_spark(given.elementType, column, where))
    if isinstance(given, types.MapType):
        return Map(_type_of_spark(given.keyType, column, where), _type_of_spark(given.valueType, column, where))
    if isinstance(given, types.StructType):
        return Struct(from_spark(given, where=where))
    name = _SPARK_NAMES.get(type(given).__name__)
    if name is None:
        raise SchemaMismatch(
            f"column {column!r} of {where} has the type {given.simpleString()}, which cannot be stored",
            hint="cast it with `sql`, or leave it out",
        )
    return Primitive(name)


# -- Iceberg -------------------------------------------------------------------------------------------------------


def from_iceberg(schema: Schema, *, without: Container[str] = ()) -> Columns:
    """Return the columns of a table; those named in ``without`` are left out.

    Raises:
        IncompatibleChange: If somebody gave the table a column that Tidemark cannot store.
    """
    return tuple(
        Column(field.name, _type_of_iceberg(field.field_type, field.name))
        for field in schema.fields
        if field.name not in without
    )


def to_iceberg(columns: Columns) -> Schema:
    """Return a new table's schema; every column is optional, and field ids count from 1."""
    from pyiceberg.schema import Schema, assign_fresh_schema_ids  # noqa: PLC0415

    return assign_fresh_schema_ids(Schema(*_iceberg_fields(columns)))


def iceberg_type(given: Type) -> IcebergType:
    """Return Iceberg's form of ``given``; the ids inside are placeholders, assigned anew where the type is used."""
    from pyiceberg import types  # noqa: PLC0415

    if isinstance(given, Primitive):
        found: IcebergType = getattr(types, _ICEBERG_TYPES[given.name])()
        return found
    if isinstance(given, Decimal):
        return types.DecimalType(given.precision, given.scale)
    if isinstance(given, Array):
        return types.ListType(element_id=0, element=iceberg_type(given.element), element_required=False)
    if isinstance(given, Map):
        key, value = iceberg_type(given.key), iceberg_type(given.value)
        return types.MapType(key_id=0, key_type=key, value_id=0, value_type=value, value_required=False)
    return types.StructType(*_iceberg_fields(given.fields))


def _iceberg_fields(columns: Columns) -> list[NestedField]:
    from pyiceberg.types import NestedField  # noqa: PLC0415

    return [
        NestedField(number, column.name, iceberg_type(column.type), required=False)
        for number, column in enumerate(columns, start=1)
    ]


def _type_of_iceberg(given: IcebergType, column: str) -> Type:
    from pyiceberg import types  # noqa: PLC0415

    if isinstance(given, types.DecimalType):
        return Decimal(given.precision, given.scale)
    if isinstance(given, types.ListType):
        return Array(_type_of_iceberg(given.element_type, column))
    if isinstance(given, types.MapType):
        return Map(_type_of_iceberg(given.key_type, column), _type_of_iceberg(given.value_type, column))
    if isinstance(given, types.StructType):
        return Struct(tuple(Column(field.name, _type_of_iceberg(field.field_type, column)) for field in given.fields))
    name = _ICEBERG_NAMES.get(type(given).__name__)
    if name is None:
        raise IncompatibleChange(
            f"the stored column {column!r} has the type {given}, which Tidemark does not write",
            hint="drop the column: it was added by hand",
        )
    return Primitive(name)


# -- Parquet files -------------------------------------------------------------------------------------------------


def from_parquet(file: ParquetFile, *, where: str) -> Columns:
    """Return the columns of an open Parquet file, as Spark reads them.

    Raises:
        SchemaMismatch: If a column has a type that cannot be stored.
    """
    int96 = {
        column.path for column in map(file.schema.column, range(len(file.schema))) if column.physical_type == "INT96"
    }
    return tuple(
        Column(
            field.name, Primitive("timestamp") if field.name in int96 else _type_of_arrow(field.type, field.name, where)
        )
        for field in file.schema_arrow
    )


def _type_of_arrow(given: pa.DataType, column: str, where: str) -> Type:
    import pyarrow.types as is_  # noqa: PLC0415

    if is_.is_nested(given):
        return _nested_type_of_arrow(given, column, where)
    if is_.is_dictionary(given):
        return _type_of_arrow(given.value_type, column, where)
    if is_.is_decimal(given):
        return Decimal(given.precision, given.scale)
    if str(given) == "uint64":
        return Decimal(20, 0)  # Spark has no larger integer
    if is_.is_timestamp(given) and given.unit != "ns":  # Spark does not read nanoseconds
        return Primitive("timestamp" if given.tz else "timestamp_ntz")
    name = _ARROW_NAMES.get(str(given))
    if name is None:
        raise SchemaMismatch(
            f"column {column!r} of {where} has the type {given}, which Spark does not read from Parquet",
            hint="write the file with another type: timestamps, for example, in microseconds",
        )
    return Primitive(name)


def _nested_type_of_arrow(given: pa.DataType, column: str, where: str) -> Type:
    import pyarrow.types as is_  # noqa: PLC0415

    if is_.is_struct(given):
        fields = (given.field(number) for number in range(given.num_fields))
        return Struct(tuple(Column(field.name, _type_of_arrow(field.type, column, where)) for field in fields))
    if is_.is_map(given):
        return Map(_type_of_arrow(given.key_type, column, where), _type_of_arrow(given.item_type, column, where))
    return Array(_type_of_arrow(given.value_type, column, where))
