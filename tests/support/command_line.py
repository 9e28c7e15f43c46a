"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tilewright.cli import main

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run ``tilewright`` with words; a status other than 0 is expected only where it is named."""

    def run(*words: str, status: int = 0) -> Result:
        result = CliRunner().invoke(main, list(words), prog_name="tilewright")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return run
