"""Columns in the forms of Iceberg, Spark and Parquet files."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from tidemark.collections.schema.types import Array, Column, Columns, Decimal, Map, Primitive, Struct, Type
from tidemark.errors import IncompatibleChange, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField
    from pyspark.sql.types import DataType, StructType

# The name of a type here, and the classes in pyspark and in pyiceberg; Iceberg has no smaller integers than int.
_CLASSES = (
    ("boolean", "BooleanType", "BooleanType"),
    ("tinyint", "ByteType", None),
    ("smallint", "ShortType", None),
    ("int", "IntegerType", "IntegerType"),
    ("bigint", "LongType", "LongType"),
    ("float", "FloatType", "FloatType"),
    ("double", "DoubleType", "DoubleType"),
    ("date", "DateType", "DateType"),
    ("timestamp", "TimestampType", "TimestamptzType"),
    ("timestamp_ntz", "TimestampNTZType", "TimestampType"),
    ("string", "StringType", "StringType"),
    ("binary", "BinaryType", "BinaryType"),
)
PRIMITIVES = frozenset(name for name, _, _ in _CLASSES)
_SPARK_TYPES = {name: spark for name, spark, _ in _CLASSES}
_SPARK_NAMES = {spark: name for name, spark, _ in _CLASSES} | {"VarcharType": "string", "CharType": "string"}
_ICEBERG_TYPES = {name: iceberg for name, _, iceberg in _CLASSES if iceberg}
_ICEBERG_NAMES = {iceberg: name for name, iceberg in _ICEBERG_TYPES.items()}
_ARROW_NAMES = {
    "bool": "boolean", "float": "float", "double": "double", "date32[day]": "date",
    "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
    "uint8": "smallint", "uint16": "int", "uint32": "bigint",
    "string": "string", "large_string": "string", "binary": "binary", "large_binary": "binary",
}  # fmt: skip


# -- Spark ---------------------------------------------------------------------------------------------------------


def from_spark(schema: StructType, *, where: str) -> Columns:
    """Return the columns of a data frame; ``where`` names it in messages.

    Raises ``SchemaMismatch`` if a column has a type that cannot be stored.
    """
    return tuple(Column(field.name, _type_of_spark(field.dataType, field.name, where)) for field in schema.fields)


def to_spark(type_: Type) -> DataType:
    """Return the data type of ``type_``; every part may be NULL."""
    from pyspark.sql import types  # noqa: PLC0415 - declarations are read without Spark

    if isinstance(type_, Primitive):
        found: DataType = getattr(types, _SPARK_TYPES[type_.name])()
        return found
    if isinstance(type_, Decimal):
        return types.DecimalType(type_.precision, type_.scale)
    if isinstance(type_, Array):
        return types.ArrayType(to_spark(type_.element))
    if isinstance(type_, Map):
        return types.MapType(to_spark(type_.key), to_spark(type_.value))
    return spark_schema(type_.fields)


def spark_schema(columns: Columns) -> StructType:
    """Return ``columns`` as the schema of a data frame."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    return StructType([StructField(column.name, to_spark(column.type)) for column in columns])


def _type_of_spark(type_: DataType, column: str, where: str) -> Type:
    from pyspark.sql import types  # noqa: PLC0415

    if isinstance(type_, types.DecimalType):
        return Decimal(type_.precision, type_.scale)
    if isinstance(type_, types.ArrayType):
        return Array(_type_of_spark(type_.elementType, column, where))
    if isinstance(type_, types.MapType):
        return Map(_type_of_spark(type_.keyType, column, where), _type_of_spark(type_.valueType, column, where))
    if isinstance(type_, types.StructType):
        return Struct(from_spark(type_, where=where))
    name = _SPARK_NAMES.get(type(type_).__name__)
    if name is None:
        raise SchemaMismatch(
            f"column {column!r} of {where} has the type {type_.simpleString()}, which cannot be stored",
            hint="cast it with `sql`, or leave it out",
        )
    return Primitive(name)


# -- Iceberg -------------------------------------------------------------------------------------------------------


def from_iceberg(schema: Schema, *, without: Container[str] = ()) -> Columns:
    """Return the columns of a table, without the columns whose names are in ``without``.

    Raises ``IncompatibleChange`` if somebody gave the table a column that Tidemark cannot store.
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


def iceberg_type(type_: Type) -> IcebergType:
    """Return Iceberg's form of ``type_``; the ids inside are placeholders, assigned anew where the type is used."""
    from pyiceberg import types  # noqa: PLC0415

    if isinstance(type_, Primitive):
        found: IcebergType = getattr(types, _ICEBERG_TYPES[type_.name])()
        return found
    if isinstance(type_, Decimal):
        return types.DecimalType(type_.precision, type_.scale)
    if isinstance(type_, Array):
        return types.ListType(element_id=0, element=iceberg_type(type_.element), element_required=False)
    if isinstance(type_, Map):
        key, value = iceberg_type(type_.key), iceberg_type(type_.value)
        return types.MapType(key_id=0, key_type=key, value_id=0, value_type=value, value_required=False)
    return types.StructType(*_iceberg_fields(type_.fields))


def _iceberg_fields(columns: Columns) -> list[NestedField]:
    from pyiceberg.types import NestedField  # noqa: PLC0415

    return [
        NestedField(number, column.name, iceberg_type(column.type), required=False)
        for number, column in enumerate(columns, start=1)
    ]


def _type_of_iceberg(type_: IcebergType, column: str) -> Type:
    from pyiceberg import types  # noqa: PLC0415

    if isinstance(type_, types.DecimalType):
        return Decimal(type_.precision, type_.scale)
    if isinstance(type_, types.ListType):
        return Array(_type_of_iceberg(type_.element_type, column))
    if isinstance(type_, types.MapType):
        return Map(_type_of_iceberg(type_.key_type, column), _type_of_iceberg(type_.value_type, column))
    if isinstance(type_, types.StructType):
        return Struct(tuple(Column(field.name, _type_of_iceberg(field.field_type, column)) for field in type_.fields))
    name = _ICEBERG_NAMES.get(type(type_).__name__)
    if name is None:
        raise IncompatibleChange(
            f"the stored column {column!r} has the type {type_}, which Tidemark does not write",
            hint="drop the column: it was added by hand",
        )
    return Primitive(name)


# -- Parquet files -------------------------------------------------------------------------------------------------


def from_parquet(file: ParquetFile, *, where: str) -> Columns:
    """Return the columns of an open Parquet file, as Spark reads them.

    Raises ``SchemaMismatch`` if a column has a type that cannot be stored.
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


def _type_of_arrow(type_: pa.DataType, column: str, where: str) -> Type:  # noqa: PLR0911 - one for each type
    import pyarrow.types as is_  # noqa: PLC0415

    if is_.is_struct(type_):
        fields = map(type_.field, range(type_.num_fields))
        return Struct(tuple(Column(field.name, _type_of_arrow(field.type, column, where)) for field in fields))
    if is_.is_map(type_):
        return Map(_type_of_arrow(type_.key_type, column, where), _type_of_arrow(type_.item_type, column, where))
    if is_.is_nested(type_):
        return Array(_type_of_arrow(type_.value_type, column, where))
    if is_.is_dictionary(type_):
        return _type_of_arrow(type_.value_type, column, where)
    if is_.is_decimal(type_):
        return Decimal(type_.precision, type_.scale)
    if is_.is_uint64(type_):
        return Decimal(20, 0)  # Spark has no larger integer
    name = _ARROW_NAMES.get(str(type_))
    if is_.is_timestamp(type_) and type_.unit != "ns":  # Spark does not read nanoseconds
        name = "timestamp" if type_.tz else "timestamp_ntz"
    if name is None:
        raise SchemaMismatch(
            f"column {column!r} of {where} has the type {type_}, which Spark does not read from Parquet",
            hint="write the file with another type: timestamps, for example, in microseconds",
        )
    return Primitive(name)
