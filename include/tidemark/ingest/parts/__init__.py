"""One ingest in three steps, which several processes may share: mint, write parts, append."""

from tidemark.ingest.parts.ingesting import Engine, Ingesting, open_ingesting
from tidemark.ingest.parts.shares import Minted, Part, Share, share_out
from tidemark.ingest.parts.steps import append, mint, write_part

__all__ = [
    "Engine",
    "Ingesting",
    "Minted",
    "Part",
    "Share",
    "append",
    "mint",
    "open_ingesting",
    "share_out",
    "write_part",
]
