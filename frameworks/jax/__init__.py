"""tilewright in JAX: a spec as a function of arrays that ``jax.jit`` compiles.

``operator`` makes such a function. Outside of ``jax.jit``, kernels take JAX's arrays without this
package.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401 (fails here, with a message of tilewright)
except ImportError as _error:
    from tilewright.errors import install as _install

    raise ImportError(
        f"tilewright.jax needs JAX, which is not installed: {_install('jax')}"
    ) from _error

from .operator import Operator, operator

__all__ = ["Operator", "operator"]


def __dir__() -> list[str]:
    return [*__all__]
