"""An S3 store in this process that lists and reads what a test put into it: as much of the protocol as that needs."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tidemark.collections.sources import remote_listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

PAGE = 2  # objects of one answer, so that a listing needs several


class ObjectStore:
    """The objects of each bucket: size and time, by key; and the contents, of which an object need not have any."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, tuple[int, datetime]]] = {}
        self.contents: dict[tuple[str, str], bytes] = {}
        self.answers = True
        self.port = 0

    def put(self, bucket: str, key: str, size: int = 1, *, second: int = 0, microsecond: int = 0) -> None:
        modified = datetime(2026, 1, 1, 0, 0, second, microsecond, tzinfo=UTC)
        self.buckets.setdefault(bucket, {})[key] = (size, modified)

    def put_content(self, bucket: str, key: str, content: bytes) -> None:
        self.put(bucket, key, len(content))
        self.contents[bucket, key] = content

    def remove(self, bucket: str, key: str) -> None:
        del self.buckets[bucket][key]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Serve a store on a port of this machine."""
    store = ObjectStore()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, store))
    store.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def reachable_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Serve a store that the code under test finds, and knows nothing of yet."""
    monkeypatch.setattr(remote_listing, "_silent", {})
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, store: ObjectStore, *arguments: Any) -> None:
        self.store = store
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if not self.store.answers:
            self._send(403, _error("AccessDenied"))
            return
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        objects = self.store.buckets.get(bucket)
        if objects is None:
            self._send(404, _error("NoSuchBucket"))
        elif key:
            self._send_object(objects.get(key), self.store.contents.get((bucket, key), b""))
        else:
            self._send(200, _listed(bucket, objects, parse_qs(url.query, keep_blank_values=True)))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass

    def _send_object(self, found: tuple[int, datetime] | None, content: bytes) -> None:
        if found is None:
            self._send(404, "")
            return
        span = self.headers.get("Range")
        if span is not None:
            first, last = span.removeprefix("bytes=").split("-")
            content = content[int(first) : int(last) + 1]
        self.send_response(200 if span is None else 206)
        self.send_header("Content-Length", str(found[0] if self.command == "HEAD" else len(content)))
        self.send_header("Last-Modified", format_datetime(found[1], usegmt=True))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _listed(bucket: str, objects: dict[str, tuple[int, datetime]], query: dict[str, list[str]]) -> str:
    def given(name: str) -> str:
        return query.get(name, [""])[0]

    after = given("continuation-token")
    keys = sorted(key for key in objects if key.startswith(given("prefix")) and key > after)
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{objects[key][0]}</Size>"
        f"<LastModified>{objects[key][1]:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified></Contents>"
        for key in keys[:PAGE]
    )
    is_cut = len(keys) > PAGE
    following = f"<NextContinuationToken>{escape(keys[PAGE - 1])}</NextContinuationToken>" if is_cut else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
        f"<Name>{bucket}</Name><KeyCount>{len(keys[:PAGE])}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        f"{following}{entries}</ListBucketResult>"
    )


def _error(code: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
