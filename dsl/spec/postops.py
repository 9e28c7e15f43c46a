"""The functions that an epilogue may use, for example ``relu``; ``expression/`` defines them."""

from typing import TYPE_CHECKING

from .expression import FAMILIES

# Star imports, because type checkers find the functions only with them.
from .expression.activations import *  # noqa: F403
from .expression.arithmetic import *  # noqa: F403
from .expression.comparisons import *  # noqa: F403
from .expression.exponential import *  # noqa: F403
from .expression.gaussian import *  # noqa: F403
from .expression.logarithm import *  # noqa: F403
from .expression.trigonometry import *  # noqa: F403

#: Names of all functions that an epilogue may use.
NAMES: list[str] = sorted(name for family in FAMILIES for name in family.__all__)
if not TYPE_CHECKING:
    __all__ = NAMES  # noqa: PLE0605
