"""Values as Spark can compare and hash them, whatever their type; equal exactly when the values are equal."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def canonical(column: Column, data_type: DataType) -> Column:
    """Return a comparable and hashable value, equal exactly when the values of ``column`` are equal.

    Structs, arrays and maps are rebuilt; flat values stay unchanged.
    """
    if isinstance(data_type, StructType):
        fields = [(column.getField(field.name), field.dataType) for field in data_type.fields]
        return F.struct(*(part for value, type_ in fields for part in (F.isnull(value), canonical(value, type_))))
    if isinstance(data_type, ArrayType):
        element = data_type.elementType
        items = F.transform(column, lambda item: F.struct(F.isnull(item), canonical(item, element)))
        return F.struct(F.size(column), items)  # the size first: else [[NULL]] and [[], NULL] hash alike
    if isinstance(data_type, MapType):
        key, value = data_type.keyType, data_type.valueType
        entries = F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                canonical(entry.getField("key"), key),
                F.isnull(entry.getField("value")),
                canonical(entry.getField("value"), value),
            ),
        )
        return F.struct(F.size(column), F.array_sort(entries))
    return column


def has_map(data_type: DataType) -> bool:
    """Tell whether a type is a map, or has one inside; Spark cannot group by a map with a NULL among its values."""
    if isinstance(data_type, MapType):
        return True
    if isinstance(data_type, ArrayType):
        return has_map(data_type.elementType)
    return isinstance(data_type, StructType) and any(has_map(field.dataType) for field in data_type.fields)
