"""A network between client and server that can be cut at an awkward moment: right before or right after a COMMIT."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from enum import Enum
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = b"COMMIT\x00"  # as it stands in PostgreSQL's message of a simple query


class Cut(Enum):
    NEVER = 0
    BEFORE_COMMIT = 1  # the server never hears of it
    AFTER_COMMIT = 2  # the server has done it, the client never hears of it


class CuttingProxy:
    """Forwards connections to ``port``; ``cut`` applies to the next COMMIT, and is then ``NEVER`` again."""

    def __init__(self, port: int) -> None:
        self.cut = Cut.NEVER
        self.cuts = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            state = {"silent": False}
            for work in (self._to_server, self._to_client):
                self._threads.append(Thread(target=work, args=(client, server, state)))
                self._threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if COMMIT in data and self.cut is not Cut.NEVER:
                    wanted, self.cut, self.cuts = self.cut, Cut.NEVER, self.cuts + 1
                    if wanted is Cut.BEFORE_COMMIT:
                        break
                    state["silent"] = True
                server.sendall(data)
        close(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if state["silent"]:
                    break  # the answer to the COMMIT is here, so it has happened
                client.sendall(data)
        close(client, server)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


def close(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
