"""A layer of a network in JAX, whose product, bias and activation are one kernel.

    python examples/jax_layer.py [ROWS]             (by default: 512)

``tilewright.jax.operator`` makes a function of JAX's arrays of a spec. ``jax.jit`` compiles it
together with what stands around it, here a normalisation of rows. It has no derivative of its own:
``jax.custom_vjp`` gives it one, in which products are kernels too.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import tilewright as tw

WIDTH, INNER = 64, 128


def layer() -> Any:
    """``tanh(x @ weight + bias)`` of any number of rows, with its derivative."""
    import jax
    import jax.numpy as jnp

    import tilewright.jax as tj

    rows, bias = tw.dim("m"), tw.Operand("bias", "f32", per="column")
    product = tj.operator(tw.Gemm(rows, INNER, WIDTH, epilogue=tw.tanh(tw.acc + bias)))
    of_inputs = tj.operator(tw.Gemm(rows, WIDTH, INNER))
    of_weights = tj.operator(tw.Gemm(WIDTH, INNER, tw.dim("k")))

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        out = product(x, weight, bias)
        return out, (x, weight, out)

    def backward(kept: Any, grad: Any) -> Any:
        x, weight, out = kept
        sums = grad * (1 - out * out)
        return of_inputs(sums, weight.T), of_weights(x.T, sums), jnp.sum(sums, 0)

    ended = jax.custom_vjp(product.__call__)
    ended.defvjp(forward, backward)
    return ended


def check(rows: int) -> float:
    """How far a loss and its derivatives are off those of JAX alone, relatively, at most."""
    import jax
    import jax.numpy as jnp

    draw = np.random.default_rng(0).standard_normal
    given = [
        jnp.asarray(draw(shape), jnp.float32) / 4
        for shape in ((rows, WIDTH), (WIDTH, INNER), (INNER,))
    ]

    def loss(product: Any) -> Any:
        def of(x: Any, weight: Any, bias: Any) -> Any:
            out = product(x, weight, bias)
            return jnp.mean(jnp.square(out - jnp.mean(out, 1, keepdims=True)))

        return jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2)))

    plain = loss(lambda x, weight, bias: jnp.tanh(x @ weight + bias))
    found, expected = (jax.tree.leaves(each(*given)) for each in (loss(layer()), plain))
    return max(
        float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(found, expected, strict=True)
    )


def main() -> int:
    """Run, and say how far off it was: not zero if too far."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    error = check(rows)
    print(f"a layer of {rows} rows, and its derivatives: largest relative error {error:.1e}")
    return int(error > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
