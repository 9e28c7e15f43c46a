"""The command line is run in this process."""

from support.command_line import run

__all__ = ["run"]
