"""One ingest in three steps, which several processes may share: mint, write parts, append.

Of collections with `chunks: memory` the processes hold what they read, for many mints, before they write it.
"""

from tidemark.ingest.parts.ingesting import Engine, Ingesting, open_ingesting
from tidemark.ingest.parts.memory import Held, RowMemory, cut_to_held, find_due, holds_rows, share_in_turn
from tidemark.ingest.parts.shares import Minted, Part, Share, share_out
from tidemark.ingest.parts.steps import append, mint, write_part

__all__ = [
    "Engine",
    "Held",
    "Ingesting",
    "Minted",
    "Part",
    "RowMemory",
    "Share",
    "append",
    "cut_to_held",
    "find_due",
    "holds_rows",
    "mint",
    "open_ingesting",
    "share_in_turn",
    "share_out",
    "write_part",
]
