"""Specs as functions of JAX's arrays: results, ``jax.jit``, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError, TargetError

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import tilewright.jax as tj  # noqa: E402

M, N, K = 6, 8, 9
BIAS = tw.Operand("bias", "f32", per="column")
FACTOR = tw.Operand("factor", "f32")


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    drawn = np.random.default_rng([seed, *shape]).uniform(-4, 4, shape)
    return drawn.astype(dtype)


def wide(*arrays: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(x).astype(np.float64) for x in arrays]


def assert_close(found: Any, expected: Any, bound: float = 1e-4) -> None:
    assert np.shape(found) == np.shape(expected)
    assert np.abs(np.asarray(found).astype(np.float64) - expected).max() < bound


@pytest.mark.parametrize("traced", [False, True], ids=["called", "compiled"])
@pytest.mark.parametrize(("changes", "dtype", "bound"), [
    ({}, np.float32, 1e-4),
    ({"order": "F"}, np.float32, 1e-4),
    ({"a": tw.Matrix("f32", "F")}, np.float32, 1e-4),
    ({"a": "bf16", "b": "bf16"}, ml_dtypes.bfloat16, 1e-3),
    ({"a": "f8_e4m3", "b": "f8_e4m3", "d": "f32"}, ml_dtypes.float8_e4m3fn, 1e-3),
    ({"a": "s8", "b": "s8"}, np.int8, 0.5),
    ({"m": tw.dim("m"), "k": tw.dim("k"), "lda": tw.dim("lda")}, np.float32, 1e-4),
], ids=["f32", "F", "A in F", "bf16", "f8", "s8", "dims"])  # fmt: skip
def test_results_are_those_of_numpy(
    changes: dict[str, Any], dtype: Any, bound: float, traced: bool
) -> None:
    op = tj.operator(tw.Gemm(**{"m": M, "n": N, "k": K, **changes}))
    a, b = draw(M, K, dtype=dtype), draw(K, N, dtype=dtype)
    found = (jax.jit(op) if traced else op)(jnp.asarray(a), jnp.asarray(b))
    x, y = wide(a, b)
    assert_close(found, x @ y, bound)


def test_epilogues_numbers_and_further_results() -> None:
    bias, a, b = draw(N), draw(M, K), draw(K, N)
    most = {"most": tw.row_max(tw.acc + BIAS)}
    op = tj.operator(
        tw.Gemm(M, N, K, alpha="scalar", epilogue=(tw.acc + BIAS) * FACTOR, outputs=most)
    )
    found, largest = op(*map(jnp.asarray, (a, b)), bias=jnp.asarray(bias), factor=3, alpha=0.5)
    x, y, z = wide(a, b, bias)
    assert_close(found, 3 * (0.5 * x @ y + z))
    assert_close(largest, (0.5 * x @ y + z).max(1))


@pytest.mark.parametrize("order", ["C", "F"])
def test_c_is_read_and_never_written(order: Any) -> None:
    op = tj.operator(tw.Gemm(M, N, K, beta="scalar", order=order))
    a, b, c = draw(M, K), draw(K, N), draw(M, N, seed=1)
    given = tuple(map(jnp.asarray, (a, b, c)))
    x, y, z = wide(a, b, c)
    assert_close(op(*given, 2.0), x @ y + 2 * z)
    assert_close(jax.jit(lambda a, b, c: op(a, b, c, beta=-1) + c)(*given), x @ y)
    assert np.array_equal(given[2], c)


def test_stacks_and_elements_of_vmap() -> None:
    a, b = draw(5, M, K), draw(5, K, N)
    x, y = wide(a, b)
    stack = tj.operator(tw.Gemm(M, N, K, batch=tw.Strided(tw.dim("count"), c=None)))
    assert_close(stack(jnp.asarray(a), jnp.asarray(b)), x @ y)
    each = jax.vmap(tj.operator(tw.Gemm(M, N, K)), in_axes=(0, None))
    assert_close(each(jnp.asarray(a), jnp.asarray(b[0])), x @ y[0])


def test_scratch_memory_and_threads() -> None:
    spec, size = tw.Gemm(70, 96, tw.dim("k"), order="F"), 300
    op = tj.operator(spec, tw.Schedule(loops="NMk", threads=2))
    a, b = draw(70, size), draw(size, 96)
    x, y = wide(a, b)
    assert_close(jax.jit(op)(jnp.asarray(a), jnp.asarray(b)), x @ y, 1e-2)


def test_arguments_are_checked_as_those_of_kernels() -> None:
    op = tj.operator(tw.Gemm(M, N, K, alpha="scalar"))
    a, b = jnp.asarray(draw(M, K)), jnp.asarray(draw(K, N))
    with pytest.raises(ArgumentValueError, match=r"a has the wrong shape(?s:.*)at: .*test_jax"):
        op(b, a, 1)
    with pytest.raises(ArgumentTypeError, match="b has the wrong dtype"):
        op(a, b.astype(jnp.bfloat16), 1)
    with pytest.raises(ArgumentTypeError, match="alpha must be a Python number"):
        jax.jit(op)(a, b, 1.0)
    with pytest.raises(ArgumentTypeError, match="not those of the operator"):
        op(a, b)


def test_a_kernel_that_is_traced_says_what_can_be() -> None:
    x = jnp.asarray(draw(4, 4))
    for call in (tw.compile(tw.Gemm(4, 4, 4)), tw.matmul):
        with pytest.raises(ArgumentTypeError, match=r"traced by JAX(?s:.*)jax\.operator"):
            jax.jit(lambda a, call=call: call(a, a))(x)


def test_it_has_no_derivative() -> None:
    op, b = tj.operator(tw.Gemm(M, N, K)), jnp.asarray(draw(K, N))
    with pytest.raises(ValueError, match=r"cannot be differentiated(?s:.*)custom_"):
        jax.grad(lambda a: op(a, b).sum())(jnp.asarray(draw(M, K)))


def test_what_is_no_operator_says_so() -> None:
    for spec in (tw.Gemm(4, 4, 4, b=tw.Packed("f32")), tw.Gemm(4, 4, 4, batch=tw.Addresses(2))):
        with pytest.raises(SpecError, match="one tensor for each operand"):
            tj.operator(spec)
    with pytest.raises(SpecError, match=r"tw\.Gemm"):
        tj.operator(tw.Transpose(4, 4, "f32"))  # type: ignore[arg-type]


def test_a_target_that_is_emulated_is_refused() -> None:
    if not tw.targets()["power10"].startswith(("qemu", "header")):
        pytest.skip("POWER10 is not emulated here")
    with pytest.raises(TargetError, match="needs a CPU with"):
        tj.operator(tw.Gemm(4, 4, 4), target="power10")


def test_a_kernel_of_another_process_says_what_is_missing() -> None:
    from tilewright.jax.handler import TARGET

    tj.operator(tw.Gemm(4, 4, 4))
    none = np.zeros(1, np.int64)
    named = {"kernel": "gemm_of_nobody", "places": none, "sizes": none, "numbers": none * 1.0}
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((4,), np.float32))
    with pytest.raises(Exception, match=r"not loaded in this process(?s:.*)jax\.operator"):
        call(**named).block_until_ready()
    with pytest.raises(Exception, match=r"no call that tilewright\.jax made"):
        call(kernel="gemm_of_nobody").block_until_ready()
    known = tj.operator(tw.Gemm(4, 4, 4)).kernel.name
    with pytest.raises(Exception, match="too few arrays"):
        call(**{**named, "kernel": known}).block_until_ready()
