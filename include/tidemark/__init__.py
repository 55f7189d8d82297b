"""Tidemark keeps tables true: collections on Iceberg that equal what their sources say.

These are the names that your program may import; ``docs/library.md`` explains them. A name is loaded when it is first
used: ``import tidemark`` loads neither Spark nor Arrow nor pyiceberg, so that a DAG file may import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark import errors as errors
    from tidemark.catalog.deployment.deployment import deployment_of as deployment_of
    from tidemark.clock import SystemClock as SystemClock
    from tidemark.collections.append.append import append_rows as append_rows
    from tidemark.collections.append.forward import Appended as Appended
    from tidemark.collections.append.frame import append_frame as append_frame
    from tidemark.collections.append.row_writers import Appenders as Appenders
    from tidemark.collections.declarations.append_only import Expectations as Expectations
    from tidemark.collections.declarations.append_only import StatusHistory as StatusHistory
    from tidemark.collections.declarations.collection import Declaration as Declaration
    from tidemark.collections.declarations.collection import OnReadOnly as OnReadOnly
    from tidemark.collections.declarations.files import load_declarations as load_declarations
    from tidemark.collections.holds import release_hold as release_hold
    from tidemark.collections.holds import take_hold as take_hold
    from tidemark.collections.reconcile.frames import apply_changes as apply_changes
    from tidemark.collections.reconcile.frames import reconcile_frame as reconcile_frame
    from tidemark.collections.staged.batches import BatchName as BatchName
    from tidemark.errors import TidemarkError as TidemarkError
    from tidemark.iceberg.commit.holds import holding_history as holding_history
    from tidemark.iceberg.reading.arrow import changes_arrow as changes_arrow
    from tidemark.iceberg.reading.arrow import read_arrow as read_arrow
    from tidemark.iceberg.reading.spark import changes as changes
    from tidemark.iceberg.reading.spark import create_open_view as create_open_view
    from tidemark.iceberg.reading.spark import read as read
    from tidemark.iceberg.shard.ledger import Range as Range
    from tidemark.iceberg.shard.shard import Shard as Shard
    from tidemark.iceberg.shards import Shards as Shards
    from tidemark.interval import Interval as Interval
    from tidemark.settings import Settings as Settings
    from tidemark.spark.session import spark_session as spark_session
    from tidemark.write_buffer.address import parse_connection as parse_connection
    from tidemark.write_buffer.formats.decode import decode_entry as decode_entry
    from tidemark.write_buffer.formats.json_rows import encode_json_rows as encode_json_rows
    from tidemark.write_buffer.keys import keep_keys as keep_keys
    from tidemark.write_buffer.keys import read_keys as read_keys
    from tidemark.write_buffer.registry import open_reader as open_reader
    from tidemark.write_buffer.registry import open_writer as open_writer
    from tidemark.write_buffer.spark_source import BufferDataSource as BufferDataSource

__version__ = "0.1.0"

# The same names as above, for the running program. A test compares the two lists.
_MODULES = {
    "tidemark.catalog.deployment.deployment": ("deployment_of",),
    "tidemark.clock": ("SystemClock",),
    "tidemark.collections.append.append": ("append_rows",),
    "tidemark.collections.append.forward": ("Appended",),
    "tidemark.collections.append.frame": ("append_frame",),
    "tidemark.collections.append.row_writers": ("Appenders",),
    "tidemark.collections.declarations.append_only": ("Expectations", "StatusHistory"),
    "tidemark.collections.declarations.collection": ("Declaration", "OnReadOnly"),
    "tidemark.collections.declarations.files": ("load_declarations",),
    "tidemark.collections.holds": ("release_hold", "take_hold"),
    "tidemark.collections.reconcile.frames": ("apply_changes", "reconcile_frame"),
    "tidemark.collections.staged.batches": ("BatchName",),
    "tidemark.errors": ("TidemarkError",),
    "tidemark.iceberg.commit.holds": ("holding_history",),
    "tidemark.iceberg.reading.arrow": ("changes_arrow", "read_arrow"),
    "tidemark.iceberg.reading.spark": ("changes", "create_open_view", "read"),
    "tidemark.iceberg.shard.ledger": ("Range",),
    "tidemark.iceberg.shard.shard": ("Shard",),
    "tidemark.iceberg.shards": ("Shards",),
    "tidemark.interval": ("Interval",),
    "tidemark.settings": ("Settings",),
    "tidemark.spark.session": ("spark_session",),
    "tidemark.write_buffer.address": ("parse_connection",),
    "tidemark.write_buffer.formats.decode": ("decode_entry",),
    "tidemark.write_buffer.formats.json_rows": ("encode_json_rows",),
    "tidemark.write_buffer.keys": ("keep_keys", "read_keys"),
    "tidemark.write_buffer.registry": ("open_reader", "open_writer"),
    "tidemark.write_buffer.spark_source": ("BufferDataSource",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", "errors", *_MODULE_OF]  # noqa: PLE0604 -- all of them are texts


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("tidemark.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidemark' has no public name {name!r}")
    try:
        module = import_module(_MODULE_OF[name])
    except AttributeError as error:  # `from tidemark import …` would hide its text
        raise ImportError(f"{_MODULE_OF[name]} cannot be loaded: {error}") from error
    value = getattr(module, name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
