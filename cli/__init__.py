"""The command line: ``tilewright``. Each command only arranges what the library offers."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilewright")
def main() -> None:
    """Matrix micro-kernels: declared in Python, compiled from C, called on numpy arrays."""
