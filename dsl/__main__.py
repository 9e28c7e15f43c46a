"""Run the command line: ``python -m tilewright`` is ``tilewright``."""

from __future__ import annotations

from tilewright.cli import main

if __name__ == "__main__":
    main(prog_name="tilewright")
