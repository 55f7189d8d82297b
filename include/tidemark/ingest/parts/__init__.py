"""One ingest in three steps, which several processes may share: mint, write parts, append.

Of collections with `chunks: memory` the processes hold what they read, for many mints, before they write it.
"""

from tidemark.ingest.parts.ingesting import Engine, Ingesting, open_ingesting
from tidemark.ingest.parts.memory import Held, MemoryLimit, RowMemory, cut_to_held, find_due, holds_rows, share_in_turn
from tidemark.ingest.parts.shares import Minted, Part, Share, share_out
from tidemark.ingest.parts.steps import append, find_error, mint, write_part

__all__ = [
    "Engine",
    "Held",
    "Ingesting",
    "MemoryLimit",
    "Minted",
    "Part",
    "RowMemory",
    "Share",
    "append",
    "cut_to_held",
    "find_due",
    "find_error",
    "holds_rows",
    "mint",
    "open_ingesting",
    "share_in_turn",
    "share_out",
    "write_part",
]
