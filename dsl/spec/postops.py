"""The functions that epilogues are written with, beside Python's operators.

Each is one entry in ``expression/``; here they stand under their names.
"""

from typing import TYPE_CHECKING

from .expression import FAMILIES
from .expression.activations import *  # noqa: F403  type checkers know no other way
from .expression.arithmetic import *  # noqa: F403
from .expression.comparisons import *  # noqa: F403
from .expression.exponential import *  # noqa: F403
from .expression.gaussian import *  # noqa: F403
from .expression.logarithm import *  # noqa: F403

#: What all of them are called.
NAMES: list[str] = sorted(name for family in FAMILIES for name in family.__all__)
if not TYPE_CHECKING:
    __all__ = NAMES  # noqa: PLE0605
