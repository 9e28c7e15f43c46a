"""The command line ``tilewright``. Each command only arranges functions of the library."""

from __future__ import annotations

from typing import Any

import click

from tilewright.errors import TilewrightError

#: Module of each command, imported when the command is used. After the colon: the command's name in
#: the module, if it is not ``command``.
_COMMANDS = {
    "demo": "demo",
    "targets": "targets",
    "explain": "explain",
    "emit": "emit",
    "build": "build",
    "bench": "bench",
    "peak": "bench:peak",
    "run": "run",
    "tune": "tune",
    "sweep": "sweep",
    "calibrate": "calibrate",
    "warm": "cache:warm",
    "cache": "cache",
}


class Commands(click.Group):
    """A group that imports commands late, and prints tilewright's errors as messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names in the order of the help text."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called ``cmd_name``, or None."""
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(f"{__name__}.{module}"), attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error of the library ends it with status 1."""
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            raise Failure(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:  # a path that the user named, or the cache's
            raise Failure(_refused(error)) from error


def _refused(error: OSError) -> TilewrightError:
    """Return an operating-system error about a file as an error of tilewright."""
    return TilewrightError(
        "the system refuses a file",
        got=f"{error.filename or 'a file'}: {error.strerror or error}",
        hint="another path, or the right to use this one",
    )


class Failure(click.ClickException):
    """An error of the library, printed without the line of Python that caused it.

    The user of a command wrote no Python code, so the line would not help.
    """

    def __init__(self, error: TilewrightError) -> None:
        super().__init__(error.problem)
        self.error = error

    def format_message(self) -> str:
        """Return the problem, what was got and expected, and what to try."""
        error = self.error
        rows = (("got", error.got), ("expected", error.expected), ("try", error.hint))
        return "\n".join([error.problem, *(f"  {key}: {text}" for key, text in rows if text)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilewright")
def main() -> None:
    """Multiply matrices on the CPU with generated C kernels."""
