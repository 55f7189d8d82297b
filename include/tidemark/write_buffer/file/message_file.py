"""One message as a file: a line of JSON that says what follows, then the payload. Readable with `head` and `cat`."""

from __future__ import annotations

import json
import zlib

from tidemark.write_buffer.formats.entry import BadMessage, BadReason, Delivered, Message, Sequence, read_message

_VERSION = 1
_HEADER_BYTES = "latin-1"  # maps every byte to one character, so that any header value survives JSON


def encode_message(message: Message) -> bytes:
    """Return the content of the file of ``message``."""
    payload = message.payload
    about = {
        "version": _VERSION,
        "time_ms": message.time_ms,
        "headers": [[name, value.decode(_HEADER_BYTES)] for name, value in message.headers],
        "bytes": None if payload is None else len(payload),
        "crc32": zlib.crc32(payload or b""),
    }
    return json.dumps(about, separators=(",", ":")).encode() + b"\n" + (payload or b"")


def decode_message(sequence: Sequence, content: bytes) -> Delivered:
    """Return the entry in the file's ``content``, or what is wrong with it: files are damaged by disks and people."""
    first, _, payload = content.partition(b"\n")
    try:
        about = json.loads(first)
        version, size, crc32, time_ms = (about[name] for name in ("version", "bytes", "crc32", "time_ms"))
        headers = tuple((str(name), value.encode(_HEADER_BYTES)) for name, value in about["headers"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _damaged(sequence, content, f"the first line is not that of a message: {error}")
    if version != _VERSION:
        detail = f"Unknown message format: file version {version}"
        return BadMessage(sequence, Message(content), BadReason.FORMAT_UNKNOWN, detail)
    if len(payload) != (size or 0) or zlib.crc32(payload) != crc32:
        return _damaged(sequence, content, f"the payload is not the {size} bytes that were written")
    return read_message(sequence, Message(None if size is None else payload, headers, time_ms))


def _damaged(sequence: Sequence, content: bytes, detail: str) -> BadMessage:
    return BadMessage(sequence, Message(content), BadReason.DAMAGED, detail)
