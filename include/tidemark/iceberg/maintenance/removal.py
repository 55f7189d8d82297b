"""Removes a table for good: first its files, then its name, so that a removal that dies is done again."""

from __future__ import annotations

import logging
from contextlib import suppress

from pyarrow.fs import FileSelector
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from tidemark.errors import Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.files.manifests import filesystem_of
from tidemark.iceberg.shard.catalog import asking_the_catalog
from tidemark.iceberg.shard.shard import Shard

log = logging.getLogger(__name__)

FAIL_POINTS = ("removal.files-gone", "removal.name-gone")


def remove_table(shard: Shard) -> None:
    """Delete all files in the table's folder, and take the table out of the catalog; nobody may need it any more.

    The files stay if another table lies in that folder. May be repeated.

    Raises ``Unreachable`` if the catalog, or the store of the files, is in trouble.
    """
    table = shard.load_table()
    with asking_the_catalog():
        is_alone = shard.iceberg.lies_alone(table)
    if is_alone:
        _delete_files(table)
        fail_point("removal.files-gone")
    else:
        log.warning("the files of %s stay: another table lies in its folder %s", shard.identifier, table.location())
    with asking_the_catalog(), suppress(NoSuchTableError):
        shard.iceberg.drop_table((shard.namespace, shard.name))
    fail_point("removal.name-gone")
    if is_alone:
        filesystem, folder = filesystem_of(table, table.location())
        with suppress(OSError):  # a folder without data, in which orphan removal takes the last file
            filesystem.delete_dir(folder)


def _delete_files(table: Table) -> None:
    """Delete all files below the table's folder but its metadata file: without it nobody could load the table again."""
    filesystem, folder = filesystem_of(table, table.location())
    _, named = filesystem_of(table, table.metadata_location)
    try:
        for file in filesystem.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True)):
            if file.is_file and file.path != named:
                with suppress(FileNotFoundError):
                    filesystem.delete_file(file.path)
    except OSError as error:
        raise Unreachable.by(error) from error
