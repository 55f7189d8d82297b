"""A server that accepts connections and never says a word: the worst kind of unreachable."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of the 5 s in which an unreachable store is to be reported; the rest is for the start of Python.
PATIENCE_S = 4.0
_SEEN_WITHIN_S = 10.0


class SilentServer:
    """Measures how long its clients wait. Unlike the time a process takes, that hardly depends on a busy machine."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self._waits_s: list[float] = []  # of each connection, once its client has given up
        self._gave_up = threading.Condition()

    def waits_s(self, clients: int) -> list[float]:
        """Return how many seconds each client waited, as soon as so many of them are known to have given up.

        A client's process may be gone before the thread of the server that reads from the client runs again.
        """
        with self._gave_up:
            self._gave_up.wait_for(lambda: len(self._waits_s) >= clients, timeout=_SEEN_WITHIN_S)
            return list(self._waits_s)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=self._keep_waiting, args=(connection,), daemon=True).start()

    def _keep_waiting(self, connection: socket.socket) -> None:
        started = time.monotonic()
        with connection:
            try:
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass
        with self._gave_up:
            self._waits_s.append(time.monotonic() - started)
            self._gave_up.notify_all()


@contextmanager
def silent_server() -> Iterator[SilentServer]:
    """Yield a server on a loopback port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = SilentServer(listener)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
