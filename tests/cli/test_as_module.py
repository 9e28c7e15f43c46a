"""``python -m tilewright``, and types by the names of numpy."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from tilewright.cli import main


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tilewright", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: tilewright [OPTIONS]")


def test_a_type_may_have_numpys_name() -> None:
    words = ("explain", "4x4x4", "--target", "avx2", "--type")
    by_numpy, own = (CliRunner().invoke(main, [*words, name]) for name in ("int8", "s8"))
    assert by_numpy.exit_code == 0
    assert by_numpy.output == own.output and "of s8" in own.output
