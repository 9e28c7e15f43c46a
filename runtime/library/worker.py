"""A process that makes C files: ``python -m tilewright.runtime.library.worker FD``.

Orders come through the connection that FD is, one by one, and go back as what was made of them, or
as the error that stood in the way. It ends when the other side closes the connection.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from tilewright.errors import TilewrightError

from .sources import make


def serve(connection: Connection) -> None:
    """Answer orders until there are no more."""
    from tilewright.emit.render import keep_compiled
    from tilewright.runtime.store.shelf import TEMPLATES, Shelf

    keep_compiled(Shelf(TEMPLATES))
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
