"""The command line: ``tilewright``. Each command only arranges what the library offers."""

from __future__ import annotations

from typing import Any

import click

from tilewright.errors import TilewrightError

#: Each command's module, imported when the command is used, and its name there if not ``command``.
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
    """A group that imports its commands late, and shows tilewright's errors as messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, in the order of the help text."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``."""
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(f"{__name__}.{module}"), attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that the library raises ends it with status 1."""
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            raise Failure(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:  # of a path that the user named, or of the cache's
            raise Failure(_refused(error)) from error


def _refused(error: OSError) -> TilewrightError:
    """What the system said of a file."""
    return TilewrightError(
        "the system refuses a file",
        got=f"{error.filename or 'a file'}: {error.strerror or error}",
        hint="another path, or the right to use this one",
    )


class Failure(click.ClickException):
    """An error of the library, without the place in the code: there is none of the user's."""

    def __init__(self, error: TilewrightError) -> None:
        super().__init__(error.problem)
        self.error = error

    def format_message(self) -> str:
        """The problem, what was got and expected, and what to try."""
        error = self.error
        rows = (("got", error.got), ("expected", error.expected), ("try", error.hint))
        return "\n".join([error.problem, *(f"  {key}: {text}" for key, text in rows if text)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilewright")
def main() -> None:
    """Matrix micro-kernels: declared in Python, compiled from C, called on numpy arrays."""
