"""The command line ``tilewright``. Each command only arranges functions of the library."""

from __future__ import annotations

from typing import Any

import click

from tilewright.errors import TilewrightError

#: Module of each command, which is imported when the command is used. If the command's name in the
#: module is not ``command``, the name follows a colon.
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
    """A group of commands that imports a command's module only when the command is used.

    It prints errors of tilewright as messages, without a traceback.
    """

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
        """Run the command. If the library raises an error, the exit status is 1."""
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            raise Failure(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:  # for example, a file that the user named cannot be written
            raise Failure(_refused(error)) from error


def _refused(error: OSError) -> TilewrightError:
    """Convert an operating-system error about a file to an error of tilewright."""
    return TilewrightError(
        "the system refuses a file",
        got=f"{error.filename or 'a file'}: {error.strerror or error}",
        hint="another path, or the right to use this one",
    )


class Failure(click.ClickException):
    """An error of the library, printed as a message without the line of Python that caused it.

    The user of a command wrote no Python code, so the line would not help.
    """

    def __init__(self, error: TilewrightError) -> None:
        super().__init__(error.problem)
        self.error = error

    def format_message(self) -> str:
        """Return the message: the problem, what was given, what was expected, and what to try."""
        error = self.error
        rows = (("got", error.got), ("expected", error.expected), ("try", error.hint))
        return "\n".join([error.problem, *(f"  {key}: {text}" for key, text in rows if text)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilewright")
def main() -> None:
    """Multiply matrices on the CPU with generated C kernels."""
