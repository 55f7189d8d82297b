"""What stands in for ``spark-submit``: hands a call to the warm driver, and ends as the application ends.

Imports nothing but the standard library, and little of that: each call starts an interpreter.
"""

from __future__ import annotations

import json
import os
import socket
import sys

LOCAL_MASTER = "local"
DRIVER_GONE = 137  # as if the driver was killed


def main(address: str, real: str, real_wanted: str) -> int:
    """Return the exit code of the application; a call that is not for the warm driver becomes the real one.

    Args:
        address: Of the warm driver's socket.
        real: The real ``spark-submit``.
        real_wanted: A file; while it is there every call becomes the real one.
    """
    arguments = sys.argv[1:]
    master = arguments[arguments.index("--master") + 1] if "--master" in arguments else ""
    if os.path.exists(real_wanted) or not master.startswith(LOCAL_MASTER):  # noqa: PTH110 -- pathlib takes a while
        os.execv(real, [real, *arguments])  # noqa: S606 -- this process becomes the real one, so that killing it works
    call = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}).encode()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(address)
        socket.send_fds(driver, [len(call).to_bytes(8, "big")], [0, 1, 2])
        driver.sendall(call)
        answer = driver.recv(1)  # the end of this process closes the socket, which ends the application
    return answer[0] if answer else DRIVER_GONE
