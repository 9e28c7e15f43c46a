"""Draw the charts of the pages from ``benchmarks/records``: ``python -m benchmarks.charts``.

``--check`` draws nothing, and ends with 1 if a committed chart was made from other data or code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from . import ratios, sizes
from .style import Chart


def charts() -> Iterator[Chart]:
    """All charts."""
    yield from sizes.charts()
    yield from ratios.charts()


def main() -> int:
    """Draw, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and draw nothing")
    if not parser.parse_args().check:
        for chart in charts():
            chart.write()
        return 0
    stale = [chart.name for chart in charts() if not chart.current()]
    if stale:
        print(f"not current: {', '.join(stale)}; try: python -m benchmarks.charts")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
