"""A door to PostgreSQL at which the server is killed the moment a COMMIT has gone through."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres_server import PostgresServer


class CommitProxy:
    """Passes bytes on, both ways; once armed, the next COMMIT is passed on, and the server killed right after it.

    Whether the commit lands then is decided by a race within the server, as it is when a machine loses its power.
    """

    def __init__(self, server: PostgresServer, listener: socket.socket) -> None:
        self._server, self._listener = server, listener
        self.port: int = listener.getsockname()[1]
        self.is_armed = self._is_down = False
        self._starting = threading.Lock()

    def arm(self) -> None:
        self.is_armed = True

    def kill(self) -> None:
        """Kill the server now."""
        self._server.kill()
        self._is_down = True

    def start_again(self) -> None:
        """Start the server if it was killed, and not started since."""
        with self._starting:
            if self._is_down:
                self._server.start()
                self._is_down = False

    def uri(self, uri: str) -> str:
        """Return the URI of a database, by way of this door."""
        return uri.replace(f":{self._server.port}/", f":{self.port}/")

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._server.port)) as server:
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := client.recv(65_536):
                server.sendall(data)
                if self.is_armed and b"COMMIT" in data:
                    self.is_armed = False
                    self.kill()

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def commit_proxy(server: PostgresServer) -> Iterator[CommitProxy]:
    """Yield a door to ``server``; the server runs again afterwards."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        proxy = CommitProxy(server, listener)
        thread = threading.Thread(target=proxy.serve, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            proxy.start_again()
