"""The folder of a file buffer: its identity, and a folder per sequencer. It appears whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import ConfigurationInvalid
from tidemark.fail_points import fail_point
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.file.log import FileLog, disk_errors

FAIL_POINTS = ("buffer-folder.before-rename",)
_ABOUT = "buffer.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileFolder:
    """An existing file buffer."""

    root: Path
    identity: str
    logs: dict[int, FileLog]

    @property
    def name(self) -> str:
        """The buffer as messages name it."""
        return f"the file buffer {str(self.root)!r}"


def open_folder(root: Path, *, sequencers: int | None = None) -> FileFolder:
    """Open the buffer at ``root``; if there is none, make one with ``sequencers``. An existing buffer is not changed.

    Raises:
        BufferMissing: If there is no buffer, and ``sequencers`` is ``None``.
        ConfigurationInvalid: If the folder holds something else.
        BufferUnreachable: If the disk refuses.
    """
    with disk_errors(root):
        if not (root / _ABOUT).exists():
            if sequencers is None:
                raise BufferMissing.of(f"the file buffer {str(root)!r}")
            _create(root, sequencers)
        return _read(root)


def _read(root: Path) -> FileFolder:
    try:
        about = json.loads((root / _ABOUT).read_text(encoding="utf-8"))
        version, identity, sequencers = about["version"], str(about["identity"]), int(about["sequencers"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationInvalid(
            f"{str(root / _ABOUT)!r} is not that of a file buffer: {error}",
            hint="name a file buffer's folder, or restore that file: it says which log this is",
        ) from error
    if version != _VERSION:
        raise ConfigurationInvalid(
            f"the file buffer {str(root)!r} has version {version}, this process knows {_VERSION}",
            hint="use the Tidemark that wrote it",
        )
    return FileFolder(
        root, identity, {sequencer_id: FileLog(root / str(sequencer_id)) for sequencer_id in range(sequencers)}
    )


def _create(root: Path, sequencers: int) -> None:
    if root.exists() and any(root.iterdir()):
        raise ConfigurationInvalid(
            f"{str(root)!r} is no file buffer and not empty", hint="name a folder that does not exist yet"
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = root.parent / f".{root.name}.{uuid.uuid4().hex}"
    temporary.mkdir()
    for sequencer_id in range(sequencers):
        FileLog(temporary / str(sequencer_id)).create()
    about = {"version": _VERSION, "identity": uuid.uuid4().hex, "sequencers": sequencers}
    with (temporary / _ABOUT).open("w", encoding="utf-8") as file:
        json.dump(about, file)
        file.flush()
        os.fsync(file.fileno())
    fail_point("buffer-folder.before-rename")
    try:
        temporary.rename(root)  # replaces an empty folder, and refuses to replace any other
    except OSError:
        shutil.rmtree(temporary)
        if not (root / _ABOUT).exists():  # otherwise another process was faster: take its buffer
            raise
