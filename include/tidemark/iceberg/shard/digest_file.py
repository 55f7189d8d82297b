"""The digest of a shard, kept as an Iceberg statistics file so that other engines and orphan removal leave it alone.

The file is a Puffin file with a zstd blob, whose content only the collection layer understands. A second blob may say
of what the digest consists. The file is bound to our last own snapshot of main and to the schema of that snapshot: a
column that was dropped and added again has its old name and type, and other values. The digest is a short-cut: without
a file that fits, the reader scans the rows.
"""

from __future__ import annotations

import json
import logging

import zstandard
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.puffin import MAGIC_BYTES, PuffinFile
from pyiceberg.table.statistics import StatisticsFile

from tidemark.iceberg.shard.head import ShardHead

log = logging.getLogger(__name__)

BLOB_TYPE = "tidemark-digest-v1"
PARTS_TYPE = "tidemark-digest-parts-v1"
_WORDS = {BLOB_TYPE: "the digest", PARTS_TYPE: "the digests of the files"}
_FILE = "tidemark.file"  # the name that the file was written under; older files do not say so


def write_digest(table: Table, name: str, payload: bytes, parts: bytes | None = None) -> StatisticsFile:
    """Write ``payload`` as the Puffin file ``name``; the snapshot id is filled in by the commit that binds it.

    ``parts`` are the digests of which ``payload`` is the sum.
    """
    path = table.location_provider().new_metadata_location(f"tidemark-digest-{name}.puffin")
    compressor = zstandard.ZstdCompressor(level=1)  # sums of hashes hardly compress: be quick
    content, descriptions = MAGIC_BYTES, []
    for blob_type, given in ((BLOB_TYPE, payload), (PARTS_TYPE, parts)):
        if given is None:
            continue
        blob = compressor.compress(given)
        descriptions.append(
            {
                "type": blob_type,
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "compression-codec": "zstd",
                "properties": {_FILE: _name_of(path)},
            }
        )
        content += blob
    footer = json.dumps({"blobs": descriptions}).encode()
    tail = MAGIC_BYTES + footer + len(footer).to_bytes(4, "little") + bytes(4) + MAGIC_BYTES
    content += tail
    with table.io.new_output(path).create(overwrite=True) as stream:
        stream.write(content)
    # The list of blobs stays empty in the metadata: pyiceberg refuses to load a table with a type it does not know.
    return StatisticsFile(
        snapshot_id=-1,
        statistics_path=path,
        file_size_in_bytes=len(content),
        file_footer_size_in_bytes=len(tail),
        blob_metadata=[],
    )


def bound_file(head: ShardHead) -> StatisticsFile | None:
    """Return the statistics file bound to our last own snapshot, if there is one."""
    for statistics in head.table.metadata.statistics:
        if statistics.snapshot_id == head.own.snapshot_id:
            return statistics
    return None


def is_current(head: ShardHead) -> bool:
    """Return whether the schema is still that of our last own snapshot, which a digest is bound to."""
    return head.own.schema_id == head.table.metadata.current_schema_id


def read_digest(head: ShardHead, blob_type: str = BLOB_TYPE) -> bytes | None:
    """Return the digest of ``head.contents``; None if no digest fits, or ``read_payload`` finds it lost.

    With ``PARTS_TYPE`` return the digests of which that is the sum.
    """
    statistics = bound_file(head) if is_current(head) else None
    if statistics is None:
        return None
    return read_payload(head.table.io, statistics.statistics_path, blob_type, whose=".".join(head.table.name()))


def read_payload(io: FileIO, path: str, blob_type: str = BLOB_TYPE, *, whose: str) -> bytes | None:
    """Return what ``write_digest`` wrote at ``path``; None without parts, if these are asked for.

    Also None, with a warning that names the collection ``whose`` digest it is, if the file is gone, damaged, not ours,
    or another one.
    """
    name = _name_of(path)
    try:
        with io.new_input(path).open() as stream:
            puffin = PuffinFile(stream.read())
        blob = next((each for each in puffin.footer.blobs if each.type == blob_type), None)
        if blob is None and blob_type == PARTS_TYPE:
            return None
        if blob is None:
            reason = "is none of ours"
        elif (written_as := blob.properties.get(_FILE, name)) == name:
            return puffin.get_blob_payload(blob)
        else:
            reason = f"is a copy of {written_as}, which another commit has left"
    except FileNotFoundError:
        reason = "is gone"
    # Damaged lengths lead pyiceberg beyond the end of the file, and zstandard beyond the memory.
    except (ValueError, LookupError, MemoryError, zstandard.ZstdError) as error:
        reason = f"is damaged ({type(error).__name__})"
    log.warning("%s of %s cannot be used, and will be made anew: %s %s", _WORDS[blob_type], whose, path, reason)
    return None


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]
