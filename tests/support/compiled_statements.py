"""SQL statements that SQLAlchemy compiles once for all homes of the tests.

Each home has an engine of its own, and each engine would compile pyiceberg's statements anew: a sixth of the CPU time
of tests that need no JVM.
"""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.util import LRUCache

_COMPILED: LRUCache[object, object] = LRUCache(500)


def share_compiled_statements() -> None:
    """Let all SQLite engines of this process use the same compiled statements.

    A compiled statement is found by its dialect, too, of which each engine has one: they all speak to one SQLite.
    """
    SQLiteDialect_pysqlite.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    SQLiteDialect_pysqlite.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]

    @event.listens_for(Engine, "engine_connect")
    def _use_shared(connection: Connection) -> None:
        connection.execution_options(compiled_cache=_COMPILED)
