"""The functions of epilogues, by name. Each is defined by an entry in ``expression/``."""

from typing import TYPE_CHECKING

from .expression import FAMILIES
from .expression.activations import *  # noqa: F403  type checkers know no other way
from .expression.arithmetic import *  # noqa: F403
from .expression.comparisons import *  # noqa: F403
from .expression.exponential import *  # noqa: F403
from .expression.gaussian import *  # noqa: F403
from .expression.logarithm import *  # noqa: F403

#: Names of all functions.
NAMES: list[str] = sorted(name for family in FAMILIES for name in family.__all__)
if not TYPE_CHECKING:
    __all__ = NAMES  # noqa: PLE0605
