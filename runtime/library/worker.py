"""A process that generates C files: ``python -m tilewright.runtime.library.worker FD``.

It receives orders through the connection FD, one by one, and answers each with the file or the
error. It ends when the other side closes the connection.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from tilewright.errors import TilewrightError
from tilewright.runtime.store.compiled import keep_templates

from .sources import make


def serve(connection: Connection) -> None:
    """Generate a C file for each order that arrives, until the connection is closed."""
    keep_templates()
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        try:
            connection.send(make(order))
        except TilewrightError as error:
            connection.send(error)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
